"""What the page and the server say to each other. All arrays are little-endian, row by row, deflated, in base64.

Shapes: S samples, K classes, L latent levels, N parts of the noise (the levels, and an ensemble's member),
A annotators; a box has h x w pixels of a slice.
"""

import base64
import zlib
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, RootModel

MAX_SAMPLES = 100


class Message(BaseModel):
    """A message between page and server; unknown keys are refused.

    The types of the page, web/src/schema.ts, are generated from these classes and their docstrings.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelInfo(Message):
    """The model that draws."""

    name: str
    classes: list[str]
    """The background first."""
    num_levels: int
    """Latent levels L; 0 for a model without a hierarchy."""
    noise_names: list[str]
    """The N parts of the noise, which can be held and redrawn one by one: the levels, fine to coarse, which have a
    temperature as well, and then, for an ensemble, the member; none without a hierarchy."""
    centred_on: str | None
    """What one has to click on; None for a model that takes a slice as a whole."""
    size: tuple[int, int]
    window: tuple[float, float] | None
    """Values that the model takes as its darkest and brightest; None where images are z-scored."""


class ScanInfo(Message):
    """A scan, or a case of a prepared dataset, as slices in the model's plane."""

    id: str
    name: str
    num_slices: int
    height: int
    width: int
    spacing_mm: tuple[float, float, float]
    """From slice to slice, row to row and column to column."""
    has_spacing: bool
    plane: str
    value_range: tuple[float, float]
    window: tuple[float, float]
    """To begin with."""
    annotators: list[str]
    """Whose masks are known; none for a scan."""
    start: tuple[int, int, int]
    """Slice, row and column to look at first: the middle, or the lesion of the example."""
    warnings: list[str]
    """What the user should know of the scan, one line each."""


class PackedAnnotations(Message):
    """The annotators' masks of a case."""

    annotators: list[str]
    labels: str | None
    """uint8 (A, height, width), of the only slice of a case; None for a scan."""


class SessionInfo(Message):
    """What the page needs to begin."""

    version: str
    model: ModelInfo
    scans: list[ScanInfo]
    """The first scan, if there is one."""
    scan_names: dict[str, str]
    """All of them: the name of each id."""
    max_samples: int = MAX_SAMPLES
    max_upload_bytes: int
    max_scans: int


class LevelControl(Message):
    """What is done to one part of the noise: to a latent level, or to the choice of an ensemble's member."""

    seed: int = Field(default=0, ge=0, le=2**31)
    """Another number redraws this part and no other."""
    hold: bool = False
    """All samples share the noise of the first one."""
    temperature: float = Field(default=1.0, ge=0, le=4)
    """Factor on the noise of a level; 1 for a member."""


class PredictionRequest(Message):
    """Where to look and how to sample."""

    scan: str
    point: Annotated[list[int], Field(min_length=3, max_length=3)]
    """Slice, row, column."""
    num_samples: int = Field(default=16, ge=1, le=MAX_SAMPLES)
    seed: int = Field(default=0, ge=0, le=2**31)
    levels: list[LevelControl] = Field(default_factory=list, max_length=32)
    """One for each of `ModelInfo.noise_names`; empty: all as they are."""


class Box(Message):
    """Where an array lies in a slice."""

    row: int
    column: int
    height: int
    width: int


class Queued(Message):
    """How many others are served first."""

    type: Literal["queued"] = "queued"
    ahead: int


class Samples(Message):
    """Some samples of the clicked slice."""

    type: Literal["samples"] = "samples"
    first: int
    number: int
    box: Box
    labels: str
    """uint8 (number, h, w), class indices."""


class SliceSummary(Message):
    """All samples of the clicked slice together."""

    type: Literal["slice"] = "slice"
    box: Box
    mean_probs: str
    """uint8 (K-1, h, w), 255 for a probability of 1."""
    gamma: str
    """uint8 (h, w), 255 for `gamma_max`."""
    gamma_max: float
    level_shares: str | None
    """uint8 (N, h, w), the share of each of `ModelInfo.noise_names` in the uncertainty of a pixel, 255 for all."""
    level_outputs: str | None
    """uint8 (L, h, w), the probability of any foreground after each level of the first sample, fine to coarse."""


class Spread(Message):
    """A quantity over the samples."""

    median: float
    low: float
    high: float
    samples: list[float]


class ClassNumbers(Message):
    """What the samples say about one class."""

    present: float
    """Share of the samples that contain the class."""
    volume_ml: Spread
    """Over all samples; one without the class counts as zero."""
    diameter_mm: Spread
    """Over all samples; one without the class counts as zero."""
    volume_ml_if_present: Spread | None
    """Over the samples that contain the class; None if there are none."""
    diameter_mm_if_present: Spread | None
    """Over the samples that contain the class; None if there are none."""


class Numbers(Message):
    """What the samples say about the whole lesion, or the whole scan."""

    type: Literal["numbers"] = "numbers"
    classes: dict[str, ClassNumbers]
    mean_gamma: float
    agreement: float
    truncated: float
    """Share of the samples that are cut off by the crop, by the reach or by the end of the scan: too small."""
    level_shares: dict[str, float] | None
    """The share of each of `ModelInfo.noise_names` in the uncertainty of the clicked slice."""
    doubt: str | None
    """Why the image around the point does not look like a training image; None if it does, or if the model does not
    state what its training images look like."""


class LesionSlices(Message):
    """The samples through all slices of the lesion; of a model of whole slices through all of a small scan.

    In a large scan, such a model looks at the clicked slice alone.
    """

    type: Literal["volume"] = "volume"
    first_slice: int
    num_slices: int
    box: Box
    labels: str
    """uint8 (S, slices, h, w)."""
    mean_probs: str
    """uint8 (K-1, slices, h, w)."""


class CaseScores(Message):
    """How the samples compare with the annotators of a case."""

    type: Literal["scores"] = "scores"
    ged: float | None
    ged_floor: float | None
    s_ncc: float | None
    dice: float | None


class Done(Message):
    """Everything was sent; `id` names the prediction for exports."""

    type: Literal["done"] = "done"
    id: str


class Failed(Message):
    """Why nothing more comes."""

    type: Literal["error"] = "error"
    message: str


class StreamedMessage(
    RootModel[
        Annotated[
            Queued | Samples | SliceSummary | Numbers | LesionSlices | CaseScores | Done | Failed,
            Field(discriminator="type"),
        ]
    ]
):
    """One line of the answer to a prediction request."""


def packed(array: NDArray[Any]) -> str:
    """Return an array's bytes, deflated, in base64."""
    contiguous = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(contiguous.tobytes(), 1)).decode()


def as_bytes(values: NDArray[np.floating[Any]], top: float = 1.0) -> NDArray[np.uint8]:
    """Return values of 0 to `top` as 0 to 255."""
    scaled: NDArray[np.uint8] = np.rint(np.clip(values / top, 0, 1) * 255).astype(np.uint8)
    return scaled
