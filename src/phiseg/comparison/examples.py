"""Choice of example cases."""

from phiseg.comparison.tables import excess_ged
from phiseg.evaluation.evaluation_folder import Evaluation


def chosen_cases(reference: Evaluation) -> dict[str, str]:
    """Return the best, median and worst case of a method, and the case with the largest annotator disagreement.

    Best and worst refer to the excess GED, disagreement to the mean distance E d(y, y') of the
    annotations. Ties are resolved in favour of the first case. A case that is chosen twice has both labels.

    Args:
        reference: evaluation of the method.

    Returns:
        The reason for each case; empty if no case has a GED and a floor.
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
