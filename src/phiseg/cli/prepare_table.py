"""The command `phiseg prepare table`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.early_checks import check_exists
from phiseg.cli.parsing import Flag, optional, parse
from phiseg.cli.prepare_common import command_line, print_counts, print_summary
from phiseg.cli.prepare_options import parse_size, parse_values
from phiseg.core.errors import ConfigError


@dataclass
class PrepareTable:
    """Prepare a dataset from a table of images and labels, for files in any place.

    FILE.csv has the columns image, rater and label, and one row per label. Optional columns are patient, split
    (train, val or test) and case (name of the image). Paths are relative to the folder of the table. The images are
    NIfTI volumes or 2-D pictures (PNG, JPEG, TIFF, BMP).

    Examples:
        phiseg prepare table scans.csv data --spacing 0.6 --size 192 --dry-run
        phiseg prepare table fundus.csv data --size 256 --values 0:0 128:1 255:2 --classes background disc cup
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.csv")]
    """Table of images and labels."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder of the dataset to write."""
    size: Annotated[str | None, optional("H[xW]", "the largest slice; pictures keep their size")] = None
    """Size of the images: slices are cropped or padded to it, pictures resized with their aspect kept."""
    window: Annotated[tuple[float, float] | None, optional("LOW HIGH", "z-score each volume; 0 255 of 8 bits")] = (
        None
    )
    """Values that are mapped to -0.5 and 0.5."""
    values: Annotated[tuple[str, ...], optional("VALUE:CLASS ...", "automatic")] = ()
    """Class of each value in the labels. By default, values of volumes are classes, and two values in pictures are
    background and class 1."""
    classes: Annotated[tuple[str, ...] | None, optional("NAME ...", "numbered")] = None
    """Names of the classes, background first."""
    modality: Annotated[Literal["CT", "MR", "PT"] | None, optional("{CT,MR,PT}", "not recorded")] = None
    """Modality of the images (PT is PET). `phiseg predict` then rejects DICOM series of another modality."""
    grey: Flag = False
    """Only for pictures: convert colours to grey values."""
    volumes: Flag = False
    """Only for NIfTI: write each scan as a volume, for 3-D models, instead of separate slices."""
    plane: Annotated[
        Literal["axial", "coronal", "sagittal", "auto"] | None, optional("{axial,coronal,sagittal,auto}", "axial")
    ] = None
    """Only for NIfTI: plane of the slices; auto uses the plane of acquisition."""
    spacing: Annotated[float | None, optional("MM", "keep the spacing of each volume")] = None
    """Only for NIfTI: pixel spacing in mm to resample the slices to."""
    fractions: str = "60,20,20"
    """Shares of train, val and test in percent, for a table without splits."""
    seed: int = 0
    """Random seed of the split by patient."""
    strict: Flag = False
    """Stop at the first unusable case instead of skipping it."""
    dry_run: Flag = False
    """List cases, annotators, sizes and classes without writing anything."""
    overwrite: Flag = False
    """Replace OUT if it is a dataset."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PrepareTable, arguments, prog=prog)
    check_exists(command.file)
    if command.file.suffix.lower() != ".csv":
        raise ConfigError(f"{command.file} is not a .csv file; save the table as CSV")
    from phiseg.data.prepare.table import lists_nifti

    prepare = _prepare_volumes if lists_nifti(command.file) else _prepare_pictures
    prepare(command, command_line(prog, arguments))


def _prepare_volumes(command: PrepareTable, line: str) -> None:
    from phiseg.data.prepare.nifti import prepare_nifti, preview_nifti
    from phiseg.data.prepare.nifti_slices import Slicing
    from phiseg.data.splits import parse_fractions

    if command.grey:
        raise ConfigError("--grey is for pictures, but the table lists NIfTI files; omit it")
    size, merge = parse_size(command.size), parse_values(command.values, option="--values")
    slicing = Slicing(
        plane=command.plane or "axial",
        spacing=command.spacing,
        size=size,
        window=command.window,
        volumes=command.volumes,
    )
    if command.dry_run:
        print(
            preview_nifti(
                command.file, slicing=slicing, merge=merge, classes=command.classes, strict=command.strict
            )
        )
        return
    dataset = prepare_nifti(
        command.file,
        command.out,
        slicing=slicing,
        merge=merge,
        classes=command.classes,
        modality=command.modality,
        seed=command.seed,
        fractions=parse_fractions(command.fractions),
        workers=os.cpu_count() or 1,
        strict=command.strict,
        overwrite=command.overwrite,
        command=line,
    )
    print_counts(dataset, num_used=len({case["scan"] for case in dataset.cases}))
    print_summary(dataset)


def _prepare_pictures(command: PrepareTable, line: str) -> None:
    from phiseg.data.prepare.fixed_size_source import FixedSizeOptions
    from phiseg.data.prepare.images import prepare_images, preview_images
    from phiseg.data.splits import parse_fractions

    if command.volumes or command.plane or command.spacing:
        raise ConfigError(
            "--volumes, --plane and --spacing are for NIfTI files, but the table lists pictures; omit them"
        )
    options = FixedSizeOptions(
        window=command.window,
        classes=command.classes,
        modality=command.modality,
        seed=command.seed,
        fractions=parse_fractions(command.fractions),
    )
    size, values = parse_size(command.size), parse_values(command.values, option="--values") or None
    grey, strict = command.grey, command.strict
    if command.dry_run:
        print(preview_images(command.file, options, values=values, size=size, grey=grey, strict=strict))
        return
    dataset = prepare_images(
        command.file,
        command.out,
        options,
        values=values,
        size=size,
        grey=grey,
        strict=strict,
        overwrite=command.overwrite,
        command=line,
    )
    print_counts(dataset, num_used=dataset.num_cases)
    print_summary(dataset)
