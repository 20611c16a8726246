"""`phiseg prepare arrays`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.fixed_size_options import FixedSizeArguments
from phiseg.cli.parsing import parse
from phiseg.cli.prepare_common import command_line, tell


@dataclass
class PrepareArrays(FixedSizeArguments):
    """Make a dataset from one .npz file of images and masks.

    The file has `images` [N,H,W] or [N,H,W,C] and `masks` [N,A,H,W] with class indices, and may have `case_ids` [N]
    (the patient), `split` [N] (train, val, test), `valid` [N,A] (0: a reader is missing) and `pixel_spacing_mm`.
    Other arrays with one value a row become columns of cases.csv. It is read row by row, and nothing is unpickled.

    With `case_ids`, `nodule` [N] and `slice` [N] a case is named PATIENT-nodule-N-slice-M.

    Example: phiseg prepare arrays crops.npz data --window -1000 400 --centred-on nodule

    Example: phiseg prepare arrays uint8.npz data --rescale 5.490196 -1000 --window -1000 400
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.npz")]
    """The arrays."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to make."""
    zscore: bool = False
    """Give every image mean 0 and standard deviation 1 instead of a window (MR)."""
    classes: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="NAME ...")] = None
    """Names of the classes, the background first; by default as many as the masks hold."""
    centred_on: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """What every image is centred on, if these are crops and not whole slices; a model must be shown the like."""
    modality: Literal["CT", "MR", "PT"] | None = None
    """What made the images (PT is PET); `phiseg predict` then refuses a DICOM series of another kind."""
    plane: Literal["axial", "coronal", "sagittal"] | None = None
    """How the images lie in the body; `phiseg predict` then slices scans likewise."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PrepareArrays, arguments, prog=prog)
    from phiseg.data.prepare.arrays import prepare_arrays

    options = command.fixed_size_options(
        classes=command.classes,
        centred_on=command.centred_on,
        modality=command.modality,
        plane=command.plane,
        zscore=command.zscore,
    )
    line = command_line(prog, arguments)
    tell(prepare_arrays(command.file, command.out, options, overwrite=command.overwrite, command=line))
