"""Where noise comes from: seeded generators, and draws that do not depend on batches, chunks or devices."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from phiseg.core.errors import ModelError
from phiseg.core.random import derive_seed

Generators = torch.Generator | Sequence[torch.Generator]


def seeded_generator(seed: int, *keys: str | int) -> torch.Generator:
    """Return a new CPU generator for the stream that `keys` name under `seed`."""
    return torch.Generator().manual_seed(derive_seed(seed, *keys))


def one_per_image(generator: Generators, batch_size: int) -> list[torch.Generator]:
    """Return a generator for each image; from a single one, they are seeded by its next numbers."""
    if isinstance(generator, torch.Generator):
        seeds = torch.randint(2**63 - 1, (batch_size,), generator=generator)
        return [torch.Generator().manual_seed(seed) for seed in seeds.tolist()]
    generators = list(generator)
    if len(generators) != batch_size:
        raise ModelError(f"{len(generators)} generators for {batch_size} images; give one, or one per image")
    return generators


def draw_noise(
    shapes: Sequence[tuple[int, ...]], batch_size: int, num_samples: int, generator: Generators
) -> list[Tensor]:
    """Draw standard normal noise, image by image, sample by sample.

    Each sample of each image is one call to the image's generator, so that the first samples of an image stay the
    same whatever number follows, further ones can be drawn later, and an image does not depend on the others.
    The generators live on the CPU, so that every device draws the same.

    Returns:
        One tensor (B, S, *shape) for each shape.
    """
    generators = one_per_image(generator, batch_size)
    sizes = [prod(shape) for shape in shapes]
    if not sizes:
        return []
    flat = torch.stack([torch.randn(sum(sizes), generator=g) for g in generators for _ in range(num_samples)])
    parts = flat.view(batch_size, num_samples, -1).split(sizes, dim=-1)
    return [part.reshape(batch_size, num_samples, *shape) for part, shape in zip(parts, shapes, strict=True)]
