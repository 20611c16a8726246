"""Two-dimensional pictures and masks: PNG, JPEG, TIFF and BMP, grey or RGB, 8 or 16 bits.

C channels, H x W pixels.
"""

import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from phiseg.core.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
FORMATS = ("PNG", "JPEG", "TIFF", "BMP")

_GREY = ("L", "1", "I", "F", "I;16", "I;16B", "I;16L")
_DAMAGE = (
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
    OSError,
    SyntaxError,  # raised by Pillow for a broken chunk
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    OverflowError,
    RuntimeError,
    MemoryError,
    EOFError,
    struct.error,
    zlib.error,
)


class PictureHeader(NamedTuple):
    """Size and number of channels of a picture."""

    height: int
    width: int
    channels: int


@contextmanager
def opened(path: Path, formats: tuple[str, ...] = FORMATS, *, what: str = "a picture") -> Iterator[Image.Image]:
    """Open a picture; any error while reading it becomes a DataError.

    Args:
        path: file.
        formats: accepted formats, as Pillow names them.
        what: description of the expected content, for the error.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=formats) as image:
                yield image
    except _DAMAGE as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path} cannot be read as {what} ({reason}); copy or convert it again") from None


def read_picture_header(path: Path) -> PictureHeader:
    """Read the size of a picture and its number of channels: 1 if it is grey, 3 if it has colours.

    Raises:
        DataError: the file is missing, damaged or of another format.
    """
    with opened(path) as image:
        return PictureHeader(image.height, image.width, 1 if _is_grey(image) else 3)


def read_picture(path: Path, *, grey: bool = False) -> NDArray[Any]:
    """Read a picture (C, H, W) with 1 or 3 channels. Transparency is dropped.

    Args:
        path: file.
        grey: convert colours to grey values.

    Raises:
        DataError: the file is missing, damaged or of another format.
    """
    with opened(path) as image:
        if _is_grey(image):
            return _plain(np.asarray(image.convert("L") if image.mode == "LA" else image))[None]
        if not _is_deep(image):
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
            return np.moveaxis(pixels.reshape(*pixels.shape[:2], -1), 2, 0)
        import SimpleITK  # here, because importing it takes time

        pixels = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(path))[..., :3]  # Pillow keeps 8 of 16 bits
        colours = np.moveaxis(pixels, 2, 0)
        weights = np.array([0.299, 0.587, 0.114])  # as Pillow converts 8 bits
        return np.rint(np.tensordot(weights, colours, 1))[None].astype(pixels.dtype) if grey else colours


def read_mask(path: Path) -> NDArray[Any]:
    """Read the values (H, W) of a mask as uint8 or uint16: grey values, or the indices of a palette.

    Raises:
        DataError: the file cannot be read, or has colours or fractions.
    """
    with opened(path, what="a mask") as image:
        if image.mode == "P":
            return np.asarray(image)
        if image.mode in (*_GREY, "LA"):
            return _whole(_plain(np.asarray(image.convert("L") if image.mode == "LA" else image)), path)
        colours = np.asarray(image.convert("RGB"))
        if (colours == colours[..., :1]).all():
            return colours[..., 0]
    raise DataError(f"{path} has colours, not one value per class; save it with grey values")


def fitted(pixels: NDArray[Any], size: tuple[int, int], *, labels: bool = False) -> NDArray[Any]:
    """Resize pictures (..., H, W) to the given height and width, keep their aspect and pad them with 0.

    Args:
        pixels: pictures.
        size: height and width of the result.
        labels: copy the nearest pixel instead of averaging pixels.
    """
    (height, width), (top, left) = fitted_place(pixels.shape[-2:], size)
    out = np.zeros((*pixels.shape[:-2], *size), dtype=pixels.dtype)
    for index in np.ndindex(pixels.shape[:-2]):
        plane = Image.fromarray(pixels[index].astype(np.float32))
        method = Image.Resampling.NEAREST if labels else Image.Resampling.BILINEAR
        resized = np.asarray(plane.resize((width, height), method))
        values = resized if pixels.dtype.kind == "f" else np.rint(resized)
        out[(*index, slice(top, top + height), slice(left, left + width))] = values
    return out


def fitted_place(before: Sequence[int], size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the size of a resized picture and its upper left corner in the padded one.

    >>> fitted_place((100, 200), (64, 64))
    ((32, 64), (16, 0))
    """
    scale = min(size[0] / before[0], size[1] / before[1])
    height, width = (min(whole, max(1, round(side * scale))) for side, whole in zip(before, size, strict=True))
    return (height, width), ((size[0] - height) // 2, (size[1] - width) // 2)


def _is_grey(image: Image.Image) -> bool:
    return image.mode in (*_GREY, "LA")


def _is_deep(image: Image.Image) -> bool:
    """Return whether a colour picture has 16 bits per channel, which Pillow opens as 8 bits."""
    tiles: Any = getattr(image, "tile", ())  # only of pictures in files
    return image.mode in ("RGB", "RGBA") and any("16" in str(tile.args) for tile in tiles)


def _whole(mask: NDArray[Any], path: Path) -> NDArray[Any]:
    if mask.dtype.kind != "f":
        return mask
    values = mask.astype(np.uint16, casting="unsafe") if np.isfinite(mask).all() and mask.min() >= 0 else mask
    if (values != mask).any() or values.dtype.kind == "f":
        raise DataError(f"{path} has fractions or negative values, not one value per class; save it with integers")
    return values


def _plain(pixels: NDArray[Any]) -> NDArray[Any]:
    """Return grey values as uint8, uint16 or float32."""
    return pixels.astype({"b": np.uint8, "i": np.uint16, "f": np.float32}.get(pixels.dtype.kind, pixels.dtype))
