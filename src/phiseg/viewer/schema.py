"""Messages between the page and the server. Arrays are little-endian, in row order, deflated and base64-encoded.

Shapes: S samples, K classes, L latent levels, N parts of the noise (the levels; also the presence and an
ensemble's member, if the model has them), A annotators; a box has h x w pixels of a slice.
"""

import base64
import zlib
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, RootModel

MAX_SAMPLES = 100


class Message(BaseModel):
    """A message between page and server; unknown keys are rejected.

    The types of the page, web/src/schema.ts, are generated from these classes and their docstrings.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelInfo(Message):
    """The model of the viewer."""

    name: str
    dims: int
    """2 for a model of slices, 3 for a model of volumes."""
    classes: list[str]
    """Class names, background first."""
    num_levels: int
    """Latent levels L; 0 for a model without a hierarchy."""
    noise_names: list[str]
    """Names of the N parts of the noise that can be held and redrawn separately: the levels, fine to coarse, which
    also have a temperature, then `presence` and `member` (of an ensemble), if any; empty without a hierarchy."""
    centred_on: str | None
    """Object to click on; None for a whole-slice model."""
    size: tuple[int, int]
    window: tuple[float, float] | None
    """Darkest and brightest value of the intensity window; None if images are z-scored."""


class PlaneInfo(Message):
    """A plane through a scan, in radiological display convention."""

    name: str
    axes: tuple[int, int, int]
    """Axes of the scan (0 slices, 1 rows, 2 columns) across the plane, down and to the right."""
    flipped: tuple[bool, bool]
    """Whether the axis down and the axis to the right are shown in reverse."""


class ScanInfo(Message):
    """A scan, or a case of a prepared dataset, as slices in the plane of the model."""

    id: str
    name: str
    num_slices: int
    height: int
    width: int
    spacing_mm: tuple[float, float, float]
    """Distances in mm between slices, rows and columns."""
    has_spacing: bool
    is_dicom: bool
    """Whether the scan is a DICOM series, to which a DICOM SEG can refer."""
    split: str | None
    """Split of a case of a prepared dataset; None for other scans."""
    file_stem: str
    """Start of the names of exported files."""
    has_colours: bool
    """Whether the three channels are red, green and blue. Otherwise, the first channel is shown."""
    plane: str
    planes: tuple[PlaneInfo, PlaneInfo, PlaneInfo]
    """The plane of the model and the two others."""
    value_range: tuple[float, float]
    window: tuple[float, float]
    """Initial intensity window."""
    annotators: list[str]
    """Names of the annotators; empty for a scan."""
    start: tuple[int, int, int]
    """Slice, row and column to show first: the centre, or the lesion of the example."""
    warnings: list[str]
    """Warnings about the scan, one line each."""


class PackedAnnotations(Message):
    """The annotations of a case."""

    annotators: list[str]
    labels: str | None
    """uint8 (A, slices, height, width) of a case; None for a scan."""


class ListedScan(Message):
    """A scan in the list of the page."""

    id: str
    name: str
    split: str | None
    """Split of a case of a prepared dataset; None for other scans."""


class SessionInfo(Message):
    """Initial data of the page."""

    version: str
    model: ModelInfo
    scans: list[ScanInfo]
    """The first scan that can be read."""
    listed: list[ListedScan]
    """All scans. The cases of a dataset start with the test split."""
    max_samples: int = MAX_SAMPLES
    max_upload_bytes: int
    max_scans: int


class LevelControl(Message):
    """Settings of one part of the noise: a latent level, the presence, or the member of an ensemble."""

    seed: int = Field(default=0, ge=0, le=2**31)
    """Seed of this part; another number redraws only this part."""
    hold: bool = False
    """Use the noise of the first sample for all samples."""
    temperature: float = Field(default=1.0, ge=0, le=4)
    """Factor on the noise of a level; 1 for other parts."""


class PredictionRequest(Message):
    """Point and sampling settings of a prediction."""

    scan: str
    point: Annotated[list[int], Field(min_length=3, max_length=3)]
    """Slice, row and column of the point."""
    num_samples: int = Field(default=16, ge=1, le=MAX_SAMPLES)
    seed: int = Field(default=0, ge=0, le=2**31)
    levels: list[LevelControl] = Field(default_factory=list, max_length=32)
    """Settings for each of `ModelInfo.noise_names`; empty for no changes."""


class Box(Message):
    """Position of an array in a slice."""

    row: int
    column: int
    height: int
    width: int


class Queued(Message):
    """Position in the queue."""

    type: Literal["queued"] = "queued"
    ahead: int


class Samples(Message):
    """Some samples of the clicked slice."""

    type: Literal["samples"] = "samples"
    first: int
    number: int
    box: Box
    labels: str
    """uint8 (number, h, w) class indices."""


class SliceSummary(Message):
    """Summary of all samples of the clicked slice."""

    type: Literal["slice"] = "slice"
    box: Box
    mean_probs: str
    """uint8 (K-1, h, w) mean probabilities; 255 is a probability of 1."""
    gamma: str
    """uint8 (h, w) gamma map; 255 is `gamma_max`."""
    gamma_max: float


class LevelSummary(Message):
    """The levels in the clicked slice, in the box of `SliceSummary`; not sent for a model without levels."""

    type: Literal["levels"] = "levels"
    shares: str | None
    """uint8 (N, h, w) share of each of `ModelInfo.noise_names` in the uncertainty of a pixel; 255 is 100 %. None if
    there is only one."""
    totals: dict[str, float] | None
    """Share of each of `ModelInfo.noise_names` in the uncertainty of the slice."""
    outputs: str | None
    """uint8 (L, h, w) foreground probability after each level of the first sample, fine to coarse."""


class Spread(Message):
    """Distribution of a quantity over the samples."""

    median: float
    low: float
    high: float
    samples: list[float]


class ClassNumbers(Message):
    """Measurements of one class."""

    present: float
    """Share of the samples that contain the class."""
    size: Spread
    """Volume or area over all samples; one without the class counts as zero."""
    diameter: Spread
    """Over all samples; one without the class counts as zero."""
    size_if_present: Spread | None
    """Over the samples that contain the class; None if there are none."""
    diameter_if_present: Spread | None
    """Over the samples that contain the class; None if there are none."""


class Numbers(Message):
    """Measurements of the whole lesion or scan."""

    type: Literal["numbers"] = "numbers"
    classes: dict[str, ClassNumbers]
    size_unit: Literal["ml", "px", "voxels"]
    """Pixels of an area or voxels of a volume if the pixel size is unknown."""
    length_unit: Literal["mm", "px"]
    mean_gamma: float
    agreement: float
    truncated: float
    """Share of the samples that are cut off by the crop, the reach or the end of the scan and may be too small."""
    unusual: str | None
    """Why the image around the point does not look like a training image; None if it does, or if the model does not
    state what its training images look like."""


class LesionSlices(Message):
    """The samples in all slices of the lesion or, for a whole-slice model, in all slices of a small scan.

    In a large scan, such a model predicts only the clicked slice.
    """

    type: Literal["volume"] = "volume"
    first_slice: int
    num_slices: int
    box: Box
    labels: str
    """uint8 (S, slices, h, w)."""
    mean_probs: str
    """uint8 (K-1, slices, h, w)."""
    gamma: str
    """uint8 (slices, h, w) gamma map; 255 is `gamma_max`."""
    gamma_max: float


class CaseScores(Message):
    """Scores of the samples against the annotations of a case."""

    type: Literal["scores"] = "scores"
    ged: float | None
    ged_floor: float | None
    s_ncc: float | None
    dice: float | None


class Done(Message):
    """End of the answer; `id` identifies the prediction for exports."""

    type: Literal["done"] = "done"
    id: str


class Failed(Message):
    """Error that ends the answer."""

    type: Literal["error"] = "error"
    message: str


class StreamedMessage(
    RootModel[
        Annotated[
            Queued | Samples | SliceSummary | Numbers | LesionSlices | CaseScores | LevelSummary | Done | Failed,
            Field(discriminator="type"),
        ]
    ]
):
    """One line of the answer to a prediction request."""


def packed(array: NDArray[Any]) -> str:
    """Return the bytes of an array, deflated and base64-encoded."""
    contiguous = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(contiguous.tobytes(), 1)).decode()


def as_bytes(values: NDArray[np.floating[Any]], top: float = 1.0) -> NDArray[np.uint8]:
    """Return values from 0 to `top` as 0 to 255."""
    scaled: NDArray[np.uint8] = np.rint(np.clip(values / top, 0, 1) * 255).astype(np.uint8)
    return scaled
