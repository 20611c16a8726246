"""A trained model, ready to use: prepare an image, draw samples, predict a scan.

Shapes: B images, S samples, K classes, C image channels, H x W pixels.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil, isfinite
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from phiseg.compute.devices import usable_device
from phiseg.core.bundled import find_model
from phiseg.core.errors import ConfigError, DataError
from phiseg.core.files import AnyPath
from phiseg.core.precision import SamplingPrecision
from phiseg.imaging.frame import Frame
from phiseg.imaging.volume import PLANES, Plane, Volume, affine_towards
from phiseg.inference.prediction import Prediction
from phiseg.inference.prepared_stack import PreparedStack, open_scan
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sampling import extended_slices
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import predict_prepared
from phiseg.inference.scans import ScanFile, find_scans
from phiseg.models import Segmenter, load_model
from phiseg.models.noise import Generators, image_key, seeded_generator

WINDOW_MARGIN = 0.25
"""How far values may lie outside -0.5 to 0.5, the range of a windowed image, before an image counts as raw."""
MAX_ZSCORE = 50.0
"""Standard deviations from the mean beyond which a z-scored image counts as raw."""


def load(
    model: str | PathLike[str],
    *,
    device: str = "cpu",
    calibrated: bool = True,
    precision: SamplingPrecision = "float32",
) -> "Model":
    """Load a trained model.

    Only JSON and safetensors files are read: nothing in the folder is executed.

    Args:
        model: a model folder, a run or its folder, the name of a bundled model such as `lidc-nodule`, or
            `hf:owner/name@revision` for a model of the Hugging Face Hub (`pip install 'phiseg[hub]'`).
        device: the device to put it on, such as `cpu` or `cuda:1`; `auto` is a GPU if there is one.
        calibrated: whether to sample with the temperatures that `phiseg calibrate` fitted, if there are any.
        precision: the number format of the network; `bfloat16` is faster on CPUs and GPUs that support it.

    Raises:
        ModelError: the folder is missing, damaged or not a phiseg model.
        ConfigError: there is no such device, it does not support `precision`, or huggingface_hub is not installed.
    """
    folder = find_model(Path(model))
    network = load_model(
        folder, device=usable_device(device, precision), calibrated=calibrated, precision=precision
    )
    return Model(network, folder, calibrated=calibrated, precision=precision)


class Model:
    """A trained model with its preprocessing. `phiseg.load` and `Run.model` return one.

    Attributes:
        network: the PyTorch module, for work on encodings, latent levels and weights.
        path: the model folder.
        calibrated: whether `sample` uses fitted temperatures, if the folder has any.
        precision: the number format of the network when it samples.
    """

    def __init__(
        self, network: Segmenter, path: Path, *, calibrated: bool = True, precision: SamplingPrecision = "float32"
    ):
        self.network, self.path, self.calibrated, self.precision = network, path, calibrated, precision

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        config = self.network.config
        return f"Model('{self.path}': {config.name}, {config.num_classes} classes, on {self.device})"

    @property
    def device(self) -> torch.device:
        """The device that the network is on."""
        return next(self.network.parameters()).device

    def to(self, device: str) -> Self:
        """Move the network to a device and return the model."""
        self.network.to(usable_device(device, self.precision))
        return self

    @property
    def preprocessing(self) -> Preprocessing:
        """What the training images had in common: size, spacing, intensity rule, classes.

        Raises:
            ModelError: the model folder does not state it.
        """
        return Preprocessing.of(self.network)

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, background first."""
        return self.preprocessing.classes

    def prepare(
        self,
        image: ArrayLike,
        *,
        spacing_mm: float | tuple[float, float] | None = None,
        centre: tuple[float, float] | None = None,
    ) -> Tensor:
        """Turn a raw image into the network's input, as in training: resample, crop and normalise it.

        Args:
            image: (H, W), or (C, H, W) for several channels, in the unit of the training images (HU for CT).
            spacing_mm: the pixel spacing of the image (vertical, horizontal), or one number for both. The image is
                resampled to the spacing of the training images; by default it already has that spacing.
            centre: (row, column) of the lesion, for a lesion-crop model: the crop around it is
                returned. By default the whole image is, resized and padded if the training pictures were.

        Returns:
            (1, C, H', W') for `sample`.

        Raises:
            ConfigError: the model segments volumes.
            DataError: the image has the wrong shape, is constant or not finite, or the spacing is not positive.

        Warns:
            UserWarning: the values look as if they were in another unit.
        """
        if self.network.config.dims == 3:
            raise ConfigError("prepare takes 2-D images, but this model segments volumes; use model.predict(scan)")
        preprocessing = self.preprocessing
        stack = _as_stack(np.asarray(image), preprocessing, spacing_mm)
        for warning in stack.warnings:
            warnings.warn(f"the image is unusual for the model: {warning}", stacklevel=2)
        if centre is not None:
            frame = Frame.centred(centre, preprocessing.size, stack.step)
        elif stack.fitted_frame:
            frame = stack.fitted_frame
        else:
            (height, width), (row, column) = stack.stack.grid[1:], stack.step
            size = ceil(height / row - 1e-6), ceil(width / column - 1e-6)
            frame = Frame.centred(((height - 1) / 2, (width - 1) / 2), size, stack.step)
        return torch.from_numpy(stack.images(np.array([0]), frame)).to(self.device)

    def sample(
        self,
        image: Tensor | ArrayLike,
        num_samples: int = 16,
        *,
        seed: int = 0,
        generator: Generators | None = None,
        chunk_size: int | None = None,
    ) -> Tensor:
        """Draw segmentations of images.

        A volume with fewer slices than a training patch is extended by repeating its ends, as in training.

        Args:
            image: (B, C, H, W), the network's input: from `prepare`, or `Dataset.image(row)[None]`. For a 3-D
                model, (B, C, D, H, W).
            num_samples: S, the number of segmentations of each image.
            seed: random seed. The samples of an image depend on the seed and on the image, but not on the other
                images of the batch. The first samples stay the same if you draw more.
            generator: draws the noise instead of `seed`: one generator, or one per image.
            chunk_size: samples of each image decoded at once; affects memory use only, not results.

        Returns:
            Logits (B, S, K, H, W); `.argmax(2)` gives labels, `.softmax(2)` probabilities.

        Raises:
            DataError: the image is not prepared: its values are outside the range of the network's input.
            ModelError: the image has the wrong shape.
        """
        values = image if isinstance(image, Tensor) else torch.from_numpy(np.array(image))
        self.network.check_image(self.network.fill_context(values))
        self._check_prepared(values)
        if generator is None:
            generator = [seeded_generator(seed, "sample", image_key(one)) for one in values]
        draw = partial(self.network.sample, num_samples=num_samples, generator=generator, chunk_size=chunk_size)
        values = values.to(self.device, torch.float32)
        if self.network.config.dims == 2:
            return draw(values)
        seen, own = extended_slices(self.network, values.shape[2])
        return draw(values[:, :, seen])[:, :, :, own]

    def predict(
        self,
        scan: Volume | str | PathLike[str],
        *,
        point: Sequence[float] | None = None,
        slices: range | None = None,
        num_samples: int | None = None,
        seed: int | None = None,
        sampling: Sampling | None = None,
        name: str | None = None,
        progress: bool = False,
        resample: bool = True,
        strict_intensity: bool = False,
    ) -> Prediction:
        """Draw segmentations of one scan, on its own grid.

        Args:
            scan: a NIfTI, MetaImage, NRRD or picture file, a folder with a DICOM series, or a `Volume`.
            point: (i, j, k), a voxel inside the lesion, counted from 0 along the axes of the file (DICOM: column,
                row, slice). Lesion-crop models need it.
            slices: consecutive slices to predict, for a whole-slice model; by default all.
            num_samples: the number of samples; 32 by default.
            seed: the same seed draws the same samples; 0 by default.
            sampling: further settings of the sampling.
            name: the name of the scan in messages; by default that of the file.
            progress: whether to show a progress bar.
            resample: whether to resample a scan whose pixel spacing is outside the range of the training images;
                otherwise it is refused, and so is one whose slice distance or thickness is outside their range.
            strict_intensity: whether to refuse a scan, or a point in it, whose values do not match those of the
                training images.

        Raises:
            DataError: the scan cannot be read or does not match the model, or the point lies outside it.
            ConfigError: a point is missing, or given to a whole-slice model.

        Warns:
            UserWarning: the spacing or the values of the scan do not match those of the training images, or a
                lesion is truncated.
        """
        if sampling is None:
            usual = Sampling()
            sampling = Sampling(
                num_samples=usual.num_samples if num_samples is None else num_samples,
                seed=usual.seed if seed is None else seed,
            )
        elif num_samples is not None or seed is not None:
            raise ConfigError("give num_samples and seed either by name or in sampling, not both")
        if isinstance(scan, Volume):
            name = name or "volume"
            stack = PreparedStack.of(
                scan, self.preprocessing, name=name, resample=resample, strict_intensity=strict_intensity
            )
            found = stack.warnings
        else:
            file = _only_scan(Path(scan))
            file = replace(file, name=name or Path(scan).name)
            read, stack = open_scan(file, self.preprocessing, resample=resample, strict_intensity=strict_intensity)
            found = (*read.warnings, *stack.warnings)
        prediction = predict_prepared(
            self.network,
            stack,
            point=point,
            slices=slices,
            sampling=sampling,
            progress=progress,
            strict_intensity=strict_intensity,
        )
        for warning in (*found, *filter(None, [prediction.unusual, prediction.truncation_warning])):
            warnings.warn(f"{stack.name}: {warning}", stacklevel=2)
        return prediction

    def _check_prepared(self, image: Tensor) -> None:
        """Refuse an image whose values the preprocessing cannot have produced, such as 0 to 255."""
        fix = "call model.prepare(image) first"
        if not image.is_floating_point():
            raise DataError(
                f"the image holds integers ({image.dtype}), but the network expects prepared floats; {fix}"
            )
        low, high = float(image.min()), float(image.max())
        if not (isfinite(low) and isfinite(high)):
            raise DataError("the image has NaN or infinite pixels; repair it, or exclude it")
        preprocessing = Preprocessing.find(self.network)
        if preprocessing is None:
            return
        if preprocessing.intensity.kind == "window":
            expected, limit = "-0.5 to 0.5", 0.5 + WINDOW_MARGIN
        else:
            expected, limit = "mean 0 and standard deviation 1", MAX_ZSCORE
        if max(-low, high) > limit:
            raise DataError(
                f"the image has values from {low:g} to {high:g}, but the network expects prepared images "
                f"({expected}); {fix}"
            )


def _only_scan(path: Path) -> ScanFile:
    """Return the only scan that a path leads to."""
    found, _ = find_scans([path])
    if len(found) > 1:
        raise DataError(f"{path} holds {len(found)} scans; give one of them, or use phiseg.predict for all")
    return found[0]


def _as_stack(
    image: NDArray[Any], preprocessing: Preprocessing, spacing_mm: float | tuple[float, float] | None
) -> PreparedStack:
    """Return an image as a stack of one slice."""
    channels = preprocessing.image_channels
    given = image[None] if image.ndim == 2 else image
    if given.ndim != 3 or given.shape[0] != channels or not given.size:
        shape = "(height, width)" if channels == 1 else f"({channels}, height, width)"
        raise DataError(
            f"the image has shape {image.shape}, but the model expects {shape}; give one image of that shape"
        )
    own = preprocessing.network_spacing_mm((1.0, 1.0)) if spacing_mm is None else spacing_mm
    vertical, horizontal = np.broadcast_to(own, 2).tolist()
    if not (0 < vertical < np.inf and 0 < horizontal < np.inf):
        raise DataError(f"spacing_mm is {spacing_mm}; give millimetres per pixel, above 0")
    plane: Plane = "axial"
    if preprocessing.plane is not None and preprocessing.plane != "auto":
        plane = preprocessing.plane
    affine = affine_towards(PLANES[plane]) @ np.diag([1.0, vertical, horizontal, 1.0])
    volume = Volume(np.moveaxis(given, 0, 2)[None], affine)  # (1, H, W, C)
    return PreparedStack.of(volume, preprocessing, name="the image")


def uses_calibration(model: AnyPath, calibrated: bool) -> bool:
    """Return whether to use the temperatures of a model: not if it was loaded without them."""
    return calibrated and not (isinstance(model, Model) and not model.calibrated)


def used_precision(model: AnyPath, precision: SamplingPrecision | None) -> SamplingPrecision:
    """Return the number format to use: by default that of a loaded model, otherwise float32."""
    return precision or (model.precision if isinstance(model, Model) else "float32")
