"""Checks of the input of a prediction that need neither the scan nor the model. Importing this module is fast."""

from collections.abc import Sequence
from pathlib import Path

from phiseg.core.errors import ConfigError, DataError

INPUTS = "give a NIfTI file, a PNG file, a DICOM folder or a folder of these, but no results of phiseg"


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


def check_point(centred_on: str | None, *, has_point: bool, name: str) -> None:
    """Check that a point is given for a model of lesion-centred crops, and not for a model of whole slices.

    Args:
        centred_on: object at the centre of the training images; None for whole slices.
        has_point: whether a point is given.
        name: name of the scan.

    Raises:
        ConfigError: the point is missing, or the model takes none.
    """
    if centred_on is None and has_point:
        raise ConfigError(f"the model segments whole slices and takes no point; predict {name} without a point")
    if centred_on is not None and not has_point:
        raise ConfigError(
            f"the model segments crops around a {centred_on}; give its position in {name}: --at x,y,z"
        )
