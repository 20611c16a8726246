"""The command `phiseg prepare nifti`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.early_checks import check_exists
from phiseg.cli.parsing import Flag, optional, parse
from phiseg.cli.prepare_common import command_line, print_counts, print_summary
from phiseg.cli.prepare_options import file_patterns, parse_size, parse_values


@dataclass
class PrepareNifti:
    r"""Prepare a dataset of slices or volumes from NIfTI files with one label file per annotator.

    SRC has one folder per case: <case>/image.nii.gz (a fourth dimension holds channels) and
    <case>/rater-<name>.nii.gz. Alternatively, SRC is a raw data folder of nnU-Net: imagesTr/<case>_0000.nii.gz
    (_0001 and so on are further channels), one label folder per annotator such as labelsTr_anna/<case>.nii.gz, and
    dataset.json with the class names. Each case is one patient, unless SRC/patients.csv (case,patient) maps cases
    to patients.

    For any other layout, give the patterns of the file names with `--image` and `--rater`. A pattern is compared
    with the end of each path. It is a glob, in which {rater}, {case}, {target}, {patient} and {split} name parts of
    the path and a single * in --rater is the annotator, or a regular expression with named groups such as
    (?P<rater>\d+).

    An annotator without a file for a case is marked as missing for this case. Image and labels must be on the same
    grid, but their axes may be in different orders. Unusable cases are reported, skipped and counted at the end.

    Examples:
        phiseg prepare nifti scans data --window -1000 400
        phiseg prepare nifti prostate data --spacing 0.6 --size 192 --merge 3:0 --classes background tz pz
        phiseg prepare nifti scans data --volumes --spacing 0.7 --size 256 --window -1000 400
        phiseg prepare nifti brain-growth data --image image.nii.gz --rater 'task01_seg*.nii.gz' --dry-run
        phiseg prepare nifti CURVAS data --image image.nii.gz --rater 'annotation_(?P<rater>\d+).nii.gz'
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]
    """Folder with the volumes."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder of the dataset to write."""
    image: Annotated[tuple[str, ...], optional("PATTERN ...", "the layouts above")] = ()
    """Pattern of the images. Several patterns are several channels."""
    rater: Annotated[str | None, optional("PATTERN", "the layouts above")] = None
    """Pattern of the label files."""
    target: Annotated[str | None, optional("NAME", "the only one")] = None
    """Value of {target} in the names of the label files, if there are several structures with a file each."""
    volumes: Flag = False
    """Write each scan as a volume, for 3-D models, instead of separate slices. Slices are resampled and cropped in
    their plane only."""
    plane: Literal["axial", "coronal", "sagittal", "auto"] = "axial"
    """Plane of the slices, along the closest axis of each volume; auto uses the plane of acquisition."""
    spacing: Annotated[float | None, optional("MM", "keep the spacing of each volume")] = None
    """Pixel spacing in mm to resample the slices to."""
    size: Annotated[str | None, optional("H[xW]", "size of the largest slice")] = None
    """Size to crop or pad the slices to around their centre, a square (192) or height x width (192x160)."""
    window: Annotated[tuple[float, float] | None, optional("LOW HIGH", "z-score each volume, as for MR")] = None
    """Values that are mapped to -0.5 and 0.5, as for CT."""
    merge: Annotated[tuple[str, ...], optional("OLD:NEW ...", "keep the labels")] = ()
    """Labels to renumber, all at once. The resulting labels must be 0 (background) to K-1."""
    classes: Annotated[tuple[str, ...], optional("NAME ...", "found by reading all labels once more")] = ()
    """Names of the labels 0, 1 and so on."""
    modality: Annotated[Literal["CT", "MR", "PT"] | None, optional("{CT,MR,PT}", "not recorded")] = None
    """Modality of the images (PT is PET). `phiseg predict` then rejects DICOM series of another modality."""
    slices: Literal["all", "annotated"] = "all"
    """Slices to use: all, or only those with a non-empty mask of at least one annotator."""
    seed: int = 0
    """Random seed of the split by patient."""
    fractions: str = "60,20,20"
    """Shares of train, val and test, as percentages or as fractions such as 0.6,0.2,0.2."""
    workers: Annotated[int | None, optional("N", "one per CPU core")] = None
    """Number of processes. Each holds one case in memory."""
    strict: Flag = False
    """Stop at the first unusable case instead of skipping it."""
    dry_run: Flag = False
    """List cases, annotators, sizes and classes without writing anything."""
    overwrite: Flag = False
    """Replace OUT if it is a dataset."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PrepareNifti, arguments, prog=prog)
    check_exists(command.source)
    patterns = file_patterns(command.image, command.rater, command.target)
    from phiseg.data.prepare.nifti import prepare_nifti, preview_nifti
    from phiseg.data.prepare.nifti_slices import Slicing
    from phiseg.data.splits import parse_fractions

    slicing = Slicing(
        plane=command.plane,
        spacing=command.spacing,
        size=parse_size(command.size),
        window=command.window,
        slices=command.slices,
        volumes=command.volumes,
    )
    merge = parse_values(command.merge, option="--merge")
    if command.dry_run:
        classes, strict = command.classes, command.strict
        print(
            preview_nifti(
                command.source, patterns=patterns, slicing=slicing, merge=merge, classes=classes, strict=strict
            )
        )
        return
    dataset = prepare_nifti(
        command.source,
        command.out,
        patterns=patterns,
        slicing=slicing,
        merge=merge,
        classes=command.classes,
        modality=command.modality,
        seed=command.seed,
        fractions=parse_fractions(command.fractions),
        workers=command.workers if command.workers is not None else os.cpu_count() or 1,
        strict=command.strict,
        overwrite=command.overwrite,
        command=command_line(prog, arguments),
    )
    print_counts(dataset, num_used=len({case["scan"] for case in dataset.cases}))
    print_summary(dataset)
