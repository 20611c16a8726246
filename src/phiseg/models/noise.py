"""Noise: seeded generators, and draws that do not depend on batch size, chunk size or device."""

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
