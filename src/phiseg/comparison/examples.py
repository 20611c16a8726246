"""Which cases are worth looking at."""

from phiseg.comparison.tables import excess_ged
from phiseg.evaluation.results import Evaluation


def chosen_cases(reference: Evaluation) -> dict[str, str]:
    """Return the best, the median and the worst case of a method, and the one that annotators dispute most.

    Best and worst by the GED above its floor, disputed by the mean distance of the annotations E d(y, y'). Of
    equal cases the first is taken; a case that is chosen twice is shown once and has both labels.

    Args:
        reference: the method whose scores decide.

    Returns:
        Why each case was chosen, by case; empty where no case has a GED and a floor.
    """
    cases, name = reference.cases["case"], reference.summary.method
    excess = {case: v for case, v in zip(cases, excess_ged(reference), strict=True) if v is not None}
    dispute = dict(zip(cases, reference.cases["ged_within_annotations"], strict=True))
    if not excess:
        return {}
    ranked = sorted(excess, key=excess.__getitem__)
    reasons = [
        (f"best of {name}", ranked[0]),
        (f"median of {name}", ranked[(len(ranked) - 1) // 2]),
        (f"worst of {name}", max(excess, key=excess.__getitem__)),
        ("most ambiguous", max(excess, key=dispute.__getitem__)),
    ]
    labels: dict[str, str] = {}
    for reason, case in reasons:
        labels[case] = f"{labels[case]}, {reason}" if case in labels else reason
    return labels
