"""Noise: seeded generators, and draws that do not depend on batch size, chunk size or device."""

import hashlib
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from phiseg.core.errors import ModelError
from phiseg.core.random import derive_seed

Generators = torch.Generator | Sequence[torch.Generator]


def seeded_generator(seed: int, *keys: str | int) -> torch.Generator:
    """Return a new CPU generator for the random stream identified by `seed` and `keys`."""
    return torch.Generator().manual_seed(derive_seed(seed, *keys))


def image_key(image: Tensor) -> str:
    """Return the key of the noise of an image (C, H, W) or (C, D, H, W): a hash of a coarse grid of its pixels.

    With the same noise for all images, their samples would be large or small together. Pixels are rounded, so that
    the key of an image hardly ever depends on the rounding errors of the machine that prepared it. The step is not
    a round number, because many integer intensities would then lie between two steps.
    """
    grid = tuple(slice(None, None, max(1, length // 8)) for length in image.shape[1:])
    coarse = (image[:, *grid].double() * 97.31).round().to(torch.int64)
    return hashlib.blake2b(coarse.cpu().numpy().tobytes(), digest_size=16).hexdigest()


def one_per_image(generator: Generators, batch_size: int) -> list[torch.Generator]:
    """Return one generator per image; a single generator is used to draw their seeds."""
    if isinstance(generator, torch.Generator):
        seeds = torch.randint(2**63 - 1, (batch_size,), generator=generator)
        return [torch.Generator().manual_seed(seed) for seed in seeds.tolist()]
    generators = list(generator)
    if len(generators) != batch_size:
        raise ModelError(
            f"{len(generators)} generators for {batch_size} images; pass one generator, or one per image"
        )
    return generators


def draw_noise(
    shapes: Sequence[tuple[int, ...]], batch_size: int, num_samples: int, generator: Generators
) -> list[Tensor]:
    """Draw standard normal noise, image by image and sample by sample.

    Each sample of an image is one call to the generator of that image. The first samples therefore do not depend on
    the total number of samples, more samples can be drawn later, and images do not depend on each other. Generators
    are on the CPU, so that all devices use the same noise.

    Returns:
        One tensor (B, S, *shape) per shape.
    """
    generators = one_per_image(generator, batch_size)
    sizes = [prod(shape) for shape in shapes]
    if not sizes:
        return []
    flat = torch.stack([torch.randn(sum(sizes), generator=g) for g in generators for _ in range(num_samples)])
    parts = flat.view(batch_size, num_samples, -1).split(sizes, dim=-1)
    return [part.reshape(batch_size, num_samples, *shape) for part, shape in zip(parts, shapes, strict=True)]
