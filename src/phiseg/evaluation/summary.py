"""The content of `summary.json`: provenance, mean scores and their intervals."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    Field,
    FiniteFloat,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)

from phiseg import __version__
from phiseg.core.config import StrictConfig
from phiseg.core.formats import EVALUATION
from phiseg.core.precision import SamplingPrecision
from phiseg.data.store import Dataset
from phiseg.metrics.annotator_correlation import correlated_excess
from phiseg.metrics.score import PixelScore
from phiseg.metrics.score_registry import summary_scores
from phiseg.metrics.significance import patient_interval
from phiseg.models.temperatures import Calibration

TEXT_COLUMNS = ("case", "patient", "nodule", "slice")
"""Columns that identify a case, as in cases.csv of the dataset. Datasets may lack the last two, and older
evaluations have only `case`."""

Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=200)]
Cases = dict[str, list[Any]]
"""The columns of `cases.csv`: `TEXT_COLUMNS` contain strings, all others numbers or None."""


class DatasetRef(StrictConfig):
    """The dataset of the evaluation."""

    name: Line
    fingerprint: Line
    """Fingerprint of the data, independent of the name of the folder."""
    dims: Literal[2, 3] = 2
    """2 for images, 3 for volumes."""
    split_name: Line | None = None
    """Name of the split file that the splits were read from, to cite them by; None if there is none."""

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Return the reference to a dataset."""
        return cls(
            name=dataset.info.name,
            fingerprint=dataset.fingerprint,
            dims=dataset.dims,
            split_name=dataset.split_name,
        )


class ModelRef(StrictConfig):
    """Provenance of the model."""

    recipe: Line | None = None
    step: int | None = None
    annotator: int | Line | None = None
    """Annotator used for training: a number, or `random` for all in turn."""
    sha256: Line | None = None
    """SHA-256 of the weights."""
    calibration: Calibration = Calibration()
    """Temperatures used for sampling."""


class SamplesRef(StrictConfig):
    """Samples that another program drew."""

    sha256: Line
    """SHA-256 of the labels of all cases in their order, as uint8."""
    probabilities: Literal["none", "mean", "all"]
    """Known probabilities: none, so Dice is that of the majority of the samples; only their mean, so there is no
    S_NCC; or those of all samples."""


class Provenance(StrictConfig):
    """Model, data and settings of the evaluation: everything in `summary.json` that is known before scoring."""

    format: str = EVALUATION.name
    version: int = EVALUATION.version
    phiseg_version: Line = __version__
    method: Line
    num_parameters: int | None
    num_samples: int = Field(ge=1)
    seed: int | None
    """Random seed of the samples; None for given samples."""
    split: Line
    hide_neighbours: bool = False
    """Whether the neighbouring slices were hidden from a model with context."""
    precision: SamplingPrecision | None = "float32"
    """Number format of the network; None for given samples. Older files do not state it."""
    dice_annotator: Annotated[int, Field(ge=0)] | Literal["all", "majority", "staple"]
    """Reference for Dice: an annotator; `all` averages over all annotators, the others are their consensus."""
    dataset: DatasetRef
    model: ModelRef
    samples: SamplesRef | None = None
    """Given samples; None if phiseg drew them."""

    @property
    def split_title(self) -> str:
        """The split with the name of its split file, if there is one: `test` or `test (lidc-slices)`."""
        return f"{self.split} ({self.dataset.split_name})" if self.dataset.split_name else self.split


class Summary(Provenance):
    """The content of `summary.json`: means over the cases with a defined value."""

    num_cases: int = Field(ge=1)
    num_with_neighbours: int | None = Field(default=None, ge=0)
    """Number of cases with neighbouring slices; None for a model of single slices."""
    num_patients: int | None = Field(default=None, ge=1)
    """Number of patients; None if patients were not recorded."""
    scores: dict[str, FiniteFloat | None]
    """The scores of `summary_scores` for images or volumes; None where one is undefined. An older file may lack
    some of them. In the file each score is a key of its own; in Python it is also an attribute, such as
    `summary.ged`."""
    intervals: dict[str, tuple[FiniteFloat, FiniteFloat]]
    """95 % interval of the mean of each metric that is defined for at least two patients, by resampling of patients
    and, if there are several, trainings; see `patient_interval`."""

    @model_validator(mode="before")
    @classmethod
    def _collect_scores(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or "scores" in values:
            return values
        names = [score.name for score in summary_scores()]
        others = {key: value for key, value in values.items() if key not in names}
        return others | {"scores": {name: values[name] for name in names if name in values}}

    @model_serializer(mode="wrap")
    def _spread_scores(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values = serialise(self)
        parts = [part if key == "scores" else {key: part} for key, part in values.items()]
        return {key: value for part in parts for key, value in part.items()}

    def __getattr__(self, name: str) -> float | None:
        """Return a score by name; None if it is undefined, or missing in an older file."""
        if name not in (score.name for score in summary_scores()):
            raise AttributeError(f"a summary has no {name!r}")
        return self.scores.get(name)

    @property
    def ged_correlated(self) -> float | None:
        """The unbiased GED that the residual correlation of the annotators can explain."""
        if self.residual_correlation is None or self.diversity_annotators is None:
            return None
        return correlated_excess(self.residual_correlation, self.diversity_annotators)

    @classmethod
    def of(
        cls,
        cases: Cases,
        *,
        trainings: Sequence[Cases] = (),
        pixel_scores: Mapping[str, float | None] | None = None,
        **provenance: Any,
    ) -> Self:
        """Return the summary of `cases`.

        Args:
            cases: scores, averaged over `trainings` if there are any.
            trainings: scores of each training, with rows in the order of `cases`.
            pixel_scores: scores over all pixels, by name.
            provenance: fields that are not computed from the scores.
        """
        patients = patients_of(cases)
        scores, intervals = dict(pixel_scores or {}), {}
        for name in (score.name for score in summary_scores() if score.name in cases):
            scores[name] = float(np.mean(values)) if (values := defined(cases[name])) else None
            if interval := patient_interval([training[name] for training in trainings or [cases]], patients):
                intervals[name] = interval
        return cls(
            num_cases=len(cases["case"]),
            num_patients=len(set(patients)) if "patient" in cases else None,
            num_with_neighbours=int(sum(cases["has_neighbours"])) if "has_neighbours" in cases else None,
            scores={
                score.name: scores.get(score.name)
                for score in summary_scores()
                if score.name in cases or isinstance(score, PixelScore)
            },
            intervals=intervals,
            **provenance,
        )


def patients_of(cases: Cases) -> list[str]:
    """Return the patient of each case; if patients were not recorded, each case is a separate patient."""
    return cases.get("patient", cases["case"])


def defined(values: Sequence[float | None]) -> list[float]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]
