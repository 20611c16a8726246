"""The command `phiseg prepare images`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.early_checks import check_exists
from phiseg.cli.parsing import Flag, optional, parse
from phiseg.cli.prepare_common import command_line, print_counts, print_summary
from phiseg.cli.prepare_options import file_patterns, parse_size, parse_values


@dataclass
class PrepareImages:
    r"""Prepare a dataset from 2-D pictures with one mask file per annotator.

    Pictures and masks are PNG, JPEG, TIFF or BMP files, grey or RGB, with 8 or 16 bits. SRC has one folder per case
    (<case>/image.png and <case>/rater-<name>.png), or one folder per annotator (images/<case>.jpg and
    <rater>/<case>.png).

    For any other layout, give the patterns of the file names with `--image` and `--rater`. A pattern is compared
    with the end of each path. It is a glob, in which {rater}, {case}, {target}, {patient} and {split} name parts of
    the path and a single * in --rater is the annotator, or a regular expression with named groups such as
    (?P<rater>\d+). Each case is one patient, unless a part or SRC/patients.csv (case,patient) names the patients.

    Masks may have two values or class indices. For other values, give the class of each with `--values`.

    Examples:
        phiseg prepare images fundus data --size 256 --values 0:0 128:1 255:2 --classes background disc cup
        phiseg prepare images RIGA data --image '{case}prime.tif' --rater '{case}-{rater}.tif' --size 256 --dry-run
        phiseg prepare images ISIC data --image '{case}.JPG' --rater '{case}_A{rater}_*.png' --size 192x256
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]
    """Folder with the pictures."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder of the dataset to write."""
    image: Annotated[str | None, optional("PATTERN", "the layouts above")] = None
    """Pattern of the pictures."""
    rater: Annotated[str | None, optional("PATTERN", "the layouts above")] = None
    """Pattern of the masks."""
    target: Annotated[str | None, optional("NAME", "the only one")] = None
    """Value of {target} in the names of the masks, if there are several structures with a file each."""
    values: Annotated[tuple[str, ...], optional("VALUE:CLASS ...", "automatic")] = ()
    """Class of each value in the masks. By default, two values are background and class 1."""
    size: Annotated[str | None, optional("H[xW]", "keep the size, which must be the same")] = None
    """Size to resize the pictures to, a square (256) or height x width (192x256). The aspect is kept, and the
    rest is padded with 0."""
    grey: Flag = False
    """Convert colours to grey values."""
    window: Annotated[
        tuple[float, float] | None, optional("LOW HIGH", "0 255 for 8 bits, otherwise percentiles 0.5 and 99.5")
    ] = None
    """Values that are mapped to -0.5 and 0.5."""
    zscore: Flag = False
    """Normalise each picture to mean 0 and standard deviation 1 instead of using a window."""
    classes: Annotated[tuple[str, ...] | None, optional("NAME ...", "numbered")] = None
    """Names of the classes, background first."""
    resplit: Flag = False
    """Ignore the splits of the source and make new ones."""
    fractions: str = "60,20,20"
    """Shares of train, val and test in percent, for a source without splits or with --resplit."""
    seed: int = 0
    """Random seed of the split by patient."""
    name: Annotated[str | None, optional("NAME", "name of the folder")] = None
    """Name of the dataset."""
    strict: Flag = False
    """Stop at the first unusable case instead of skipping it."""
    dry_run: Flag = False
    """List cases, annotators, sizes and classes without writing anything."""
    overwrite: Flag = False
    """Replace OUT if it is a dataset."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PrepareImages, arguments, prog=prog)
    check_exists(command.source)
    images = () if command.image is None else (command.image,)
    patterns = file_patterns(images, command.rater, command.target)
    from phiseg.data.prepare.fixed_size_source import FixedSizeOptions
    from phiseg.data.prepare.images import prepare_images, preview_images
    from phiseg.data.splits import parse_fractions

    options = FixedSizeOptions(
        window=command.window,
        zscore=command.zscore,
        classes=command.classes,
        resplit=command.resplit,
        seed=command.seed,
        fractions=parse_fractions(command.fractions),
        name=command.name,
    )
    values, size = parse_values(command.values, option="--values") or None, parse_size(command.size)
    if command.dry_run:
        print(
            preview_images(
                command.source,
                options,
                patterns=patterns,
                values=values,
                size=size,
                grey=command.grey,
                strict=command.strict,
            )
        )
        return
    dataset = prepare_images(
        command.source,
        command.out,
        options,
        patterns=patterns,
        values=values,
        size=size,
        grey=command.grey,
        strict=command.strict,
        overwrite=command.overwrite,
        command=command_line(prog, arguments),
    )
    print_counts(dataset, num_used=dataset.num_cases)
    print_summary(dataset)
