"""Sources of images of a fixed size, and the options for converting them."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tqdm import tqdm

from phiseg.core.errors import ConfigError, DataError
from phiseg.data.manifest import MISSING, SlicePlane
from phiseg.data.prepare.option_checks import check_size, check_window
from phiseg.data.prepare.rescale import check_rescale
from phiseg.data.splits import split_patients
from phiseg.data.writer import Case


class Item(NamedTuple):
    """One case of the source, and its split in the source."""

    case: Case
    split: str | None


class Source(Protocol):
    """A source that can be iterated repeatedly."""

    @property
    def path(self) -> Path:
        """File or folder of the source."""

    @property
    def spacing_mm(self) -> tuple[float, float] | None:
        """Pixel spacing (vertical, horizontal), if all cases have the same."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Item]: ...


@dataclass(frozen=True, kw_only=True)
class FixedSizeOptions:
    """What the user decides about a stack."""

    rescale: tuple[float, float] | None = None
    """Slope and intercept that are applied to the stored values first."""
    window: tuple[float, float] | None = None
    """Stored values that are mapped to the darkest and brightest value; None estimates them from the images."""
    zscore: bool = False
    """Normalise each image to mean 0 and standard deviation 1 instead of using a window."""
    classes: tuple[str, ...] | None = None
    """Class names, background first; None numbers the classes in the masks."""
    size: int | None = None
    """Height and width to crop or pad the images to around their centre; None keeps the size."""
    centred_on: str | None = None
    """Object at the centre of every image, such as a nodule; None for whole slices."""
    modality: str | None = None
    """DICOM modality of the images (CT, MR, PT), if known."""
    plane: SlicePlane | None = None
    """Plane of the images, if known."""
    resplit: bool = False
    """Ignore the splits of the source and make new ones by patient."""
    seed: int = 0
    fractions: tuple[float, ...] = (60, 20, 20)
    name: str | None = None
    """Name of the dataset; None uses the name of the file."""

    def __post_init__(self) -> None:
        if self.window and self.zscore:
            raise ConfigError("--window and --zscore cannot be used together; omit one of them")
        if self.rescale and self.zscore:
            raise ConfigError("--rescale has no effect with --zscore; omit one of them")
        check_rescale(self.rescale)
        check_window(self.window)
        if self.size is not None:
            check_size(self.size)
        split_patients([], seed=self.seed, fractions=self.fractions)  # validate before reading
        if self.classes is not None and not 2 <= len(set(self.classes)) == len(self.classes) <= MISSING:
            raise ConfigError(
                "--classes requires at least two different names separated by spaces, such as: background nodule"
            )


def print_note(note: str) -> None:
    """Print a note to stderr without breaking progress bars."""
    tqdm.write(f"phiseg: {note}", file=sys.stderr)


def text_of(value: Any, *, where: str) -> str:
    """Return a name, number or identifier as text.

    Raises:
        DataError: the text has unprintable characters.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    text = str(value)
    if not text.isprintable():
        raise DataError(f"{where}: {text[:40]!r} has unprintable characters; use plain text")
    return text
