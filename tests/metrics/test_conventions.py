"""Conventions of other publications and challenges, against loops over pairs and permutations."""

import math
import re
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import naive_challenges
from helpers import naive_metrics as naive
from phiseg.cli.score import ScoreSamples
from phiseg.core.errors import ConfigError
from phiseg.metrics.conventions import CONVENTIONS, named_conventions
from phiseg.metrics.sampled_case import SampledCase


def sampled(samples, annotations, num_classes=2):
    return SampledCase(
        torch.tensor(samples, dtype=torch.uint8),
        None,
        None,
        torch.tensor(annotations, dtype=torch.uint8),
        num_classes=num_classes,
    )


def masks(number, num_classes, seed, *, empty=()):
    drawn = np.random.default_rng(seed).integers(0, num_classes, (number, 3, 4))
    drawn[list(empty)] = 0
    return drawn.tolist()


def present_iou(first, second, num_classes):
    """Mean IoU over the labels that one of the masks contains; None if there is none."""
    scores = []
    for label in range(1, num_classes):
        pairs = [
            (a == label, b == label) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True)
        ]
        union = sum(a or b for a, b in pairs)
        if union:
            scores.append(sum(a and b for a, b in pairs) / union)
    return sum(scores) / len(scores) if scores else None


def present_ged(samples, annotations, num_classes):
    def mean(first, second):
        values = [present_iou(a, b, num_classes) for a in first for b in second]
        return None if None in values else sum(1 - value for value in values) / len(values)

    terms = [mean(samples, annotations), mean(samples, samples), mean(annotations, annotations)]
    return None if None in terms else 2 * terms[0] - terms[1] - terms[2]


def best_match(samples, annotations, num_classes):
    """Each mask of the smaller set is matched with another mask of the larger one."""
    small, large = sorted([samples, annotations], key=len)
    return max(
        sum(naive.iou(one, other, num_classes) for one, other in zip(small, chosen, strict=True)) / len(small)
        for chosen in permutations(large, len(small))
    )


def majority(samples, num_classes):
    return naive_challenges.shares(samples, num_classes).argmax(0)


def of_shares(score, **settings):
    """A score of probabilities, of the share of samples with each label."""
    return lambda s, y, k: score(naive_challenges.shares(s, k), np.array(y), **settings)


ORACLES = {
    "ged-all-pairs": naive.ged,
    "ged-distinct-pairs": lambda s, y, k: naive.ged(s, y, k, distinct=True),
    "ged-root": lambda s, y, k: math.sqrt(max(0, naive.ged(s, y, k))),
    "ged-root-empty-differ": lambda s, y, k: math.sqrt(max(0, naive.ged(s, y, k, both_empty=0))),
    "ged-empty-differ": lambda s, y, k: naive.ged(s, y, k, both_empty=0),
    "ged-present-classes": present_ged,
    "hm-iou-repeated": naive.matched_iou,
    "hm-iou-best": best_match,
    "hm-iou-empty-differ": lambda s, y, k: naive.matched_iou(s, y, k, both_empty=0),
    "qubiq-soft-dice": of_shares(naive_challenges.soft_dice, thresholds=naive_challenges.QUBIQ),
    "curvas-soft-dice": of_shares(naive_challenges.soft_dice, thresholds=naive_challenges.CURVAS),
    "curvas-consensus-dice": lambda s, y, k: naive_challenges.consensus_dice(majority(s, k), np.array(y), k),
    "curvas-crps": of_shares(naive_challenges.volume_crps),
    "curvas-crps-limited": of_shares(naive_challenges.volume_crps, limit=3),
    "curvas-ece": lambda s, y, k: None,  # needs probabilities
}


@pytest.mark.parametrize("name", CONVENTIONS)
@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("empty", [(), (0, 1)])
def test_convention_matches_loops(name, num_classes, empty):
    samples = masks(4, num_classes, 1, empty=empty)
    annotations = masks(2, num_classes, 2, empty=empty[:1])
    found = CONVENTIONS[name].of(sampled(samples, annotations, num_classes))
    expected = ORACLES[name](samples, annotations, num_classes)
    exact = 1e-3 if "crps" in name else 1e-12  # the oracle integrates
    assert found == (expected if expected is None else pytest.approx(expected, abs=exact))


def test_conventions_differ_where_they_should():
    case = sampled(masks(4, 2, 1, empty=[0]), masks(2, 2, 2, empty=[0]))
    values = {name: convention.of(case) for name, convention in CONVENTIONS.items()}
    undefined = {name for name, value in values.items() if value is None}
    assert undefined == {"ged-present-classes", "curvas-consensus-dice", "curvas-ece"}
    values = {name: value for name, value in values.items() if value is not None}
    assert values.pop("curvas-crps-limited") == values["curvas-crps"]  # an error within 3 standard deviations
    assert len({round(value, 9) for value in values.values()}) == len(values)
    assert values["hm-iou-best"] > values["hm-iou-repeated"] > values["hm-iou-empty-differ"]


def test_standard_conventions_are_the_scores_of_phiseg():
    case = sampled(masks(4, 3, 5), masks(3, 3, 6), 3)
    assert CONVENTIONS["ged-all-pairs"].of(case) == pytest.approx(case.energy_distance.ged)
    assert CONVENTIONS["ged-distinct-pairs"].of(case) == pytest.approx(case.energy_distance.ged_unbiased)


def test_challenge_scores_use_probabilities():
    probs = torch.tensor([[[0.95, 0.3]], [[0.05, 0.7]]], dtype=torch.float64)
    annotations = torch.tensor([[[0, 1]], [[1, 1]]], dtype=torch.uint8)
    case = SampledCase(annotations, probs, None, annotations)
    given = probs.numpy(), annotations.numpy()
    expected = naive_challenges.soft_dice(*given, naive_challenges.QUBIQ)
    assert CONVENTIONS["qubiq-soft-dice"].of(case) == pytest.approx(expected)
    assert CONVENTIONS["curvas-consensus-dice"].of(case) == 1
    assert CONVENTIONS["curvas-crps"].of(case) == pytest.approx(naive_challenges.volume_crps(*given), abs=1e-3)
    assert CONVENTIONS["curvas-ece"].of(case) == pytest.approx(naive_challenges.calibration_error(*given))


def test_challenge_scores_of_one_annotation():
    case = sampled(masks(4, 2, 1), masks(1, 2, 2))
    values = {name: CONVENTIONS[name].of(case) for name in CONVENTIONS if name.startswith(("qubiq", "curvas"))}
    assert {name for name, value in values.items() if value is None} == {"curvas-crps-limited", "curvas-ece"}


def test_ged_needs_two_annotations():
    case = sampled(masks(4, 2, 1), masks(1, 2, 2))
    assert [CONVENTIONS[name].of(case) for name in ("ged-all-pairs", "ged-root")] == [None, None]
    assert CONVENTIONS["hm-iou-repeated"].of(case) is not None


def test_conventions_by_name():
    assert [one.name for one in named_conventions(["hm-iou-best", "ged-root"])] == ["ged-root", "hm-iou-best"]
    assert [one.name for one in named_conventions(["all"])] == list(CONVENTIONS)
    assert named_conventions([]) == []
    with pytest.raises(ConfigError, match=r"no convention 'ged-rot' .*'ged-root'"):
        named_conventions(["ged-rot"])


def test_help_and_documentation_name_every_convention():
    page = Path(__file__).parents[2] / "docs" / "explanation" / "which-numbers-compare.md"
    listed = re.findall(r"^\| `([a-z-]+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed[: len(CONVENTIONS)] == list(CONVENTIONS)
    assert set(re.findall(r"(?:ged|hm-iou|qubiq|curvas)-[a-z-]+", ScoreSamples.__doc__)) >= set(CONVENTIONS)
