"""`phiseg prepare nifti`."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.parsing import parse
from phiseg.cli.prepare_common import command_line, tell
from phiseg.core.errors import ConfigError


@dataclass
class PrepareNifti:
    """Make a dataset of slices from NIfTI volumes with one label file per rater.

    SRC holds a folder per case: <case>/image.nii.gz (a fourth dimension gives channels) and
    <case>/rater-<name>.nii.gz. Or it is nnU-Net's raw folder: imagesTr/<case>_0000.nii.gz (_0001 and so on give
    further channels) and a folder of labels per rater, such as labelsTr_anna/<case>.nii.gz; dataset.json gives the
    names of the classes. A case is a patient of its own, unless SRC/patients.csv (case,patient) says otherwise.

    A rater without a file for a case counts as missing there. Image and labels may have their axes in different
    orders, but must lie on one grid. A case that cannot be used is reported, left out and counted at the end.

    Example, at the spacing and size of the paper's prostate data:
    phiseg prepare nifti SRC OUT --spacing 0.6 --size 192 --merge 3:0 --classes background tz pz
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]
    """Folder with the volumes."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to make."""
    plane: Literal["axial", "coronal", "sagittal", "auto"] = "axial"
    """Plane of the slices, closest to the volume's own axes; auto takes the one that each volume was scanned in."""
    spacing: Annotated[float | None, tyro.conf.arg(metavar="MM")] = None
    """Resample slices to square pixels of so many millimetres; by default pixels stay as they are."""
    size: Annotated[str | None, tyro.conf.arg(metavar="H[xW]")] = None
    """Crop or pad slices around their middle, to a square (192) or to height x width (192x160); by default to the
    largest slice of all."""
    window: Annotated[tuple[float, float] | None, tyro.conf.arg(metavar="LOW HIGH")] = None
    """Map these values to -0.5 and 0.5, as for CT; without it every volume is z-scored, as for MR."""
    merge: Annotated[tuple[str, ...], tyro.conf.arg(metavar="OLD:NEW ...")] = ()
    """Give labels other numbers, all at once. What is left must be 0 (background) to K-1."""
    classes: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    """Names of the labels 0, 1 and so on; without them labels are read twice, to see which there are."""
    modality: Literal["CT", "MR", "PT"] | None = None
    """What made the images (PT is PET); `phiseg predict` then refuses a DICOM series of another kind."""
    slices: Literal["all", "annotated"] = "all"
    """Take all slices, or those on which at least one rater drew something."""
    seed: int = 0
    """Of the split."""
    fractions: str = "60,20,20"
    """Of train, val and test, by patient: percentages, or shares such as 0.6,0.2,0.2."""
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Processes, each with one case in memory; by default one per core."""
    strict: bool = False
    """Stop at the first case that cannot be used, rather than leave it out."""
    overwrite: bool = False
    """Replace OUT if it is a dataset."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PrepareNifti, arguments, prog=prog)
    from phiseg.data.prepare.nifti import prepare_nifti
    from phiseg.data.prepare.nifti_slices import Slicing
    from phiseg.data.splits import parse_fractions

    dataset = prepare_nifti(
        command.source,
        command.out,
        slicing=Slicing(
            plane=command.plane,
            spacing=command.spacing,
            size=_size(command.size),
            window=command.window,
            slices=command.slices,
        ),
        merge=_merge(command.merge),
        classes=command.classes,
        modality=command.modality,
        seed=command.seed,
        fractions=parse_fractions(command.fractions),
        workers=command.workers if command.workers is not None else os.cpu_count() or 1,
        strict=command.strict,
        overwrite=command.overwrite,
        command=command_line(prog, arguments),
    )
    kept, total = len({case["scan"] for case in dataset.cases}), dataset.info.source["num_cases"]
    assert isinstance(total, int)
    if kept < total:
        print(f"phiseg: {total - kept} of {total} cases left out, for the reasons above", file=sys.stderr)
    print(f"annotators: {', '.join(dataset.annotator_names)}")
    tell(dataset)


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?:[x,](\d+))?", text)
    if not match:
        raise ConfigError(f"--size '{text}' must be pixels, such as 192 or 192x160")
    return int(match[1]), int(match[2] or match[1])


def _merge(pairs: Sequence[str]) -> dict[int, int]:
    merge: dict[int, int] = {}
    for pair in pairs:
        match = re.fullmatch(r"(-?\d+):(\d+)", pair)
        if not match:
            raise ConfigError(f"--merge '{pair}' must be OLD:NEW, two labels such as 3:0")
        old, new = int(match[1]), int(match[2])
        if merge.get(old, new) != new:
            raise ConfigError(f"--merge gives label {old} two new numbers, {merge[old]} and {new}; keep one")
        merge[old] = new
    return merge
