"""Interface of all models: a training loss with named terms, and samples.

Shapes: B batch, S samples, K classes, C input channels, H W pixels. For volumes (`dims` is
3), read D H W for H W.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from phiseg.core.config import StrictConfig
from phiseg.core.errors import ModelError
from phiseg.models.blocks import Checkpointed, Norm
from phiseg.models.noise import Generators, draw_noise, one_per_image
from phiseg.models.objective import Loss
from phiseg.models.pyramid import PerAxis, Pyramid
from phiseg.models.temperatures import Calibration

MAX_SIZE = 4096
"""Upper limit for all integer settings of a model; larger networks would not fit into memory."""


class SegmenterConfig(StrictConfig):
    """Settings common to all models."""

    name: str
    """Name of the model in the registry."""
    image_channels: int = Field(default=1, ge=1)
    """Channels of an image; set from the dataset in training."""
    context: int = Field(default=0, ge=0, le=8)
    """Number of adjacent slices on each side that are added as input channels."""
    num_classes: int = Field(default=2, ge=2, le=255)
    """Number of classes K, including the background; set from the dataset in training."""
    channels: tuple[PositiveInt, ...] = Field(
        default=(32, 64, 128, 192, 192, 192, 192), min_length=1, max_length=16
    )
    """Width of each of the R resolution levels, finest first."""
    blocks_per_level: int = Field(default=3, ge=1, le=64)
    """Convolution blocks per resolution level of an encoder or decoder."""
    norm: Norm = "batch"
    """Normalisation after each convolution: batch (as in the paper), group or none."""

    dims: Literal[2, 3] = 2
    """Number of dimensions: 2 for images, 3 for volumes."""
    strides: tuple[PerAxis, ...] | None = None
    """Factor between each resolution level and the next coarser one: R - 1 entries, finest first, each with 1 or 2
    for each axis, (H, W) or (D, H, W). Default: 2. Training on volumes sets it from their spacing."""
    kernels: tuple[PerAxis, ...] | None = None
    """Size of the convolutions of each resolution level: R entries, finest first, each with 1 or 3 for each axis.
    Default: 3. Training on volumes sets it from their spacing."""

    @property
    def takes_sets(self) -> bool:
        """Whether `forward` also accepts labels (B, A, H, W): a set of annotations per image."""
        return False

    @property
    def sampling_statistics_problem(self) -> str | None:
        """Why batch-norm statistics must not be averaged along the sampling path; None if they may be."""
        return None

    @property
    def pyramid(self) -> Pyramid:
        """Strides and kernels of the resolution levels."""
        regular = Pyramid.regular(self.dims, len(self.channels))
        return Pyramid(
            regular.strides if self.strides is None else self.strides,
            regular.kernels if self.kernels is None else self.kernels,
        )

    @property
    def input_channels(self) -> int:
        """Input channels C of the network: those of the slice and of adjacent slices."""
        return self.image_channels * (1 + 2 * self.context)

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        """Reject sizes that would exhaust the memory."""
        for key, value in self.model_dump().items():
            numbers = value if isinstance(value, tuple) else (value,)
            if any(isinstance(number, int) and number > MAX_SIZE for number in numbers):
                raise ValueError(f"{key} must be at most {MAX_SIZE}")
        return self

    @model_validator(mode="after")
    def _check_axes(self) -> Self:
        if self.dims == 3 and self.context:
            raise ValueError(f"context = {self.context} adds slices to 2-D images; with dims = 3, use context = 0")
        number = len(self.channels)
        _check_entries("strides", self.strides, number=number - 1, dims=self.dims, allowed=(1, 2))
        _check_entries("kernels", self.kernels, number=number, dims=self.dims, allowed=(1, 3))
        return self


def _check_entries(
    key: str, entries: tuple[PerAxis, ...] | None, *, number: int, dims: int, allowed: tuple[int, int]
) -> None:
    if entries is None:
        return
    if len(entries) != number or any(len(entry) != dims or not {*entry} <= {*allowed} for entry in entries):
        raise ValueError(
            f"{key} must have {number} entries for these channels, each with {dims} numbers {allowed[0]} or "
            f"{allowed[1]}, but it is {entries}"
        )


class LatentConfig(SegmenterConfig):
    """Settings of models with Gaussian latent variables."""

    min_std: float = Field(default=1e-4, gt=0)
    """Added to all standard deviations to keep the KL finite."""
    head_init: float = Field(default=0.1, gt=0)
    """Factor on the He-normal initial weights of the layers for means and standard deviations. The authors' code
    uses 1: prior and posterior then start far apart, with some standard deviations near zero and KLs in the
    thousands. With 0.1, all distributions start near N(0, 0.7^2)."""


class Encoding(NamedTuple):
    """Result of the computation that all samples of an image share.

    Attributes:
        features: model-specific tensors, each (B, ...).
        size: (H, W), or (D, H, W), of the image before padding.
    """

    features: tuple[Tensor, ...]
    size: PerAxis


class Segmenter(nn.Module, ABC):
    """Base class of models of p(s|x): `forward` returns the training loss, `sample` draws segmentations.

    Subclasses implement `forward`, `encode`, `noise_shapes` and `decode_samples`.
    """

    Config: ClassVar[type[SegmenterConfig]]
    config: SegmenterConfig
    preprocessing: dict[str, Any]
    """Preprocessing of images, as stored in the model folder; empty for a new model."""
    provenance: dict[str, Any]
    """Origin of the weights, as stored in the model folder; empty for a new model."""
    calibration: Calibration
    """Temperatures used by `sample`, as stored in the model folder; the default has no effect."""

    def __init__(self, config: SegmenterConfig):
        super().__init__()
        self.config = config
        self.preprocessing = {}
        self.provenance = {}
        self.calibration = Calibration()

    @abstractmethod
    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return the training loss.

        Args:
            image: (B, C, H, W).
            labels: (B, H, W) class indices of one annotator per image, or a set (B, A, H, W) if
                `config.takes_sets` is true.
            generator: one generator for the noise, or one per image.
        """

    @abstractmethod
    def encode(self, image: Tensor) -> Encoding:
        """Compute the features shared by all samples of an image."""

    @abstractmethod
    def noise_shapes(self, size: PerAxis) -> list[tuple[int, ...]]:
        """Return the shapes of the standard normal noise of one sample of one (H, W) image."""

    @property
    def num_levels(self) -> int:
        """The number L of latent levels, the first L parts of the noise; 0 for a model without a hierarchy."""
        return 0

    @property
    def noise_names(self) -> tuple[str, ...]:
        """What each part of the noise controls: latent levels, numbered as in the paper (1 is the finest)."""
        kind = "level" if self.num_levels else "noise"
        return tuple(f"{kind} {number + 1}" for number in range(len(self.noise_shapes(self.strides))))

    @property
    def takes_temperature(self) -> tuple[bool, ...]:
        """For each part of the noise, whether it can be scaled; a single number selects a member and cannot."""
        return tuple(shape != () for shape in self.noise_shapes(self.strides))

    @abstractmethod
    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:
        """Decode noise, each (B, S, *shape), to logits (B, S, K, H, W).

        `num_samples` is S, for models without noise.
        """

    def sample_levels(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> list[Tensor]:
        """Return the logits (B, S, K, H, W) after each of the L levels, fine to coarse.

        A model that gives logits only once, with or without a hierarchy, returns its samples alone.
        """
        return [self.decode_samples(encoding, noise, num_samples)]

    @property
    def strides(self) -> PerAxis:
        """Total stride of each axis; the size is padded to a multiple of it."""
        return self.config.pyramid.scale(len(self.config.channels) - 1)

    @torch.no_grad()
    def sample(
        self, image: Tensor, num_samples: int, *, generator: Generators, chunk_size: int | None = None
    ) -> Tensor:
        """Draw segmentations of each image, without gradients.

        Args:
            image: (B, C, H, W) of any size. A model with context also accepts slices without adjacent slices.
            num_samples: S.
            generator: one generator, or one per image. With one per image, samples do not depend on other images.
            chunk_size: number of samples per image decoded at once; affects memory use only, not results.

        Returns:
            Logits (B, S, K, H, W).
        """
        return torch.cat(
            list(self.sample_chunks(image, num_samples, generator=generator, chunk_size=chunk_size)), dim=1
        )

    @torch.no_grad()
    def sample_chunks(
        self, image: Tensor, num_samples: int, *, generator: Generators, chunk_size: int | None = None
    ) -> Iterator[Tensor]:
        """Yield the result of `sample` in chunks (B, <= chunk_size, K, H, W); the image is encoded once."""
        step = num_samples if chunk_size is None else chunk_size
        for name, value in (("num_samples", num_samples), ("chunk_size", step)):
            if value < 1:
                raise ModelError(f"{name} is {value}; pass at least 1")
        encoding = self.encode(self.fill_context(image))
        shapes = self.noise_shapes(encoding.size)
        generators = one_per_image(generator, len(image))
        for start in range(0, num_samples, step):
            number = min(step, num_samples - start)
            noise = [level.to(image.device) for level in draw_noise(shapes, len(image), number, generators)]
            yield self.calibration.apply(self.decode_samples(encoding, self.temper(noise), number), dim=2)

    def weights_from(self, other: "Segmenter") -> dict[str, Tensor]:
        """Return the weights to start training from, given another model: by default, all of its weights."""
        return other.state_dict()

    def checkpoint_activations(self, enabled: bool) -> None:
        """Enable activation checkpointing: recompute most activations in the backward pass to save memory."""
        for module in self.modules():
            if isinstance(module, Checkpointed):
                module.use_checkpoint = enabled

    def temper(self, noise: Sequence[Tensor]) -> list[Tensor]:
        """Return standard normal noise, one tensor per level, times the calibrated temperatures."""
        factors = self.calibration.noise or [1.0] * len(noise)
        return [factor * level for factor, level in zip(factors, noise, strict=True)]

    def check_image(self, image: Tensor) -> None:
        """Raise a ModelError if the image does not match the input of the model."""
        dims, channels, context = self.config.dims, self.config.input_channels, self.config.context
        if image.ndim == dims + 2 and image.shape[1] == channels:
            return
        kind = "images" if dims == 2 else "volumes"
        axes = "height, width" if dims == 2 else "depth, height, width"
        raw = "for raw images, use model.prepare(image)" if dims == 2 else "for scans, use model.predict(scan)"
        around = f", including {context} slice{'s' if context > 1 else ''} on each side" if context else ""
        advice = (
            f"pass {kind}, or use a model with dims = {image.ndim - 2}"
            if image.ndim == 7 - dims  # volumes for a 2-D model, or the reverse
            else f"{raw}; for other channels, train a model"
        )
        raise ModelError(
            f"the model expects {kind} (batch, {channels}, {axes}){around}, got {tuple(image.shape)}; {advice}"
        )

    def fill_context(self, image: Tensor) -> Tensor:
        """Repeat slices without adjacent slices (B, image_channels, H, W) in place of these, as in training."""
        alone = image.ndim == 4 and image.shape[1] == self.config.image_channels
        return image.repeat(1, 1 + 2 * self.config.context, 1, 1) if alone and self.config.context else image

    def padded_size(self, size: PerAxis) -> PerAxis:
        """Return (H, W) rounded up to the strides."""
        if len(size) != self.config.dims:
            raise ModelError(f"the model has {self.config.dims} dimensions, but the size {size} has {len(size)}")
        return tuple(-(-side // stride) * stride for side, stride in zip(size, self.strides, strict=True))

    def level_size(self, size: PerAxis, level: int) -> PerAxis:
        """Return the size of the features of resolution `level` for an image of (H, W)."""
        scale = self.config.pyramid.scale(level)
        return tuple(side // factor for side, factor in zip(self.padded_size(size), scale, strict=True))

    def pad(self, image: Tensor) -> Tensor:
        """Pad (B, C, H, W) at the end of each axis to a multiple of its stride by replicating the border."""
        size = image_size(image)
        missing = [new - old for new, old in zip(self.padded_size(size), size, strict=True)]
        if not any(missing):
            return image
        return F.pad(image, [side for number in reversed(missing) for side in (0, number)], mode="replicate")


def image_size(image: Tensor) -> PerAxis:
    """Return (H, W) of images (B, C, H, W)."""
    return tuple(image.shape[2:])


def with_labels(image: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the input of a posterior (B, C + K, H, W): the image and the labels (B, H, W), one-hot minus 0.5."""
    one_hot = F.one_hot(labels, num_classes).movedim(-1, 1)
    return torch.cat([image, one_hot - 0.5], dim=1)


def unpad(tensor: Tensor, size: PerAxis) -> Tensor:
    """Undo `Segmenter.pad`: keep the first (H, W) pixels."""
    for axis, side in enumerate(size, start=-len(size)):
        tensor = tensor.narrow(axis, 0, side)
    return tensor


def fold_samples(tensor: Tensor) -> Tensor:
    """(B, S, *shape) -> (B * S, *shape)."""
    return tensor.flatten(0, 1)


def unfold_samples(tensor: Tensor, num_samples: int) -> Tensor:
    """(B * S, *shape) -> (B, S, *shape)."""
    return tensor.reshape(-1, num_samples, *tensor.shape[1:])


def repeat_samples(tensor: Tensor, num_samples: int) -> Tensor:
    """(B, *shape) -> (B * S, *shape), each image repeated S times."""
    return tensor if num_samples == 1 else tensor.repeat_interleave(num_samples, dim=0)
