"""The manifest of a prepared dataset, `dataset.json`.

A dataset contains images (`dims` 2) or volumes (`dims` 3). The slices of all volumes are stored one after the
other. The volumes have the same height and width, and their numbers of slices are the column `depth` of cases.csv.
"""

from typing import Literal, Self

from pydantic import Field, JsonValue, model_validator

from phiseg.core.config import StrictConfig
from phiseg.core.formats import DATASET
from phiseg.data.intensity import Intensity

MISSING = 255
"""Label value of missing annotations."""


class ArrayInfo(StrictConfig):
    """A .npy file: SHA-256 of the array in C order (without the header), shape and type."""

    sha256: str
    shape: tuple[int, ...]
    dtype: str


SlicePlane = Literal["axial", "coronal", "sagittal", "auto"]


class DatasetInfo(StrictConfig):
    """The manifest, `dataset.json`."""

    format: str = DATASET.name
    version: int = DATASET.version
    name: str
    dims: Literal[2, 3] = 2
    """2: each case is an image, 3: each case is a volume. Version 1 of the format has images only."""
    classes: tuple[str, ...] = Field(min_length=2, max_length=MISSING)
    """Class names, background first."""
    num_annotators: int = Field(ge=1)
    image_channels: int = Field(ge=1)
    size: tuple[int, int]
    """Height and width of the images or slices in pixels."""
    spacing_mm: tuple[float, float] | None = None
    """Pixel spacing (vertical, horizontal) in mm, if all cases have the same."""
    intensity: Intensity
    plane: SlicePlane | None = None
    """Plane of the slices, if known (`auto`: perpendicular to the axis of the widest spacing)."""
    centred_on: str | None = None
    """Object at the centre of every image, such as `nodule`; None for whole slices."""
    modality: str | None = None
    """DICOM modality of the images (CT, MR, PT), if known."""
    seed: int | None = None
    source: dict[str, JsonValue] = Field(default_factory=dict)
    """Description of the source: hashes of files, or the kind of phantom."""
    command: str = ""
    arrays: dict[Literal["images", "labels", "valid"], ArrayInfo]

    @model_validator(mode="after")
    def _arrays_fit(self) -> Self:
        lengths = {key: next(iter(info.shape), 0) for key, info in self.arrays.items()}
        num_slices, num_cases = lengths.get("images", 0), lengths.get("valid", 0)
        expected: dict[str, tuple[int, ...]] = {
            "images": (num_slices, self.image_channels, *self.size),
            "labels": (num_slices, self.num_annotators, *self.size),
            "valid": (num_cases, self.num_annotators),
        }
        fits = 1 <= num_cases <= num_slices and (self.dims == 3 or num_cases == num_slices)
        if not fits or {key: info.shape for key, info in self.arrays.items()} != expected:
            raise ValueError("the shapes of the arrays do not match the number of annotators, channels and pixels")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("two classes have the same name")
        return self
