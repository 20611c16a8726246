"""Parts of a scan that the network processes one after another: tiles of slices and windows of slices.

Shapes: H x W pixels of a slice, h x w of a tile or box.
"""

from math import ceil, floor, log2, pi

import numpy as np
from numpy.typing import NDArray

from phiseg.imaging.frame import Frame
from phiseg.inference.prepared_stack import PreparedStack

OVERLAP = 0.5
"""Overlap of neighbouring tiles as a share of their size."""
Box = tuple[slice, slice, slice]
"""Range of slices, rows and columns of a stack."""


def tiles(stack: PreparedStack, stride: int) -> list[Frame]:
    """Return the frames that cover a slice: a centred one if it is large enough, as in training, or else a grid.

    Pictures that are resized as in training need only one.
    """
    if frame := stack.fitted_frame:
        return [frame]
    axes = []
    sizes = stack.preprocessing.inference_patch_size[1:]
    for length, size, step in zip(stack.stack.grid[1:], sizes, stack.step, strict=True):
        whole = ceil(length / step - 1e-6)  # pixels of the network
        first = (length - 1) / 2 - step * (max(whole, size) - 1) / 2
        first = float(np.floor(first)) if step == 1 else first
        axes.append([first + step * place for place in covering(whole, size, stride)])
    return [Frame((row, column), stack.step, sizes) for row in axes[0] for column in axes[1]]


def covering(length: int, size: int, stride: int) -> list[int]:
    """Return where overlapping parts of `size` start that cover an axis.

    They start at multiples of the network's stride, so that the noise can be cut in the same way (or at multiples
    of a smaller power of two if the parts are not larger than the stride).

    >>> covering(30, 16, 4), covering(16, 16, 4)
    ([0, 8, 16], [0])
    """
    spare = max(0, length - size)
    grain = min(stride, 2 ** floor(log2(size / 2)) if size > 1 else 1)
    steps = ceil(spare / grain)
    number = ceil(spare / (size * (1 - OVERLAP)))
    return sorted({grain * round(steps * n / number) for n in range(number + 1)}) if number else [0]


def pixels_of(frame: Frame, axis: int, length: int) -> slice:
    """Return the pixels of a slice whose centres are inside a frame."""
    edge = frame.origin[axis] - frame.step[axis] / 2
    first, last = edge + 1e-6, edge + frame.step[axis] * frame.size[axis] - 1e-6
    return slice(max(0, int(np.ceil(first))), min(length, int(np.floor(last)) + 1))


def taper(length: int) -> NDArray[np.float64]:
    """Return weights (length,) that decrease towards both ends, so that parts are blended without a seam."""
    weights: NDArray[np.float64] = np.sin((np.arange(length) + 0.5) / length * pi) ** 2 + 1e-3
    return weights


def back_from(frame: Frame, part: tuple[slice, ...]) -> Frame:
    """Return the frame that extracts some rows and columns of a slice from the network's image."""
    rows, columns = part
    moved = Frame((frame.origin[0] - rows.start, frame.origin[1] - columns.start), frame.step, frame.size)
    return moved.inverse((rows.stop - rows.start, columns.stop - columns.start))
