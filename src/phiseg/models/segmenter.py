"""Interface of all models: a training loss with named terms, and samples.

Shapes: B batch, S samples, K classes, C input channels, H W pixels.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from phiseg.core.config import StrictConfig
from phiseg.core.errors import ModelError
from phiseg.models.blocks import Checkpointed, Norm
from phiseg.models.noise import Generators, draw_noise, one_per_image
from phiseg.models.objective import Loss
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
        size: (H, W) of the image before padding.
    """

    features: tuple[Tensor, ...]
    size: tuple[int, int]


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
            labels: (B, H, W) class indices of one annotator per image.
            generator: one generator for the noise, or one per image.
        """

    @abstractmethod
    def encode(self, image: Tensor) -> Encoding:
        """Compute the features shared by all samples of an image."""

    @abstractmethod
    def noise_shapes(self, size: tuple[int, int]) -> list[tuple[int, ...]]:
        """Return the shapes of the standard normal noise of one sample of one (H, W) image."""

    @property
    def num_levels(self) -> int:
        """The number L of latent levels, the first L parts of the noise; 0 for a model without a hierarchy."""
        return 0

    @property
    def noise_names(self) -> tuple[str, ...]:
        """What each part of the noise controls: latent levels, numbered as in the paper (1 is the finest)."""
        shapes = self.noise_shapes((self.stride, self.stride))
        return tuple(f"level {number}" for number in range(1, len(shapes) + 1))

    @property
    def takes_temperature(self) -> tuple[bool, ...]:
        """For each part of the noise, whether it can be scaled; a single number selects a member and cannot."""
        return tuple(shape != () for shape in self.noise_shapes((self.stride, self.stride)))

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
    def stride(self) -> int:
        """H and W are padded to a multiple of this number."""
        return int(2 ** (len(self.config.channels) - 1))

    @torch.no_grad()
    def sample(
        self, image: Tensor, num_samples: int, *, generator: Generators, chunk_size: int | None = None
    ) -> Tensor:
        """Draw segmentations of each image, without gradients.

        Args:
            image: (B, C, H, W), any H and W. A model with context also accepts slices without adjacent slices.
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
            yield self.decode_samples(encoding, self.temper(noise), number) / self.calibration.logits

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
        if image.ndim != 4 or image.shape[1] != self.config.input_channels:
            context = self.config.context
            around = f", including {context} slice{'s' if context > 1 else ''} on each side" if context else ""
            raise ModelError(
                f"the model expects images (batch, {self.config.input_channels}, height, width){around}, "
                f"got {tuple(image.shape)}; pass that number of channels or train a model for this data"
            )

    def fill_context(self, image: Tensor) -> Tensor:
        """Repeat slices without adjacent slices (B, image_channels, H, W) in place of these, as in training."""
        alone = image.ndim == 4 and image.shape[1] == self.config.image_channels
        return image.repeat(1, 1 + 2 * self.config.context, 1, 1) if alone and self.config.context else image

    def padded_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return (H, W) rounded up to the stride."""
        height, width = (-(-side // self.stride) * self.stride for side in size)
        return height, width

    def pad(self, image: Tensor) -> Tensor:
        """Pad (B, C, H, W) at the bottom and right to a multiple of the stride by replicating the border."""
        height, width = image.shape[-2:]
        padded_height, padded_width = self.padded_size((height, width))
        if (padded_height, padded_width) == (height, width):
            return image
        return F.pad(image, (0, padded_width - width, 0, padded_height - height), mode="replicate")


def with_labels(image: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the input of a posterior (B, C + K, H, W): the image and the labels (B, H, W), one-hot minus 0.5."""
    one_hot = F.one_hot(labels, num_classes).movedim(-1, 1)
    return torch.cat([image, one_hot - 0.5], dim=1)


def crop(tensor: Tensor, size: tuple[int, int]) -> Tensor:
    """Undo `Segmenter.pad`: keep the top left (H, W)."""
    return tensor[..., : size[0], : size[1]]


def fold_samples(tensor: Tensor) -> Tensor:
    """(B, S, *shape) -> (B * S, *shape)."""
    return tensor.flatten(0, 1)


def unfold_samples(tensor: Tensor, num_samples: int) -> Tensor:
    """(B * S, *shape) -> (B, S, *shape)."""
    return tensor.reshape(-1, num_samples, *tensor.shape[1:])


def repeat_samples(tensor: Tensor, num_samples: int) -> Tensor:
    """(B, *shape) -> (B * S, *shape), each image repeated S times."""
    return tensor if num_samples == 1 else tensor.repeat_interleave(num_samples, dim=0)
