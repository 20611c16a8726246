"""Augmentation of whole batches. Parameters are drawn in one function and applied in another.

An augmentation is one affine matrix per image, so rotation, crop and flips need a single interpolation. It is the
same for all slices of a volume, whose slices can also be reversed.

B batch, C image channels, K classes, D slices, H x W pixels. *size is (H, W) for images and (D, H, W) for volumes.
"""

import math

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from phiseg.core.config import StrictConfig
from phiseg.core.errors import ConfigError
from phiseg.metrics.overlap import most_probable


class AugmentConfig(StrictConfig):
    """Augmentation settings. The defaults are those of the paper's code plus horizontal flips."""

    enabled: bool = True
    """Augment the images; false disables all augmentation."""
    probability: float = Field(default=0.5, ge=0, le=1)
    """Probability that an image is rotated and cropped."""
    rotation_degrees: float = Field(default=10.0, ge=0, le=180)
    """Maximum angle; angles are uniform between minus and plus this value."""
    min_crop_fraction: float = Field(default=98 / 128, gt=0, le=1)
    """Minimum side of the crop as a fraction, uniform between this value and 1. The crop is resized to the full
    size."""
    flip_horizontal: bool = True
    """Flip left and right with probability 0.5."""
    flip_vertical: bool = False
    """Flip top and bottom with probability 0.5."""
    quarter_turns: bool = False
    """Rotate by 0, 90, 180 or 270 degrees. Requires square images."""
    contrast: float = Field(default=0.0, ge=0, lt=1)
    """Contrast: intensities are multiplied by a factor that is uniform between 1 minus and 1 plus this value."""
    brightness: float = Field(default=0.0, ge=0)
    """Brightness: a value uniform between minus and plus this value is added, in units of the network's input."""
    hide_neighbours: float = Field(default=0.3, ge=0, le=1)
    """Fraction of images whose neighbouring slices are hidden. No effect if model.context is 0."""
    flip_slices: bool = True
    """Reverse the order of the slices with probability 0.5. No effect on images if model.context is 0."""


def draw_augmentation(
    config: AugmentConfig, batch_size: int, *, size: tuple[int, int], generator: torch.Generator
) -> Tensor:
    """Draw one affine matrix per image: rotation, then crop, then quarter turns and flips.

    The matrices follow `torch.nn.functional.affine_grid`. They map a position in the result to a position in the
    input, both in coordinates (x, y) from -1 to 1 between the edges of the image. The rotation is rigid in pixels,
    also if the image is not square. The same random numbers are drawn for all settings, so enabling one
    augmentation does not change the others.

    Args:
        config: augmentation settings.
        batch_size: B.
        size: (H, W) of the images.
        generator: random generator on the CPU.

    Returns:
        (B, 2, 3) float32 on the CPU.

    Raises:
        ConfigError: quarter turns are enabled, but the images are not square.
    """
    height, width = size
    if config.enabled and config.quarter_turns and height != width:
        raise ConfigError(
            f"augment.quarter_turns requires square images, but they are {height} x {width}; set it to false"
        )
    coin, angle, side, right, down, mirror_x, mirror_y, turn = torch.rand(
        8, batch_size, generator=generator, dtype=torch.float64
    )
    if not config.enabled:
        return _affine(torch.eye(2).expand(batch_size, 2, 2), torch.zeros(batch_size, 2))
    warped = (coin < config.probability).double()
    radians = warped * (2 * angle - 1) * math.radians(config.rotation_degrees)
    fraction = 1 - warped * side * (1 - config.min_crop_fraction)
    shift = (1 - fraction)[:, None] * (2 * torch.stack([right, down], 1) - 1)  # (B, 2), centre of the crop
    flips = torch.stack(
        [
            1 - 2 * ((mirror_x < 0.5) & config.flip_horizontal).double(),
            1 - 2 * ((mirror_y < 0.5) & config.flip_vertical).double(),
        ],
        1,
    )  # (B, 2), +-1
    quarters = torch.floor(4 * turn) * config.quarter_turns

    pixels = torch.tensor([width, height], dtype=torch.float64)
    rotation = _rotation(radians) * (pixels[None, :] / pixels[:, None])  # rigid in pixels
    linear = fraction[:, None, None] * _rotation(quarters * (math.pi / 2)) * flips[:, None, :]
    return _affine(rotation @ linear, (rotation @ shift[..., None]).squeeze(-1))


def apply_augmentation(
    image: Tensor, labels: Tensor, matrices: Tensor, *, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Warp images and labels by the same matrices, on the device of the tensors.

    Images are interpolated linearly, with border values outside. Labels are interpolated linearly per class, and
    each pixel gets the class with the largest share. Pixels outside the image are background.

    Args:
        image: (B, C, *size).
        labels: (B, *size) class indices, 0 is the background; or (B, A, *size).
        matrices: (B, 2, 3) from `draw_augmentation`.
        num_classes: K.

    Returns:
        Images and labels with the same shapes and types.
    """
    grid = F.affine_grid(matrices.to(image), [len(image), 1, *image.shape[-2:]], align_corners=False)
    warped = _sample(image, grid, padding_mode="border")
    foreground = F.one_hot(labels.long(), num_classes)[..., 1:].movedim(-1, 1)  # (B, K-1, *size) or with A
    share = _sample(foreground.to(image), grid, padding_mode="zeros")
    background = 1 - share.sum(1, keepdim=True)  # outside the image too
    return warped, most_probable(torch.cat([background, share], 1), dim=1).to(labels.dtype)


def draw_intensities(config: AugmentConfig, batch_size: int, *, generator: torch.Generator) -> Tensor:
    """Draw for each image the factor and the offset of its intensities, (B, 2) on the CPU."""
    places = 2 * torch.rand(batch_size, 2, generator=generator) - 1
    return places * torch.tensor([config.contrast, config.brightness]) + torch.tensor([1.0, 0.0])


def apply_intensities(image: Tensor, intensities: Tensor) -> Tensor:
    """Return images (B, C, *size) with the contrast and brightness (B, 2) of `draw_intensities`."""
    factor, shift = intensities.to(image).reshape(-1, 2, *[1] * (image.ndim - 1)).unbind(1)
    return image * factor + shift


def draw_neighbours(config: AugmentConfig, batch_size: int, *, generator: torch.Generator) -> Tensor:
    """Draw for each image whether its neighbours are hidden and whether their order is reversed, (B, 2) bool."""
    hide, flip = torch.rand(2, batch_size, generator=generator)
    return torch.stack([hide < config.hide_neighbours, (flip < 0.5) & config.flip_slices], 1) & config.enabled


def flip_volumes(image: Tensor, labels: Tensor, flipped: Tensor) -> tuple[Tensor, Tensor]:
    """Reverse the slices of volumes (B, C, D, H, W) and labels (B, D, H, W) where `flipped` (B,) is true.

    The labels may have an axis of annotations, (B, A, D, H, W).
    """

    def reverse(values: Tensor) -> Tensor:
        where = flipped.to(values.device).reshape(-1, *[1] * (values.ndim - 1))
        return torch.where(where, values.flip(-3), values)

    return reverse(image), reverse(labels)


def reverse_slices(image: Tensor, flipped: Tensor, *, context: int) -> Tensor:
    """Swap the slices before and after in images (B, C * (1 + 2c), H, W) where `flipped` (B,) is true."""
    slices = image.unflatten(1, (1 + 2 * context, -1))  # (B, 1 + 2c, C, H, W)
    order = [0, *(2 * distance + side for distance in range(context) for side in (2, 1))]
    return torch.where(flipped[:, None, None, None, None], slices[:, order], slices).flatten(1, 2)


def _sample(values: Tensor, grid: Tensor, *, padding_mode: str) -> Tensor:
    """Interpolate values (B, C, *size) at the places (B, H, W, 2) in the plane, in all slices of a volume alike."""
    planes = values.flatten(1, -3)  # (B, C * D, H, W)
    sampled = F.grid_sample(planes, grid, mode="bilinear", padding_mode=padding_mode, align_corners=False)
    return sampled.view(values.shape)


def _rotation(radians: Tensor) -> Tensor:
    cos, sin = radians.cos(), radians.sin()
    return torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)  # (B, 2, 2)


def _affine(linear: Tensor, shift: Tensor) -> Tensor:
    return torch.cat([linear, shift[..., None]], -1).float()  # (B, 2, 3)
