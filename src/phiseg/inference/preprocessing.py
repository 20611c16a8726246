"""preprocessing.json of a model folder: properties of the training images, to prepare others in the same way."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from phiseg.core.config import StrictConfig
from phiseg.core.errors import ConfigError, DataError, ModelError
from phiseg.core.random import derive_seed
from phiseg.data.intensity import Intensity
from phiseg.data.manifest import SlicePlane
from phiseg.data.store import Dataset
from phiseg.inference.usual_values import MAX_IMAGES, UsualValues
from phiseg.models import Segmenter

PATCH_DEPTH = 16
"""Slices of a patch for a 3-D model whose training patches are unknown."""

Range = tuple[NonNegativeFloat, NonNegativeFloat]
"""Smallest and largest value."""


class SliceCoupling(StrictConfig):
    """Coupling of the slices of a sample; see `SliceNoise`. By default all slices have the same noise."""

    length_mm: NonNegativeFloat | None = None
    """Distance over which the noise changes along the slices; None for constant noise."""
    shared: float = Field(default=0.0, ge=0, le=1)
    """Share of the noise variance that is constant along the slices."""


class VolumeCheck(StrictConfig):
    """Measured agreement between the volumes of samples and of annotators."""

    dataset: str
    num_lesions: PositiveInt
    num_annotators: PositiveInt
    coverage: float = Field(ge=0, le=1)
    """Share of the volumes of annotators inside the 90 % interval of the samples."""
    noise: tuple[float, ...] = ()
    """Temperatures of the noise in this measurement, as in `Calibration.noise`."""
    weights: str = "this model"
    """The weights that were checked, if they are not those of the model itself."""


class TrainingDataset(StrictConfig):
    """The training dataset of a model; empty strings if it is unknown."""

    name: str = ""
    fingerprint: str = ""
    """`Dataset.fingerprint`."""


class Preprocessing(StrictConfig):
    """The content of preprocessing.json in a model folder: properties of the training images.

    Training writes it with `to_json`. All other code reads it with `of`.
    """

    classes: tuple[str, ...] = Field(min_length=2)
    """Class names, background first."""
    image_channels: PositiveInt
    has_colours: bool = False
    """Whether the three channels are red, green and blue."""
    is_resized: bool = False
    """Whether the training images were resized to `size` from any size. Other images are resized alike."""
    size: tuple[PositiveInt, PositiveInt]
    """Height and width of the training images."""
    patch_size: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None
    """Slices, height and width of the training patches of a 3-D model; None for a 2-D model."""
    spacing_mm: tuple[PositiveFloat, PositiveFloat] | None = None
    """Pixel spacing (vertical, horizontal) in mm; None if it differs between images."""
    intensity: Intensity
    plane: SlicePlane | None = None
    """Plane of the slices; None if unknown."""
    centred_on: str | None = None
    """Object at the centre of every image; None for whole slices."""
    modality: str | None = None
    """DICOM modality of the images (CT, MR, PT); None if unknown."""
    spacing_range_mm: Range | None = None
    """Smallest and largest pixel spacing of the training images; None if unknown."""
    thickness_range_mm: Range | None = None
    """Smallest and largest slice thickness of the training images (slice distance of volumes); None if unknown."""
    usual_values: UsualValues | None = None
    """Usual values of images around a lesion; None for whole slices or if unknown."""
    slice_coupling: SliceCoupling = SliceCoupling()
    volume_check: VolumeCheck | None = None
    dataset: TrainingDataset = TrainingDataset()

    @classmethod
    def of_dataset(cls, dataset: Dataset, *, patch_size: Sequence[int] | None = None) -> Self:
        """Return the properties of the training images of a dataset, or of patches (D, H, W) of its volumes."""
        info = dataset.info
        rows = dataset.rows("train")
        spacings = [spacing for row in rows if (spacing := dataset.spacing_mm(row))]
        thicknesses = [thickness for row in rows if (thickness := _slice_mm(dataset, row))]
        return cls(
            classes=info.classes,
            image_channels=info.image_channels,
            has_colours=dataset.has_colours,
            is_resized=dataset.is_resized and info.centred_on is None,
            size=info.size,
            patch_size=patch_size,
            spacing_mm=info.spacing_mm,
            intensity=info.intensity,
            plane=info.plane,
            centred_on=info.centred_on,
            modality=info.modality,
            spacing_range_mm=_range([mm for spacing in spacings for mm in spacing]),
            thickness_range_mm=_range(thicknesses),
            usual_values=_usual_values(dataset, rows) if info.centred_on else None,
            dataset=TrainingDataset(name=info.name, fingerprint=dataset.fingerprint),
        )

    @classmethod
    def of(cls, model: Segmenter) -> Self:
        """Return the preprocessing of `model`.

        Raises:
            ModelError: the model has no preprocessing, or it is invalid.
        """
        if not model.preprocessing:
            raise ModelError("the model has no preprocessing; load a model folder written by a training")
        try:
            return cls.parse(model.preprocessing, where="preprocessing.json")
        except ConfigError as error:
            raise ModelError(f"{error}; copy the model folder again") from None

    @classmethod
    def find(cls, model: Segmenter) -> Self | None:
        """Return the preprocessing of `model`, or None if it was not loaded from a folder."""
        return cls.of(model) if model.preprocessing else None

    def to_json(self) -> dict[str, Any]:
        """Return the content of preprocessing.json."""
        return self.model_dump(mode="json")

    @property
    def inference_patch_size(self) -> tuple[int, int, int]:
        """Slices, height and width of the parts of a scan that the network processes at once."""
        return self.patch_size or (PATCH_DEPTH, *self.size)

    def network_spacing_mm(self, own: tuple[float, float]) -> tuple[float, float]:
        """Return the pixel spacing (vertical, horizontal) that a scan of the given spacing is resampled to.

        It is the spacing of all training images, or the nearest in their range, or otherwise that of the scan.
        """
        if self.spacing_mm is not None or self.spacing_range_mm is None:
            return self.spacing_mm or own
        vertical, horizontal = (float(np.clip(mm, *self.spacing_range_mm)) for mm in own)
        return vertical, horizontal

    def check_modality(self, series_modality: str, *, name: str) -> None:
        """Check that a series has the modality of the training images.

        Raises:
            DataError: it has another modality. A model without a modality accepts any.
        """
        if self.modality is not None and series_modality != self.modality:
            raise DataError(
                f"{name} has modality {series_modality or '(none)'}, but the model was trained on {self.modality}; "
                f"use a {self.modality} series, or a model for this modality"
            )


def _slice_mm(dataset: Dataset, row: int) -> float | None:
    """Return the thickness of a slice, or the distance between the slices of a volume."""
    spacing = dataset.voxel_spacing_mm(row) if dataset.dims == 3 else None
    return spacing[0] if spacing else dataset.thickness_mm(row)


def _range(values: Sequence[float]) -> Range | None:
    return (min(values), max(values)) if values else None


def _usual_values(dataset: Dataset, rows: NDArray[np.int64]) -> UsualValues | None:
    """Return the usual values of a fixed subset of images of a dataset."""
    if len(rows) > MAX_IMAGES:
        rows = np.random.default_rng(derive_seed(0, "usual values")).choice(rows, MAX_IMAGES, replace=False)
    return UsualValues.of([dataset.image(int(row)) for row in rows])
