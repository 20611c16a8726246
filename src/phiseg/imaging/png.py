"""PNG files with grey values or labels."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phiseg.imaging.pictures import opened, upright


def read_png(path: Path) -> NDArray[Any]:
    """Return a grey PNG (H, W) of 8 or 16 bits.

    Raises:
        DataError: the file is missing, damaged, or not a grey PNG.
    """
    with opened(path, ("PNG",), what="a grey PNG") as image:
        if image.mode not in ("L", "1", "I;16", "I"):  # "I" in older versions of Pillow
            raise ValueError(f"its mode is {image.mode}, not grey")
        pixels = np.asarray(upright(image))
    return pixels.astype({"b": np.uint8, "i": np.uint16}.get(pixels.dtype.kind, pixels.dtype))
