"""The table of scores. To add a metric, write its function in this package and add one entry below.

No other place lists the scores. The entry determines the columns of `cases.csv`, the keys of `summary.json`, the
columns and notes of comparison tables, the definitions in the report, the choices of `train.select_by`, and the
table in `docs/explanation/metrics.md`.
"""

from collections.abc import Callable, Iterable

from torch import Tensor

from phiseg.metrics.annotator_correlation import agreement_table, residual_correlation
from phiseg.metrics.calibration import expected_calibration_error, reliability
from phiseg.metrics.diversity import mean_distinct
from phiseg.metrics.matching import best_mean, matched_mean
from phiseg.metrics.overlap import pairwise_dice
from phiseg.metrics.sampled_case import SampledCase
from phiseg.metrics.score import CaseScore, DerivedScore, Group, PixelScore, Score
from phiseg.metrics.surface import surface_distance


def _mean_dice(case: SampledCase) -> float | None:
    if not len(case.reference):
        return None
    return float(pairwise_dice(case.prediction[None], case.reference, num_classes=case.num_classes).mean())


def _surface_distance(case: SampledCase) -> float | None:
    if not len(case.reference) or case.spacing_mm is None:
        return None
    return surface_distance(
        case.prediction, case.reference, num_classes=case.num_classes, spacing_mm=case.spacing_mm
    )


def _crps_ml(case: SampledCase) -> float | None:
    return None if case.areas.crps is None or case.voxel_ml is None else case.areas.crps * case.voxel_ml


def _relative_width(case: SampledCase) -> float | None:
    return case.areas.width / case.mean_area if case.mean_area else None


def _of_probs(table: Callable[[Tensor, Tensor], Tensor]) -> Callable[[SampledCase], Tensor | None]:
    """Return the table of mean probabilities and annotations as a function of a case."""
    return lambda case: None if case.mean_probs is None else table(case.mean_probs, case.annotations)


GED_EXCESS = DerivedScore(
    name="ged_excess",
    group="main",
    heading="excess GED",
    beside="ged",
    needs=("ged", "ged_floor"),
    of=lambda ged, floor: ged - floor,
    description="GED minus its floor, an upper bound of what a better model could gain, because annotators who saw "
    "more than the image are not independent.",
    details="They agree more than independent annotators would, and no model of the image alone reaches the floor. "
    "Compare methods by the unbiased GED, because the excess favours samples that are too similar.",
)

_ENTRIES: tuple[Score, ...] = (
    CaseScore(
        name="ged",
        group="main",
        heading="GED",
        better="lower",
        of=lambda case: case.energy_distance.ged,
        min_annotators=2,
        description="Squared generalised energy distance between samples s and annotations y: "
        "2 E d(s, y) - E d(s, s') - E d(y, y') with d = 1 - IoU.",
    ),
    CaseScore(
        name="ged_unbiased",
        group="main",
        heading="unbiased GED",
        better="lower",
        of=lambda case: case.energy_distance.ged_unbiased,
        min_annotators=2,
        description="GED over distinct pairs only, so its expectation does not depend on the number of samples.",
        details="Its mean is 0 for samples from the annotators' distribution if annotators are independent given "
        "the image. It can be negative.",
    ),
    CaseScore(
        name="ged_floor",
        group="main",
        heading="GED floor",
        beside="ged",
        of=lambda case: case.energy_distance.ged_floor,
        min_annotators=2,
        description="Expected GED of samples from the annotators' own distribution if annotators are independent "
        "given the image: δ (1/M + 1/N) for M annotators, N samples and the mean distance δ of two annotations.",
        details="It is not zero, because a mask has distance 0 to itself.",
    ),
    GED_EXCESS,
    CaseScore(
        name="s_ncc",
        group="main",
        heading="S_NCC",
        latex=r"$S_\mathrm{NCC}$",
        better="higher",
        of=lambda case: case.correlation and case.correlation.value,
        min_annotators=2,
        description="Normalised cross correlation of the gamma map with the error map of each annotator, "
        "averaged: does the model know where it will be wrong?",
    ),
    CaseScore(
        name="dice",
        group="main",
        heading="Dice",
        better="higher",
        of=_mean_dice,
        description="Overlap of the mean prediction with an annotation, the usual measure of accuracy.",
        details="The note below the table names the annotation.",
    ),
    CaseScore(
        name="hm_iou",
        group="further",
        heading="HM-IoU",
        better="higher",
        decimals=3,
        of=lambda case: matched_mean(case.iou),
        description="Mean IoU of samples and annotations matched one to one (Hungarian matching).",
    ),
    CaseScore(
        name="best_dice",
        group="further",
        heading="best Dice",
        better="higher",
        decimals=3,
        of=lambda case: best_mean(case.dice),
        description="Largest Dice of each annotation over the samples, averaged.",
    ),
    CaseScore(
        name="diversity",
        group="further",
        heading="diversity",
        decimals=3,
        of=lambda case: mean_distinct(case.sample_distances),
        description="Mean distance 1 - IoU of two samples; it should equal that of the annotators.",
    ),
    CaseScore(
        name="diversity_annotators",
        group="further",
        heading="annotator diversity",
        decimals=3,
        beside="diversity",
        of=lambda case: mean_distinct(case.annotation_distances),
        min_annotators=2,
        description="Mean distance 1 - IoU of two annotations.",
    ),
    CaseScore(
        name="surface_distance",
        group="further",
        heading="surface distance / mm",
        decimals=2,
        of=_surface_distance,
        description="Average symmetric surface distance of the mean prediction and an annotation, in mm; empty "
        "masks are excluded.",
    ),
    CaseScore(
        name="area_crps",
        group="further",
        dims=2,
        heading="area CRPS",
        better="lower",
        decimals=1,
        of=lambda case: case.areas.crps,
        description="Continuous ranked probability score of the area, in pixels.",
    ),
    CaseScore(
        name="area_coverage",
        group="further",
        dims=2,
        heading="area coverage",
        decimals=3,
        of=lambda case: case.areas.coverage,
        description="Share of annotators whose area lies within the central 90 % of the samples' areas.",
    ),
    CaseScore(
        name="area_width",
        group="summary",
        dims=2,
        heading="interval width",
        decimals=1,
        of=lambda case: case.areas.width,
        description="Width of the central 90 % of the samples' areas, in pixels.",
    ),
    CaseScore(
        name="volume_crps",
        group="further",
        dims=3,
        heading="volume CRPS / ml",
        better="lower",
        decimals=3,
        of=_crps_ml,
        description="Continuous ranked probability score of the volume, in ml.",
    ),
    CaseScore(
        name="volume_coverage",
        group="further",
        dims=3,
        heading="volume coverage",
        decimals=3,
        of=lambda case: case.areas.coverage,
        description="Share of annotators whose volume lies within the central 90 % of the samples' volumes.",
    ),
    CaseScore(
        name="volume_width",
        group="further",
        dims=3,
        heading="interval width",
        decimals=3,
        of=_relative_width,
        description="Width of the central 90 % of the samples' volumes, divided by the annotators' mean volume.",
    ),
    PixelScore(
        name="ece",
        group="further",
        heading="ECE",
        better="lower",
        table=_of_probs(reliability),
        of=expected_calibration_error,
        description="Expected calibration error of the mean prediction.",
    ),
    PixelScore(
        name="residual_correlation",
        group="summary",
        heading="residual correlation",
        table=_of_probs(agreement_table),
        of=residual_correlation,
        description="Correlation of two annotators given the model's probabilities.",
    ),
    CaseScore(
        name="ged_cross",
        group="case",
        heading="E d(s, y)",
        of=lambda case: case.energy_distance.cross,
        description="Term of the GED: mean distance of a sample and an annotation.",
    ),
    CaseScore(
        name="ged_within_samples",
        group="case",
        heading="E d(s, s')",
        of=lambda case: case.energy_distance.within_samples,
        description="Term of the GED: mean distance of two samples.",
    ),
    CaseScore(
        name="ged_within_annotations",
        group="case",
        heading="E d(y, y')",
        of=lambda case: case.energy_distance.within_annotations,
        description="Term of the GED: mean distance of two annotations.",
    ),
    CaseScore(
        name="num_annotators",
        group="case",
        heading="annotators",
        of=lambda case: len(case.annotations),
        description="Number of annotations of the case.",
    ),
    CaseScore(
        name="s_ncc_constant",
        group="case",
        heading="constant maps",
        of=lambda case: case.correlation and case.correlation.num_constant,
        description="Annotators with a constant error map, which count as 0 in S_NCC.",
    ),
)

SCORES: dict[str, Score] = {score.name: score for score in _ENTRIES}
"""Every score by its name, in the order of the columns of `cases.csv`. Nothing keeps a copy of this table."""


def case_scores(dims: int | None = None) -> list[CaseScore]:
    """List the scores that every case has: columns of `cases.csv` for images (`dims` 2), volumes (3) or both."""
    return [score for score in _of_dims(dims) if isinstance(score, CaseScore)]


def pixel_scores() -> list[PixelScore]:
    """List the scores of the pixels of all cases together."""
    return [score for score in SCORES.values() if isinstance(score, PixelScore)]


def derived_scores() -> list[DerivedScore]:
    """List the scores that are computed from others and not stored."""
    return [score for score in SCORES.values() if isinstance(score, DerivedScore)]


def selectable_scores(dims: int | None = None) -> list[CaseScore]:
    """List the scores that a model can be selected by: those of single cases that have a direction."""
    return [score for score in case_scores(dims) if score.better]


def summary_scores(dims: int | None = None) -> list[Score]:
    """List the scores that `summary.json` holds for images (`dims` 2), volumes (3) or both."""
    return [score for score in _of_dims(dims) if score.group != "case" and not isinstance(score, DerivedScore)]


def _of_dims(dims: int | None) -> list[Score]:
    return [score for score in SCORES.values() if None in (dims, score.dims) or score.dims == dims]


def definitions(scores: Iterable[Score]) -> str:
    """Return what the columns of `scores` mean, as a note below a table."""
    return " ".join(f"{score.title}: {score.description}" for score in scores)


def table_scores(group: Group, dims: int | None = None) -> list[Score]:
    """List the scores of a group in the order of their columns: each followed by those that are read beside it.

    `dims` is 2 for the columns of images, 3 for those of volumes, None for both.
    """
    scores = [score for score in _of_dims(dims) if score.group == group]
    return [
        column
        for score in scores
        if not score.beside
        for column in (score, *(other for other in scores if other.beside == score.name))
    ]
