"""Scores as other publications and challenges compute them, so that a published number can be recomputed.

phiseg reports `ged` and `hm_iou` with one convention (`metrics.ged`, `metrics.matching`). The conventions below
differ in the pairs of masks, in the square root, in masks without a class and in repeated annotations. The scores
of challenges are in `metrics.challenges`. Values of different conventions are different quantities: never compare
them with each other.

S samples, A annotators.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Literal

from scipy.optimize import linear_sum_assignment
from torch import Tensor

from phiseg.core.errors import ConfigError, nearest
from phiseg.metrics.challenges import (
    CURVAS_THRESHOLDS,
    consensus_dice,
    normal_volume_crps,
    soft_dice,
    top_label_calibration_error,
)
from phiseg.metrics.consensus import consensus
from phiseg.metrics.diversity import mean_distinct
from phiseg.metrics.matching import matched_mean
from phiseg.metrics.sampled_case import SampledCase

EmptyRule = Literal["equal", "different", "absent"]
"""A class that neither mask contains: IoU 1 (`equal`), IoU 0 (`different`), or not part of the mean (`absent`)."""


@dataclass(frozen=True, kw_only=True)
class Convention:
    """One way to compute a score."""

    name: str
    """Name on the command line and in `conventions.csv`."""
    score: Literal["ged", "hm_iou", "dice", "volume_crps", "ece"]
    """The score of phiseg that is most similar."""
    description: str
    """How it is computed, in one line."""
    of: Callable[[SampledCase], float | None]
    """Computes the score of one case; None where it is undefined."""
    used_by: str = ""
    """Publications or code with this convention."""


def named_conventions(names: Iterable[str]) -> list[Convention]:
    """Return conventions by name, each once; `all` returns every convention.

    Raises:
        ConfigError: there is no convention with this name.
    """
    names = list(names)
    for name in names:
        if name not in {*CONVENTIONS, "all"}:
            raise ConfigError(f"there is no convention '{name}' ({nearest(name, [*CONVENTIONS, 'all'])})")
    return [convention for name, convention in CONVENTIONS.items() if name in names or "all" in names]


def ged(
    case: SampledCase, *, empty: EmptyRule = "equal", distinct: bool = False, root: bool = False
) -> float | None:
    """Return the GED of a case, 2 E d(s, y) - E d(s, s') - E d(y, y') with d = 1 - IoU.

    Args:
        case: samples and annotations.
        empty: the rule for a class that neither mask contains.
        distinct: exclude the pairs i = j, as in the U-statistic.
        root: return the square root, 0 for a negative square.

    Returns:
        None if there are fewer than two annotations, if `distinct` and there is only one sample, or if a mask is
        empty and `empty` is `absent`.
    """
    distances, number = 1 - _iou(case, empty), case.num_samples
    within = [distances[:number, :number], distances[number:, number:]]
    if len(case.annotations) < 2 or distances.isnan().any():
        return None
    means = [mean_distinct(part) if distinct else float(part.mean()) for part in within]
    if means[0] is None or means[1] is None:
        return None
    squared = 2 * float(distances[:number, number:].mean()) - means[0] - means[1]
    return sqrt(max(0.0, squared)) if root else squared


def hm_iou(case: SampledCase, *, empty: EmptyRule = "equal", repeated: bool = True) -> float | None:
    """Return the mean IoU of samples and annotations that are matched one to one so that it is largest.

    Args:
        case: samples and annotations.
        empty: the rule for a class that neither mask contains.
        repeated: repeat both sets up to their least common multiple, so that all samples count. Otherwise each mask
            of the smaller set is matched once, and the remaining masks of the larger set do not count.
    """
    similarity = _iou(case, empty)[: case.num_samples, case.num_samples :]  # (S, A)
    if similarity.isnan().any():
        return None
    if repeated:
        return matched_mean(similarity)
    matrix = similarity.cpu().numpy()
    return float(matrix[linear_sum_assignment(matrix, maximize=True)].mean())


def _probs(case: SampledCase) -> Tensor:
    """Return the mean probabilities (K, *size); without them, the share of samples with each label."""
    if case.mean_probs is None:
        return consensus(case.labels, "mean", num_classes=case.num_classes)
    return case.mean_probs


def _curvas_ece(case: SampledCase) -> float | None:
    return None if case.mean_probs is None else top_label_calibration_error(case.mean_probs, case.annotations)


def _iou(case: SampledCase, empty: EmptyRule) -> Tensor:
    """Return the IoU of all pairs of the S + A masks; NaN for pairs without any class if these are `absent`."""
    if empty == "equal":
        return case.counts.iou(both_empty=1.0)
    if empty == "different":
        return case.counts.iou(both_empty=0.0)
    return case.counts.iou_of_present()


_ENTRIES = (
    Convention(
        name="ged-all-pairs",
        score="ged",
        description="squared, all pairs, two empty masks are equal; the `ged` of phiseg",
        used_by="PHiSeg, SSN, MoSE, CCDM, Flow-SSN (LIDC)",
        of=ged,
    ),
    Convention(
        name="ged-distinct-pairs",
        score="ged",
        description="squared, without the pairs i = j; the `ged_unbiased` of phiseg",
        of=lambda case: ged(case, distinct=True),
    ),
    Convention(
        name="ged-root",
        score="ged",
        description="square root of the GED of each case, all pairs, two empty masks are equal",
        of=lambda case: ged(case, root=True),
    ),
    Convention(
        name="ged-root-empty-differ",
        score="ged",
        description="square root of the GED of each case, all pairs, two empty masks have distance 1",
        used_by="github.com/baumgach/ged",
        of=lambda case: ged(case, root=True, empty="different"),
    ),
    Convention(
        name="ged-empty-differ",
        score="ged",
        description="squared, all pairs, two empty masks have distance 1",
        used_by="D-Persona",
        of=lambda case: ged(case, empty="different"),
    ),
    Convention(
        name="ged-present-classes",
        score="ged",
        description="squared, all pairs, mean over the classes that at least one of the two masks contains; "
        "undefined for a case with an empty mask",
        used_by="Prob. U-Net (Cityscapes); MoSE and Flow-SSN with several classes",
        of=lambda case: ged(case, empty="absent"),
    ),
    Convention(
        name="hm-iou-repeated",
        score="hm_iou",
        description="samples and annotations repeated up to their least common multiple; the `hm_iou` of phiseg",
        used_by="HPU-Net, MoSE, CCDM",
        of=hm_iou,
    ),
    Convention(
        name="hm-iou-best",
        score="hm_iou",
        description="each annotation matched with one sample, the other samples do not count",
        used_by="Flow-SSN",
        of=lambda case: hm_iou(case, repeated=False),
    ),
    Convention(
        name="hm-iou-empty-differ",
        score="hm_iou",
        description="repeated, two empty masks have IoU 0",
        of=lambda case: hm_iou(case, empty="different"),
    ),
    Convention(
        name="qubiq-soft-dice",
        score="dice",
        description="Dice of the mean probability and the share of annotators, both thresholded at 0.1, 0.2, ..., "
        "0.9; mean over the thresholds, two empty masks score 1",
        used_by="QUBIQ",
        of=lambda case: soft_dice(_probs(case), case.annotations),
    ),
    Convention(
        name="curvas-soft-dice",
        score="dice",
        description="as qubiq-soft-dice, with the thresholds 0.1, 0.24, 0.38, 0.52, 0.66 and 0.8",
        used_by="CURVAS 2025",
        of=lambda case: soft_dice(_probs(case), case.annotations, thresholds=CURVAS_THRESHOLDS),
    ),
    Convention(
        name="curvas-consensus-dice",
        score="dice",
        description="Dice of the mean prediction where all annotators agree; undefined if they agree on no "
        "foreground",
        used_by="CURVAS 2024",
        of=lambda case: consensus_dice(case.prediction, case.annotations, num_classes=case.num_classes),
    ),
    Convention(
        name="curvas-crps",
        score="volume_crps",
        description="CRPS of a normal distribution of the annotators' volumes at the sum of the mean "
        "probabilities, in pixels or voxels",
        of=lambda case: normal_volume_crps(_probs(case), case.annotations),
    ),
    Convention(
        name="curvas-crps-limited",
        score="volume_crps",
        description="as curvas-crps, integrated over 3 standard deviations on either side of the mean; undefined "
        "if all annotators drew the same volume",
        used_by="CURVAS 2024 and 2025",
        of=lambda case: normal_volume_crps(_probs(case), case.annotations, limit=3),
    ),
    Convention(
        name="curvas-ece",
        score="ece",
        description="calibration error of the most probable class in 50 bins, for each annotator of a case, "
        "averaged; undefined without probabilities",
        used_by="CURVAS 2024 and 2025",
        of=_curvas_ece,
    ),
)

CONVENTIONS: dict[str, Convention] = {convention.name: convention for convention in _ENTRIES}
"""Every convention by its name."""
