"""Preparation of a volume for a model, in the same way as its training images.

Shapes: N slices of H x W pixels, C channels; n slices of h x w pixels of what the network sees.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from phiseg.core.errors import DataError
from phiseg.data.intensity import Intensity, normalise, zscored
from phiseg.data.neighbours import with_neighbours
from phiseg.imaging.frame import Frame, crop
from phiseg.imaging.pictures import fitted, fitted_place
from phiseg.imaging.volume import Plane, Volume, coarsest_plane, to_slices
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.scans import Scan, ScanFile, read_scan

COARSE = 2.0
"""Pixel size of a scan, relative to the fixed pixel size of a model, above which a warning is given."""
MIN_INSIDE = 0.01
"""Share of voxels inside the window of a model below which a warning about their unit is given."""


@dataclass(frozen=True)
class PreparedStack:
    """A volume as slices in the plane of the model, with its intensity rule."""

    volume: Volume
    """The scan as it was read, (I, J, K) or (I, J, K, C)."""
    stack: Volume
    """Values (N, H, W, C), and the affine from (slice, row, column) to world coordinates."""
    plane: Plane
    preprocessing: Preprocessing
    name: str
    warnings: tuple[str, ...] = ()
    """Warnings for the user, one line each."""
    is_prepared: bool = False
    """Whether the values are from a prepared dataset, where they are already z-scored."""
    has_spacing: bool = True
    """False if the pixel size is unknown and only assumed."""

    @classmethod
    def of(
        cls,
        volume: Volume,
        preprocessing: Preprocessing,
        *,
        name: str,
        modality: str | None = None,
        thickness_mm: float | None = None,
        is_prepared: bool = False,
        resample: bool = True,
        strict_intensity: bool = False,
        has_spacing: bool = True,
    ) -> Self:
        """Slice a volume (I, J, K) or (I, J, K, C).

        Args:
            volume: scan.
            preprocessing: preprocessing of the model.
            name: name of the scan for messages.
            modality: DICOM modality of the scan; None if unknown.
            thickness_mm: thickness of the slices (I, J), which may differ from their distance; None if unknown.
            is_prepared: whether the values are from a prepared dataset.
            resample: resample a scan whose pixel spacing is outside the range of the training images; otherwise it
                is rejected, and so is one whose slice distance or thickness is outside their range.
            strict_intensity: reject a scan whose values do not match the window of the model.
            has_spacing: whether the pixel size is known, not assumed.

        Raises:
            DataError: the scan has another shape, modality, number of channels, spacing or intensity range, or its
                voxels are not finite, all equal, or too large.
        """
        if modality is not None:
            preprocessing.check_modality(modality, name=name)
        values = volume.values[..., None] if volume.values.ndim == 3 else volume.values
        if values.ndim != 4 or not values.size:
            raise DataError(f"{name} has shape {volume.values.shape}; it must be (I, J, K) or (I, J, K, C)")
        if values.shape[3] != preprocessing.image_channels:
            channels = preprocessing.image_channels
            fix = "use a scan like the training data"
            if channels > 1:
                fix += ", with the channels of all files in the fourth dimension of one file, in the same order"
            raise DataError(f"{name} has {values.shape[3]} channels, but the model takes {channels}; {fix}")
        low, high = values.min(), values.max()  # NaN if a voxel is
        if not np.isfinite([low, high]).all():
            raise DataError(f"{name} has NaN or infinite voxels; fix or remove the image")
        if low == high and not is_prepared:
            raise DataError(f"{name} is empty: every voxel is {float(low):g}; check the scan")
        if values.dtype.kind == "f" and max(-low, high) > np.finfo(np.float32).max:
            raise DataError(f"{name} has values beyond the range of 32 bits; check its unit and scaling")
        plane = preprocessing.plane or "auto"
        chosen = coarsest_plane(volume) if plane == "auto" else plane
        stack = to_slices(Volume(values, volume.affine), chosen)
        warnings = () if is_prepared else _unit_warnings(stack.values, low, high, preprocessing.intensity)
        if warnings and strict_intensity:
            raise DataError(f"{name} is rejected by --strict-intensity: {warnings[0]}")
        if np.cross(volume.affine[:3, 2], stack.affine[:3, 0]).any():  # cuts across the slices of the file
            thickness_mm = None
        warnings += _spacing_warnings(stack, preprocessing, name=name, resample=resample, thickness_mm=thickness_mm)
        return cls(volume, stack, chosen, preprocessing, name, warnings, is_prepared, has_spacing)

    @property
    def step(self) -> tuple[float, float]:
        """Pixels of a slice per pixel of the network's image (vertical, horizontal)."""
        frame = self.fitted_frame
        return frame.step if frame else _step(self.stack, self.preprocessing)

    @property
    def fitted_frame(self) -> Frame | None:
        """The frame of whole pictures that are resized and padded as in training; None if they are not."""
        if not self.preprocessing.is_resized:
            return None
        size = self.preprocessing.size
        resized, margins = fitted_place(self.stack.grid[1:], size)
        steps = [length / new for length, new in zip(self.stack.grid[1:], resized, strict=True)]
        origin = [(step - 1) / 2 - step * margin for step, margin in zip(steps, margins, strict=True)]
        return Frame((origin[0], origin[1]), (steps[0], steps[1]), size)

    @cached_property
    def _scale(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and standard deviation of each channel over the volume."""
        values = self.stack.values
        mean = values.mean(axis=(0, 1, 2), dtype=np.float64)
        deviation = values.std(axis=(0, 1, 2), dtype=np.float64)
        return mean, np.where(deviation > 0, deviation, 1)

    def normalised(self, slices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return slices in the range of the network's input, (len(slices), C, H, W)."""
        values = self._values(slices)
        intensity = self.preprocessing.intensity
        if intensity.kind == "window" or self.is_prepared:
            return normalise(values, intensity)
        if intensity.kind == "image_zscore":
            return np.stack([zscored(image) for image in values])
        mean, deviation = (part[:, None, None] for part in self._scale)
        return ((values - mean) / deviation).astype(np.float32)

    def images(self, slices: NDArray[np.int64], frame: Frame, *, context: int = 0) -> NDArray[np.float32]:
        """Return the network's input: a frame of slices with their neighbours, (n, C * (1 + 2c), h, w).

        If a neighbour is outside the scan, all neighbours are replaced by the slice itself, as in training.

        Args:
            slices: numbers of the n slices.
            frame: crop of the slices.
            context: c, the number of neighbours on each side.
        """
        stacks = with_neighbours(slices, self.stack.grid[0], context)  # (n, 1 + 2c)
        needed, places = np.unique(stacks, return_inverse=True)
        images = self._slice_images(needed, frame)[places.reshape(stacks.shape)]  # (n, 1 + 2c, C, h, w)
        return images.reshape(len(slices), -1, *images.shape[3:])

    def _slice_images(self, slices: NDArray[np.int64], frame: Frame) -> NDArray[np.float32]:
        """Return a frame of slices in the range of the network's input, (n, C, h, w).

        As in training, a window clips the resampled values, and z-scores are computed from the volume or the slice
        before resampling. If the training images were crops with individual z-scores, the z-score is that of the
        frame.
        """
        intensity = self.preprocessing.intensity
        if frame == self.fitted_frame and not self.is_prepared:
            pictures = fitted(self._values(slices), frame.size)
            if intensity.kind == "window":
                return normalise(pictures, intensity)
            return np.stack([zscored(picture) for picture in pictures])
        if intensity.kind == "zscore":
            return crop(self.normalised(slices), frame, fill=0, interpolation="linear")
        if intensity.kind == "image_zscore":
            of_the_crop = self.preprocessing.centred_on is not None and not self.is_prepared
            images = self._values(slices).astype(np.float32) if of_the_crop else self.normalised(slices)
            parts = [crop(image, frame, fill=float(image.min()), interpolation="linear") for image in images]
            return np.stack([zscored(part) if of_the_crop else part for part in parts])
        assert intensity.low is not None
        values = self._values(slices).astype(np.float32)
        return normalise(crop(values, frame, fill=intensity.low, interpolation="linear"), intensity)

    def _values(self, slices: NDArray[np.int64]) -> NDArray[Any]:
        """Return slices with their original values, (len(slices), C, H, W)."""
        return np.moveaxis(self.stack.values[slices], 3, 1)


def open_scan(
    file: ScanFile, preprocessing: Preprocessing, *, resample: bool = True, strict_intensity: bool = False
) -> tuple[Scan, PreparedStack]:
    """Read a scan and prepare it for a model; see `read_scan` and `PreparedStack.of`.

    An image (I, J, C) is one slice with C channels if the model takes C > 1 channels, as in `phiseg prepare nifti`.

    Raises:
        DataError: the scan cannot be read, or does not match the model.
    """
    plane = None if preprocessing.plane == "auto" else preprocessing.plane
    assumed = preprocessing.network_spacing_mm((1.0, 1.0))
    scan = read_scan(file, channels=preprocessing.image_channels, plane=plane, spacing_mm=assumed)
    if scan.series is None and scan.volume.values.shape[2:] == (preprocessing.image_channels, 1):
        scan = replace(scan, volume=Volume(scan.volume.values.swapaxes(2, 3), scan.volume.affine))
    stack = PreparedStack.of(
        scan.volume,
        preprocessing,
        name=file.name,
        modality=scan.modality,
        thickness_mm=scan.thickness_mm,
        resample=resample,
        strict_intensity=strict_intensity,
        has_spacing=scan.has_spacing,
    )
    return scan, stack


def _step(stack: Volume, preprocessing: Preprocessing) -> tuple[float, float]:
    _, *own = stack.spacing_mm
    wanted = preprocessing.network_spacing_mm((own[0], own[1]))
    row, column = (1.0 if abs(w / o - 1) < 1e-4 else w / o for w, o in zip(wanted, own, strict=True))
    return row, column


def _spacing_warnings(
    stack: Volume, preprocessing: Preprocessing, *, name: str, resample: bool, thickness_mm: float | None
) -> tuple[str, ...]:
    """Return warnings about pixels or slices outside the range of the training images.

    Raises:
        DataError: the pixels or slices are outside the range, and `resample` is false.
    """
    warnings = []
    _, vertical, horizontal = stack.spacing_mm
    fixed, pixels, trained = (
        preprocessing.spacing_mm,
        preprocessing.spacing_range_mm,
        preprocessing.thickness_range_mm,
    )
    step = _step(stack, preprocessing)
    if (fixed or pixels) and step != (1.0, 1.0):
        own = f"pixels of {vertical:.3g} x {horizontal:.3g} mm"
        row, column = preprocessing.network_spacing_mm((vertical, horizontal))
        usual = f"{row:.3g} x {column:.3g} mm" if fixed or not pixels else f"{pixels[0]:.3g} to {pixels[1]:.3g} mm"
        if not resample:
            raise DataError(
                f"{name} has {own}, but the model was trained on {usual}; use a scan in this range, or allow "
                "resampling (omit --strict-spacing)"
            )
        # A model with a fixed spacing was trained on resampled images, so only much larger pixels are unusual.
        if not fixed or min(step) < 1 / COARSE:
            warnings.append(
                f"the scan has {own}, but the model was trained on {usual}; it is resampled to "
                f"{row:.3g} x {column:.3g} mm for the network, and results are on the grid of the scan"
            )
    if preprocessing.patch_size:
        thickness_mm = None  # the range of a 3-D model is that of slice distances
    if trained and (slices := _unusual_slices(stack, trained, thickness_mm)):
        usual = f"those of the training images were {trained[0]:.3g} to {trained[1]:.3g} mm thick"
        if not resample:
            raise DataError(
                f"{name} has slices {slices}, but {usual}; use a scan in this range, or omit --strict-spacing"
            )
        warnings.append(
            f"the slices are {slices}, but {usual}; the samples may be less reliable, because slices are not "
            "resampled"
        )
    return tuple(warnings)


def _unusual_slices(stack: Volume, trained: tuple[float, float], thickness_mm: float | None) -> str | None:
    """Describe slices whose distance or thickness is outside the range of the training images; None if neither."""

    def is_outside(mm: float) -> bool:
        return not trained[0] * 0.999 <= mm <= trained[1] * 1.001

    distance = stack.spacing_mm[0]
    if stack.grid[0] > 1 and is_outside(distance):
        return f"{distance:.3g} mm apart"
    return f"{thickness_mm:.3g} mm thick" if thickness_mm and is_outside(thickness_mm) else None


def _unit_warnings(slices: NDArray[Any], lowest: float, highest: float, intensity: Intensity) -> tuple[str, ...]:
    """Return a warning if the values of slices (N, ...) do not match the window of the model.

    This is the case if nearly all values would be clipped, such as Hounsfield units by a window of 0 to 1, or if no
    value is negative although the window is, such as grey values with a window of Hounsfield units.
    """
    if intensity.low is None or intensity.high is None:
        return ()
    if intensity.low < 0 <= lowest:
        return (
            f"no value is below 0 (range {lowest:g} to {highest:g}), but the window of the model starts "
            f"at {intensity.low:g}; the samples are meaningless if this is a picture or CT without its offset",
        )
    window = intensity.low, intensity.high
    inside = sum(np.count_nonzero((one > window[0]) & (one < window[1])) for one in slices) / slices.size
    if inside >= MIN_INSIDE:
        return ()
    return (
        f"only {inside:.1%} of voxels are in the window of the model ({intensity.low:g} to {intensity.high:g}), "
        f"and the values ({lowest:g} to {highest:g}) may be in another unit; check them",
    )
