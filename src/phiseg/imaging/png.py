"""PNG files with grey values or labels."""

import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from phiseg.core.errors import DataError


def read_png(path: Path) -> NDArray[Any]:
    """Return a grey PNG (H, W) of 8 or 16 bits.

    Raises:
        DataError: the file is missing, damaged, or not a grey PNG.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=["PNG"]) as image:
                if image.mode not in ("L", "1", "I;16", "I;16B", "I"):
                    raise ValueError(f"its mode is {image.mode}, not grey")
                pixels = np.asarray(image)
    except (
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
    ) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path} cannot be read as a grey PNG ({reason})") from None
    return pixels.astype({"b": np.uint8, "i": np.uint16}.get(pixels.dtype.kind, pixels.dtype))
