"""What a model's images looked like in training, and how a volume is made to look the same.

Shapes: N slices of H x W pixels, C channels, K classes; h x w pixels of what the network sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from phiseg.core.config import StrictConfig
from phiseg.core.errors import ConfigError, DataError, ModelError
from phiseg.core.random import derive_seed
from phiseg.data.intensity import Intensity, normalise, zscored
from phiseg.data.neighbours import with_neighbours
from phiseg.data.store import Dataset, SlicePlane
from phiseg.imaging.frame import Frame, cut
from phiseg.imaging.volume import Plane, Volume, coarsest_plane, to_slices
from phiseg.inference.plausibility import MAX_IMAGES, UsualValues
from phiseg.models import Segmenter

MIN_INSIDE = 0.01
"""The share of voxels inside of a model's window below which their unit is in doubt."""


Range = tuple[NonNegativeFloat, NonNegativeFloat]
"""The smallest and the largest of something."""


class SliceCoupling(StrictConfig):
    """How the slices of one sample belong together; see `SliceNoise`. By default all have the same noise."""

    length_mm: NonNegativeFloat | None = None
    """How soon the noise changes along the slices; None: never."""
    shared: float = Field(default=0.0, ge=0, le=1)
    """Share of the noise's variance that does not change along the slices."""


class VolumeCheck(StrictConfig):
    """How well the samples' volumes agreed with those of annotators, where that was measured."""

    dataset: str
    num_lesions: PositiveInt
    num_annotators: PositiveInt
    coverage: float = Field(ge=0, le=1)
    """Share of the annotators' volumes inside of the samples' 90 % interval."""


class TrainingDataset(StrictConfig):
    """The dataset that a model was trained on; empty texts where it is not known."""

    name: str = ""
    fingerprint: str = ""
    """`Dataset.fingerprint`."""


class Preprocessing(StrictConfig):
    """The content of a model folder's preprocessing.json: what the training images had in common.

    Training writes it with `to_json`. Everything that reads it goes through `of`.
    """

    classes: tuple[str, ...] = Field(min_length=2)
    """Class names, the background first."""
    image_channels: PositiveInt
    size: tuple[PositiveInt, PositiveInt]
    """Height and width of the training images."""
    spacing_mm: tuple[PositiveFloat, PositiveFloat] | None = None
    """Millimetres per pixel (vertical, horizontal); None where every image had its own."""
    intensity: Intensity
    plane: SlicePlane | None = None
    """How volumes were sliced; None where nobody said."""
    centred_on: str | None = None
    """What every image was centred on; None for whole slices."""
    modality: str | None = None
    """What made the images, as DICOM names it (CT, MR, PT); None where nobody said."""
    spacing_range_mm: Range | None = None
    """Smallest and largest pixel spacing of the training images; None where it is not known."""
    thickness_range_mm: Range | None = None
    """Smallest and largest slice thickness of the training images; None where it is not known."""
    usual_values: UsualValues | None = None
    """What values images around a lesion have; None for whole slices, or where it is not known."""
    slice_coupling: SliceCoupling = SliceCoupling()
    volume_check: VolumeCheck | None = None
    dataset: TrainingDataset = TrainingDataset()

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> Self:
        """Return what the training images of a dataset have in common."""
        info = dataset.info
        rows = dataset.rows("train")
        spacings = [spacing for row in rows if (spacing := dataset.spacing_mm(row))]
        thicknesses = [thickness for row in rows if (thickness := dataset.thickness_mm(row))]
        return cls(
            classes=info.classes,
            image_channels=info.image_channels,
            size=info.size,
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
        """Return how images must be prepared for `model`.

        Raises:
            ModelError: the model does not say, or does not make sense.
        """
        if not model.preprocessing:
            raise ModelError("the model does not say how its images were prepared; load one that a training wrote")
        try:
            return cls.parse(model.preprocessing, where="preprocessing.json")
        except ConfigError as error:
            raise ModelError(f"{error}; copy the model folder again") from None

    @classmethod
    def find(cls, model: Segmenter) -> Self | None:
        """Return the same as `of`, or None for a model that was not loaded from a folder."""
        return cls.of(model) if model.preprocessing else None

    def to_json(self) -> dict[str, Any]:
        """Return the content of preprocessing.json."""
        return self.model_dump(mode="json")

    def network_spacing_mm(self, own: tuple[float, float]) -> tuple[float, float]:
        """Return the pixel spacing (vertical, horizontal) at which the network sees a scan of some spacing.

        It is that of all training images, or the nearest within their range, or the scan's own.
        """
        if self.spacing_mm is not None or self.spacing_range_mm is None:
            return self.spacing_mm or own
        vertical, horizontal = (float(np.clip(mm, *self.spacing_range_mm)) for mm in own)
        return vertical, horizontal

    def check_modality(self, series_modality: str, *, name: str) -> None:
        """Refuse a series that another kind of machine made than the training images.

        Raises:
            DataError: with both modalities; a model that does not say its own takes any.
        """
        if self.modality is not None and series_modality != self.modality:
            raise DataError(
                f"{name} has the modality {series_modality or '(none)'}, the model was trained on {self.modality}; "
                f"give a {self.modality} series, or a model for this one"
            )


@dataclass(frozen=True)
class PreparedStack:
    """A volume as slices in the model's plane, with its rule for intensities at hand."""

    volume: Volume
    """The scan as it was read, (I, J, K) or (I, J, K, C)."""
    stack: Volume
    """Values (N, H, W, C), and the affine from (slice, row, column) to the world."""
    plane: Plane
    preprocessing: Preprocessing
    name: str
    warnings: tuple[str, ...] = ()
    """What the user should know before believing a prediction; one line each."""
    is_prepared: bool = False
    """Whether the values are those of a prepared dataset, where z-scores are taken already."""

    @classmethod
    def of(
        cls,
        volume: Volume,
        preprocessing: Preprocessing,
        *,
        name: str,
        modality: str | None = None,
        is_prepared: bool = False,
        resample: bool = True,
    ) -> Self:
        """Slice a volume (I, J, K) or (I, J, K, C).

        Args:
            volume: the scan.
            preprocessing: of the model.
            name: of the scan, for messages.
            modality: of the scan, as DICOM names it; None where nothing tells.
            is_prepared: the values are those of a prepared dataset.
            resample: resample a scan whose pixel spacing lies outside of the range of the training images; else it
                is refused.

        Raises:
            DataError: it is no volume, has not the model's modality, channels or spacing, or its voxels are not
                finite, all the same, or too large for the network.
        """
        if modality is not None:
            preprocessing.check_modality(modality, name=name)
        values = volume.values[..., None] if volume.values.ndim == 3 else volume.values
        if values.ndim != 4 or not values.size:
            raise DataError(f"{name} has the shape {volume.values.shape}; give voxels (I, J, K) or (I, J, K, C)")
        if values.shape[3] != preprocessing.image_channels:
            raise DataError(
                f"{name} has {values.shape[3]} channels, the model takes {preprocessing.image_channels}; "
                "give the scan that it was trained for"
            )
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise DataError(f"{name} has NaN or infinite voxels; repair the image or leave it out")
        if values.min() == values.max() and not is_prepared:
            raise DataError(f"{name} is empty: every voxel is {float(values.flat[0]):g}; check the scan")
        if values.dtype.kind == "f" and np.abs(values).max() > np.finfo(np.float32).max:
            raise DataError(f"{name} has values beyond those of 32 bits; check its unit and scaling")
        plane = preprocessing.plane or "auto"
        chosen = coarsest_plane(volume) if plane == "auto" else plane
        stack = to_slices(Volume(values, volume.affine), chosen)
        warnings = () if is_prepared else _unit_warnings(values, preprocessing.intensity)
        warnings = (*warnings, *_spacing_warnings(stack, preprocessing, name=name, resample=resample))
        return cls(volume, stack, chosen, preprocessing, name, warnings, is_prepared)

    @property
    def step(self) -> tuple[float, float]:
        """How many pixels of a slice one pixel of the network's image is, along rows' and columns' axes."""
        return _step(self.stack, self.preprocessing)

    @cached_property
    def _scale(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and standard deviation of each channel over the volume."""
        values = self.stack.values
        mean = values.mean(axis=(0, 1, 2), dtype=np.float64)
        deviation = values.std(axis=(0, 1, 2), dtype=np.float64)
        return mean, np.where(deviation > 0, deviation, 1)

    def normalised(self, slices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return some slices in the network's range, (len(slices), C, H, W)."""
        values = self._values(slices)
        intensity = self.preprocessing.intensity
        if intensity.kind == "window" or self.is_prepared:
            return normalise(values, intensity)
        if intensity.kind == "image_zscore":
            return np.stack([zscored(image) for image in values])
        mean, deviation = (part[:, None, None] for part in self._scale)
        return ((values - mean) / deviation).astype(np.float32)

    def images(self, slices: NDArray[np.int64], frame: Frame, *, context: int = 0) -> NDArray[np.float32]:
        """Return what the network sees: a frame of some slices with their neighbours, (n, C * (1 + 2c), h, w).

        Where a neighbour would lie outside the scan, the slice itself stands in for all of them, as in training.

        Args:
            slices: their numbers, n of them.
            frame: what is cut out.
            context: c, the number of neighbours on each side.
        """
        stacks = with_neighbours(slices, self.stack.grid[0], context)  # (n, 1 + 2c)
        needed, places = np.unique(stacks, return_inverse=True)
        images = self._slice_images(needed, frame)[places.reshape(stacks.shape)]  # (n, 1 + 2c, C, h, w)
        return images.reshape(len(slices), -1, *images.shape[3:])

    def _slice_images(self, slices: NDArray[np.int64], frame: Frame) -> NDArray[np.float32]:
        """Return a frame of some slices in the network's range, (n, C, h, w).

        As in training, a window clips what was resampled; z-scores are those of the volume or the slice before it.
        Where the training images were crops, each with a z-score of its own, so is what is cut out here.
        """
        intensity = self.preprocessing.intensity
        if intensity.kind == "zscore":
            return cut(self.normalised(slices), frame, fill=0, interpolation="linear")
        if intensity.kind == "image_zscore":
            of_the_cut = self.preprocessing.centred_on is not None and not self.is_prepared
            images = self._values(slices).astype(np.float32) if of_the_cut else self.normalised(slices)
            parts = [cut(image, frame, fill=float(image.min()), interpolation="linear") for image in images]
            return np.stack([zscored(part) if of_the_cut else part for part in parts])
        assert intensity.low is not None
        values = self._values(slices).astype(np.float32)
        return normalise(cut(values, frame, fill=intensity.low, interpolation="linear"), intensity)

    def _values(self, slices: NDArray[np.int64]) -> NDArray[Any]:
        """Return some slices as they were read, (len(slices), C, H, W)."""
        return np.moveaxis(self.stack.values[slices], 3, 1)


def _step(stack: Volume, preprocessing: Preprocessing) -> tuple[float, float]:
    _, *own = stack.spacing_mm
    wanted = preprocessing.network_spacing_mm((own[0], own[1]))
    row, column = (1.0 if abs(w / o - 1) < 1e-4 else w / o for w, o in zip(wanted, own, strict=True))
    return row, column


def _spacing_warnings(stack: Volume, preprocessing: Preprocessing, *, name: str, resample: bool) -> tuple[str, ...]:
    """Return a line where pixels or slices are smaller or larger than any that the model was trained on.

    Raises:
        DataError: the pixels are, and may not be resampled.
    """
    warnings = []
    distance, vertical, horizontal = stack.spacing_mm
    pixels, thickness = preprocessing.spacing_range_mm, preprocessing.thickness_range_mm
    if pixels and preprocessing.spacing_mm is None and _step(stack, preprocessing) != (1.0, 1.0):
        own = f"pixels of {vertical:.3g} x {horizontal:.3g} mm"
        usual = f"{pixels[0]:.3g} to {pixels[1]:.3g} mm"
        if not resample:
            raise DataError(
                f"{name} has {own}, and the model was trained on {usual}; give a scan within that range, or allow "
                "resampling (without --strict-spacing)"
            )
        row, column = preprocessing.network_spacing_mm((vertical, horizontal))
        warnings.append(
            f"it has {own}, and the model was trained on {usual}: the network sees it resampled to "
            f"{row:.3g} x {column:.3g} mm, and results are on the scan's own grid"
        )
    if thickness and stack.grid[0] > 1 and not thickness[0] * 0.999 <= distance <= thickness[1] * 1.001:
        warnings.append(
            f"its slices are {distance:.3g} mm apart, and those of the training images were {thickness[0]:.3g} to "
            f"{thickness[1]:.3g} mm thick: the samples may be less reliable"
        )
    return tuple(warnings)


def _range(values: Sequence[float]) -> Range | None:
    return (min(values), max(values)) if values else None


def _usual_values(dataset: Dataset, rows: NDArray[np.int64]) -> UsualValues | None:
    """Return what values some images of a dataset have, always the same ones."""
    if len(rows) > MAX_IMAGES:
        rows = np.random.default_rng(derive_seed(0, "usual values")).choice(rows, MAX_IMAGES, replace=False)
    return UsualValues.of([dataset.image(int(row)) for row in rows])


def _unit_warnings(values: NDArray[Any], intensity: Intensity) -> tuple[str, ...]:
    """Return a line where values do not look like those of the model's window.

    Nearly everything would be clipped, such as Hounsfield units by a window of 0 to 1; or nothing is negative where
    the window is, such as grey values for one of Hounsfield units.
    """
    if intensity.low is None or intensity.high is None:
        return ()
    if intensity.low < 0 <= values.min():
        return (
            f"none of its values, {values.min():g} to {values.max():g}, is below 0, and the model's window begins "
            f"at {intensity.low:g}: a picture, or CT without its offset, makes the samples meaningless; check them",
        )
    inside = float(np.mean((values > intensity.low) & (values < intensity.high)))
    if inside >= MIN_INSIDE:
        return ()
    return (
        f"only {inside:.1%} of its voxels lie in the model's window, {intensity.low:g} to {intensity.high:g}: "
        f"its values, {values.min():g} to {values.max():g}, look as if they were in another unit; check them",
    )
