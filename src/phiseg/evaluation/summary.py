"""The content of `summary.json`: what was evaluated and how, the means of the scores and their intervals."""

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
from phiseg.metrics.correlation import correlated_excess
from phiseg.metrics.registry import SCORES, summary_scores
from phiseg.metrics.score import CaseScore
from phiseg.metrics.significance import patient_interval
from phiseg.models.temperatures import Calibration

TEXT_COLUMNS = ("case", "patient", "nodule", "slice")
"""What names a case, as in the dataset's cases.csv. Datasets may lack the last two, and older evaluations have only
`case`."""

Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=200)]
Cases = dict[str, list[Any]]
"""The columns of `cases.csv`: `TEXT_COLUMNS` hold strings, every other one a number or None."""


class DatasetRef(StrictConfig):
    """The dataset that was evaluated on."""

    name: Line
    fingerprint: Line
    """Equal for equal data, whatever the folder is called."""


class ModelRef(StrictConfig):
    """Where the model came from."""

    recipe: Line | None = None
    step: int | None = None
    annotator: int | Line | None = None
    """Whose annotations it was trained with: one annotator's number, or `random` for all in turn."""
    sha256: Line | None = None
    """Of its weights."""
    calibration: Calibration = Calibration()
    """The temperatures it sampled with."""


class Provenance(StrictConfig):
    """What is evaluated and how: everything in `summary.json` that is known before the first case is scored."""

    format: Literal["phiseg-evaluation"] = "phiseg-evaluation"
    version: Literal[1] = 1
    phiseg_version: Line = __version__
    method: Line
    num_parameters: int | None
    num_samples: int = Field(ge=1)
    seed: int
    split: Line
    hide_neighbours: bool = False
    """Whether a model with context was shown every slice without its neighbours."""
    dice_annotator: Annotated[int, Field(ge=0)] | Literal["all", "majority", "staple"]
    """Whose annotation Dice is taken against; `all` averages over all of them, the others are their consensus."""
    dataset: DatasetRef
    model: ModelRef


class Summary(Provenance):
    """The content of `summary.json`: means over the cases where a value is defined."""

    num_cases: int = Field(ge=1)
    num_with_neighbours: int | None = Field(default=None, ge=0)
    """Cases whose neighbouring slices the model saw; None for a model of single slices."""
    num_patients: int | None = Field(default=None, ge=1)
    """None in evaluations that did not record patients."""
    scores: dict[str, FiniteFloat | None]
    """The scores of `registry.summary_scores`; None where one is undefined. An older file may lack some of them. In
    the file each score is a key of its own; in Python it is also an attribute, such as `summary.ged`."""
    intervals: dict[str, tuple[FiniteFloat, FiniteFloat]]
    """95 % interval of the mean, for every metric that is defined for two patients or more; patients are resampled,
    and trainings where there are several, see `patient_interval`."""

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
        """Return a score by its name."""
        if name not in SCORES:
            raise AttributeError(f"a summary has no {name!r}")
        return self.scores.get(name)

    @property
    def ged_correlated(self) -> float | None:
        """The unbiased GED that the residual correlation of the annotators can account for."""
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
        """Summarise `cases`.

        Args:
            cases: the scores, averaged over `trainings` if there are any.
            trainings: the scores of each training, rows in the order of `cases`.
            pixel_scores: the scores that no case has on its own, by name.
            provenance: the fields that are not computed from the scores.
        """
        patients = patients_of(cases)
        scores, intervals = dict(pixel_scores or {}), {}
        for name in (score.name for score in summary_scores() if isinstance(score, CaseScore)):
            scores[name] = float(np.mean(values)) if (values := defined(cases[name])) else None
            if interval := patient_interval([training[name] for training in trainings or [cases]], patients):
                intervals[name] = interval
        return cls(
            num_cases=len(cases["case"]),
            num_patients=len(set(patients)) if "patient" in cases else None,
            num_with_neighbours=int(sum(cases["has_neighbours"])) if "has_neighbours" in cases else None,
            scores={score.name: scores.get(score.name) for score in summary_scores()},
            intervals=intervals,
            **provenance,
        )


def patients_of(cases: Cases) -> list[str]:
    """Return the patient of every case; where they were not recorded, every case is a patient of its own."""
    return cases.get("patient", cases["case"])


def defined(values: Sequence[float | None]) -> list[float]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]
