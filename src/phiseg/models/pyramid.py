"""Resolution levels of a network: the stride of each step and the kernel of each level, for each axis.

Shapes: R resolution levels, finest first. The axes are (H, W) of an image or (D, H, W) of a volume.
"""

from itertools import accumulate
from typing import NamedTuple

PerAxis = tuple[int, ...]
"""One number for each axis; its length is the number of dimensions."""


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
