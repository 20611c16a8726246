"""Resolution levels of a network: the stride of each step and the kernel of each level, for each axis.

Shapes: R resolution levels, finest first. The axes are (H, W) of an image or (D, H, W) of a volume.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

PerAxis = tuple[int, ...]
"""One number for each axis; its length is the number of dimensions."""
MIN_SIDE = 2
"""Least number of pixels of a training patch along an axis after a step that halves it."""


class Pyramid(NamedTuple):
    """Strides and kernels of R resolution levels.

    Attributes:
        strides: R - 1 entries. Entry r is the factor, 1 or 2 along each axis, between level r and level r + 1.
        kernels: R entries. Entry r is the size of the convolutions of level r, 1 or 3 along each axis.
    """

    strides: tuple[PerAxis, ...]
    kernels: tuple[PerAxis, ...]

    @classmethod
    def regular(cls, dims: int, num_levels: int) -> "Pyramid":
        """Return a pyramid with stride 2 and kernel 3 along every axis.

        >>> Pyramid.regular(2, 3)
        Pyramid(strides=((2, 2), (2, 2)), kernels=((3, 3), (3, 3), (3, 3)))
        """
        return cls(((2,) * dims,) * (num_levels - 1), ((3,) * dims,) * num_levels)

    @property
    def dims(self) -> int:
        """The number of dimensions, 2 or 3."""
        return len(self.kernels[0])

    @property
    def point(self) -> PerAxis:
        """The kernel of a convolution that does not see neighbouring pixels."""
        return (1,) * self.dims

    def scale(self, level: int) -> PerAxis:
        """Return the side lengths of a pixel of `level` in pixels of the image.

        >>> Pyramid(((1, 2, 2), (2, 2, 2)), ((1, 3, 3), (3, 3, 3), (3, 3, 3))).scale(2)
        (2, 4, 4)
        """
        *_, scale = accumulate(
            self.strides[:level],
            lambda sides, stride: tuple(a * b for a, b in zip(sides, stride, strict=True)),
            initial=self.point,
        )
        return scale

    def finest(self, num_levels: int) -> "Pyramid":
        """Return the pyramid of the `num_levels` finest levels."""
        return Pyramid(self.strides[: num_levels - 1], self.kernels[:num_levels])


def plan_pyramid(spacing_mm: Sequence[float], num_levels: int, patch_size: Sequence[int] | None = None) -> Pyramid:
    """Return strides and kernels for pixels with different side lengths, by the rules of nnU-Net.

    Each step halves the axes whose spacing is less than twice the finest, so that pixels become cubes at coarse
    levels. Along an axis, kernels are 1 at first, and 3 from the level on at which its spacing is at most twice the
    finest. An axis is not halved if fewer than `MIN_SIDE` pixels of a patch would be left; from then on, the finest
    spacing is that of the other axes.

    >>> plan_pyramid((2.5, 0.7, 0.7), 3)
    Pyramid(strides=((1, 2, 2), (2, 2, 2)), kernels=((1, 3, 3), (3, 3, 3), (3, 3, 3)))

    Args:
        spacing_mm: distance between pixels along each axis.
        num_levels: R.
        patch_size: pixels of a training image along each axis; None does not limit the strides.
    """
    axes, spacing = range(len(spacing_mm)), list(spacing_mm)
    size = [MIN_SIDE * 2**num_levels] * len(spacing) if patch_size is None else list(patch_size)
    strides: list[PerAxis] = []
    kernels: list[PerAxis] = []
    for level in range(num_levels):
        divisible = [i for i in axes if size[i] >= 2 * MIN_SIDE]
        finest = min(spacing[i] for i in divisible or axes)
        before = kernels[-1] if kernels else (1,) * len(spacing)
        kernels.append(tuple(3 if before[i] == 3 or spacing[i] <= 2 * finest else 1 for i in axes))
        if level == num_levels - 1:
            break
        strides.append(tuple(2 if i in divisible and spacing[i] < 2 * finest else 1 for i in axes))
        spacing = [length * stride for length, stride in zip(spacing, strides[-1], strict=True)]
        size = [-(-side // stride) for side, stride in zip(size, strides[-1], strict=True)]
    return Pyramid(tuple(strides), tuple(kernels))
