"""The command `phiseg example`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import Flag, parse
from phiseg.core.bundled import find_model
from phiseg.core.errors import OutputError
from phiseg.core.files import check_new_file


@dataclass
class Example:
    """Write a small synthetic scan with a lesion to try `phiseg predict` and `phiseg view`.

    The scan has the spacing, plane and values of the training images of a model. The command prints the
    `phiseg predict` command with the position of the lesion.

    Examples:
        phiseg example scan.nii.gz
        phiseg example scan.nii.gz --model runs/phiseg
    """

    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """NIfTI file to write, .nii.gz or .nii."""
    model: str = "lidc-nodule"
    """Model that the scan is made for: model folder, run folder or name of a bundled model."""
    overwrite: Flag = False
    """Replace FILE if it exists."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Example, arguments, prog=prog)
    if not command.out.name.lower().endswith((".nii.gz", ".nii")):
        raise OutputError(f"{command.out} is not a NIfTI file name; use a name that ends in .nii.gz")
    check_new_file(command.out, overwrite=command.overwrite)
    find_model(Path(command.model))
    from phiseg.imaging.nifti_files import write_nifti
    from phiseg.imaging.volume import Volume
    from phiseg.inference.example_scan import example_volume
    from phiseg.inference.preprocessing import Preprocessing
    from phiseg.models import load_model

    preprocessing = Preprocessing.of(load_model(Path(command.model)))
    volume, (number, row, column) = example_volume(preprocessing)
    values = volume.values[..., 0] if volume.values.shape[3] == 1 else volume.values
    write_nifti(command.out, Volume(values, volume.affine))
    print(f"{command.out}: synthetic scan of {' x '.join(map(str, volume.grid))} voxels")
    point = f"--at {column},{row},{number} " if preprocessing.centred_on else ""
    print(f"next: phiseg predict {command.model} {command.out} {point}--out pred")
