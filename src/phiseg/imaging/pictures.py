"""Two-dimensional pictures and masks: PNG, JPEG, TIFF and BMP, grey or RGB, of one page.

Pictures are turned upright as their EXIF orientation states. C channels, H x W pixels.
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
from PIL import ExifTags, Image, UnidentifiedImageError

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


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""How to turn a picture upright, by its EXIF orientation."""


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
            # Pillow would map a path into memory, which scrambles TIFF files that are turned by a quarter.
            with path.open("rb") as file, Image.open(file, formats=formats) as image:
                if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:  # MPO: a JPEG file with previews
                    raise DataError(
                        f"{path} has several pages; save each page as its own file, or convert slices of a volume "
                        "to NIfTI"
                    )
                yield image
    except UnidentifiedImageError:
        raise DataError(f"{path} cannot be read as {what} (unknown format); copy or convert it again") from None
    except _DAMAGE as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path} cannot be read as {what} ({reason}); copy or convert it again") from None


def upright(image: Image.Image) -> Image.Image:
    """Return an opened picture as its EXIF orientation states. Pillow turns TIFF files itself."""
    turn = _turn(image)
    return image if turn is None or image.format == "TIFF" else image.transpose(turn)


def read_picture_header(path: Path) -> PictureHeader:
    """Read the size of a picture and its number of channels: 1 if it is grey, 3 if it has colours.

    Raises:
        DataError: the file is missing, damaged or of another format.
    """
    with opened(path) as stored:
        image = upright(stored)
        return PictureHeader(image.height, image.width, 1 if _is_grey(image) else 3)


def read_picture(path: Path, *, grey: bool = False) -> NDArray[Any]:
    """Read a picture (C, H, W) with 1 or 3 channels. Transparency is dropped.

    Args:
        path: file.
        grey: convert colours to grey values.

    Raises:
        DataError: the file is missing, damaged or of another format, or has several pages.
    """
    with opened(path) as stored:
        is_deep, is_turned = _is_deep(stored), _turn(stored) is not None
        image = upright(stored)
        if _is_grey(image):
            return _plain(np.asarray(image.convert("L") if image.mode == "LA" else image))[None]
        if not is_deep:
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
            return np.moveaxis(pixels.reshape(*pixels.shape[:2], -1), 2, 0)
        if is_turned:
            raise DataError(f"{path} has 16-bit colours and is turned by its EXIF orientation; save it upright")
        import SimpleITK  # here, because importing it takes time

        pixels = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(path))[..., :3]  # Pillow keeps 8 of 16 bits
        colours = np.moveaxis(pixels, 2, 0)
        weights = np.array([0.299, 0.587, 0.114])  # as Pillow converts 8 bits
        return np.rint(np.tensordot(weights, colours, 1))[None].astype(pixels.dtype) if grey else colours


def read_mask(path: Path) -> NDArray[Any]:
    """Read the values (H, W) of a mask as uint8 or uint16: grey values, or the indices of a palette.

    Raises:
        DataError: the file cannot be read, or has colours, fractions, or values outside 0 to 65535.
    """
    with opened(path, what="a mask") as stored:
        image = upright(stored)
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


def _turn(image: Image.Image) -> Image.Transpose | None:
    """Return how to turn a picture upright; None if it is upright or its EXIF data cannot be read."""
    try:
        return _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except (SyntaxError, struct.error, KeyError, TypeError, ValueError):
        return None


def _whole(mask: NDArray[Any], path: Path) -> NDArray[Any]:
    if mask.dtype.kind == "u":
        return mask
    if not (mask.min() >= 0 and mask.max() <= np.iinfo(np.uint16).max and (mask == np.rint(mask)).all()):
        raise DataError(
            f"{path} has fractions or values outside 0 to 65535, not one value per class; save it with the "
            "integers 0, 1, ..."
        )
    return mask.astype(np.uint16)


def _plain(pixels: NDArray[Any]) -> NDArray[Any]:
    """Return grey values as uint8, uint16, int32 or float32.

    The type depends on that of the file, not on its values, because the images of a dataset have one type.
    """
    return pixels.astype({"b": np.uint8, "f": np.float32}.get(pixels.dtype.kind, pixels.dtype))
