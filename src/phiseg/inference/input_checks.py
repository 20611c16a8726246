"""Checks of the input of a prediction that need neither the scan nor the model. Importing this module is fast."""

from collections.abc import Sequence
from pathlib import Path

from phiseg.core.errors import ConfigError, DataError, nearest

INPUTS = (
    "give a NIfTI, .mha, .nrrd or picture file (PNG, JPEG, TIFF, BMP), a DICOM folder or a folder of these, not "
    "phiseg output"
)

MAPS = ("labels", "mean", "gamma", "samples")
"""Results of a case that `phiseg batch` can write."""


def check_inputs(inputs: Sequence[Path], *, results: Path | None = None) -> None:
    """Check that inputs exist, and that none of them is the folder for the results.

    Raises:
        DataError: there is no input, or one of them is missing or the folder for the results.
    """
    if not inputs:
        raise DataError(f"there is no INPUT; {INPUTS}")
    for path in inputs:
        if not path.exists():
            raise DataError(f"{path} does not exist; {INPUTS}")
        if results and path.resolve() == results.resolve():
            raise DataError(f"{path} is both an input and the folder for the results; use another --out")


def check_point(centred_on: str | None, *, has_point: bool, name: str, option: str = "point=(x, y, z)") -> None:
    """Check that a point is given for a lesion-crop model, and not for a whole-slice model.

    Args:
        centred_on: object at the centre of the training images; None for whole slices.
        has_point: whether a point is given.
        name: name of the scan.
        option: option or argument that gives the point, for the error.

    Raises:
        ConfigError: the point is missing, or the model takes none.
    """
    if centred_on is None and has_point:
        raise ConfigError(f"the model segments whole slices and takes no point; predict {name} without a point")
    if centred_on is not None and not has_point:
        raise ConfigError(f"the model segments crops around a {centred_on}; give its position in {name}: {option}")


def find_socket(folder: Path, socket: str | None = None) -> Path:
    """Return the folder images/SOCKET with the scans of a batch.

    Args:
        folder: folder that contains images/.
        socket: name of the folder in images/; not needed if there is only one.

    Raises:
        DataError: there is no such folder.
        ConfigError: there are several folders, and `socket` is None.
    """
    images = folder / "images"
    names = sorted(entry.name for entry in images.iterdir() if entry.is_dir()) if images.is_dir() else []
    if not names:
        raise DataError(
            f"{folder} has no scans; put them into {images / 'SOCKET'}, such as {images / 'ct' / 'a.mha'}"
        )
    if socket is None and len(names) > 1:
        raise ConfigError(f"{images} has several folders ({', '.join(names)}); choose one with --socket")
    if socket is not None and socket not in names:
        raise DataError(f"{images} has no folder '{socket}' ({nearest(socket, names)}); change --socket")
    return images / (socket or names[0])


def parse_maps(words: Sequence[str]) -> dict[str, str]:
    """Return the output folder of each result, from words such as `labels:nodule-segmentation`.

    Raises:
        ConfigError: a word has another form, or a result or a folder is given twice.
    """
    maps: dict[str, str] = {}
    for word in words:
        result, colon, socket = word.partition(":")
        if result not in MAPS or not colon or Path(socket).name != socket or socket in ("", ".."):
            raise ConfigError(
                f"'{word}' is not RESULT:SOCKET; write, for example, labels:segmentation, with one of the results "
                f"{', '.join(MAPS)}"
            )
        if result in maps or socket.casefold() in map(str.casefold, maps.values()):  # some disks ignore case
            raise ConfigError(f"'{word}' repeats a result or a socket; give each of them once")
        maps[result] = socket
    return maps
