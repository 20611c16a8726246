"""Training patches of volumes: windows of one size at random places.

B batch, D slices, H x W pixels; sizes are (D, H, W).
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from phiseg.core.errors import ConfigError
from phiseg.data.store import Dataset

MAX_DEPTH = 32
"""Largest number of slices of a patch, unless it is set."""
WHOLE_PERCENT = 90
"""Share of the training volumes that fit into a patch as a whole, unless it is set."""


def patch_size_for(dataset: Dataset, patch_size: Sequence[int] | None = None) -> tuple[int, int, int] | None:
    """Return the size of training patches (D, H, W), or None for a dataset of images.

    Args:
        dataset: the dataset.
        patch_size: the size in the recipe. None takes whole slices, as many as `WHOLE_PERCENT` of the training
            volumes have at most, but not more than `MAX_DEPTH`.

    Raises:
        ConfigError: the size does not suit the dataset.
    """
    if dataset.dims == 2:
        if patch_size is not None:
            raise ConfigError(
                f"train.patch_size is for volumes, but {dataset.path} contains images; remove train.patch_size"
            )
        return None
    height, width = dataset.info.size
    depths = [dataset.depth(row) for row in dataset.rows("train").tolist()]
    if patch_size is None:
        return (min(MAX_DEPTH, int(np.percentile(depths, WHOLE_PERCENT, method="higher"))), height, width)
    if len(patch_size) != 3 or min(patch_size) < 1:
        shown = " ".join(map(str, patch_size))
        raise ConfigError(f"train.patch_size {shown} is invalid; give slices, height and width, such as 16 64 64")
    depth, *plane = patch_size
    if plane[0] > height or plane[1] > width:
        raise ConfigError(
            f"train.patch_size has {plane[0]} x {plane[1]} pixels, but the slices of {dataset.path} have only "
            f"{height} x {width}; use at most {height} x {width}, in the order slices, height, width"
        )
    deepest = max(depths, default=depth)
    if depth > deepest:
        raise ConfigError(
            f"train.patch_size has {depth} slices, but the deepest training volume of {dataset.path} has only "
            f"{deepest}; use at most {deepest}, in the order slices, height, width"
        )
    return depth, plane[0], plane[1]


def draw_patches(
    patch_size: Sequence[int], sizes: Sequence[Sequence[int]], *, generator: torch.Generator
) -> NDArray[np.int64]:
    """Draw for each volume where its patch starts, (B, 3).

    All positions inside the volume are equally likely. If the volume is smaller than the patch, all positions of
    the volume inside the patch are, and the start is negative.

    Args:
        patch_size: (D, H, W) of the patches.
        sizes: (D, H, W) of each volume.
        generator: random generator on the CPU.
    """
    places = torch.rand(len(sizes), 3, generator=generator, dtype=torch.float64).numpy()
    free = np.asarray(sizes) - np.asarray(patch_size)  # (B, 3)
    first, last = np.minimum(free, 0), np.maximum(free, 0)
    starts: NDArray[np.int64] = first + np.floor(places * (last - first + 1)).astype(np.int64)
    return starts


def window(start: int, length: int, size: int) -> NDArray[np.int64]:
    """Return the indices from `start` on along an axis of `size`; the ends are repeated beyond the axis.

    The ends of a stack of slices would show a network where annotators stopped. Repeated slices show nothing,
    because their image and their labels continue alike.

    >>> window(-2, 5, 4).tolist()
    [0, 0, 0, 1, 2]
    """
    return np.clip(np.arange(start, start + length), 0, size - 1)
