"""The command `phiseg data check`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from phiseg.cli.parsing import Flag, optional, parse

if TYPE_CHECKING:
    from phiseg.data.check import Report


@dataclass
class DataCheck:
    """Check a dataset for errors and report how well its annotators agree.

    The command reads the whole dataset and lists every problem: modified files, invalid labels, NaN pixels, and
    images that are in two splits. It exits with code 2 if there are any.

    The GED floor is the expected GED of samples from the annotators' own distribution, assuming that annotators are
    independent given the image. Compare a model's GED with it.

    Examples:
        phiseg data check data
        phiseg data check data --json report.json
    """

    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Prepared dataset."""
    json: Annotated[Path | None, optional("FILE", "print the report only")] = None
    """File to write the report to as JSON."""
    overwrite: Flag = False
    """Replace FILE if it exists."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(DataCheck, arguments, prog=prog)
    from phiseg.core.errors import DataError
    from phiseg.core.files import check_new_file, write_json
    from phiseg.data.store import Dataset

    if command.json:
        check_new_file(command.json, overwrite=command.overwrite)
    dataset = Dataset.open(command.data)
    from phiseg.data.check import check_dataset

    report = check_dataset(dataset)
    print(_describe(report))
    if command.json:
        write_json(command.json, report.model_dump(mode="json"))
    if report.problems:
        number = len(report.problems)
        raise DataError(f"{number} problem{'s' * (number > 1)} in {command.data}; fix what is listed above")


def _describe(report: "Report") -> str:
    agreement = report.agreement
    num_annotators = len(report.annotators)
    lines = [f"dataset: {report.dataset}, {report.cases} cases of {report.patients} patients"]
    lines += [
        f"  {name:<9}{count.cases:6} cases of {count.patients} patients" for name, count in report.splits.items()
    ]
    if report.spacing_mm:
        lines.append(f"spacing: {_range(report.spacing_mm)} mm")
    if report.depth:
        apart = f", {_range(report.slice_spacing_mm)} mm apart" if report.slice_spacing_mm else ""
        lines.append(f"slices: {_range(report.depth)} per volume{apart}")

    lines.append("classes: share of all pixels, share of annotations that contain the class")
    lines += [
        f"  {name:<20} {share.pixels:8.3%} {share.annotations:8.1%}" for name, share in report.classes.items()
    ]
    lines.append("annotators: cases annotated, missing, empty")
    width = max(len(annotator.name) for annotator in report.annotators)
    lines += [
        f"  {annotator.name:<{width}}{annotator.looked:8}{annotator.missing:8}{annotator.empty:8}"
        for annotator in report.annotators
    ]
    lines.append(f"cases by number of annotators (of {num_annotators}) with a non-empty mask:")
    read = max(1, sum(report.drew.values()))
    lines += [
        f"  {number:<3}{cases:8}{cases / read:8.1%} {'#' * round(30 * cases / read)}".rstrip()
        for number, cases in report.drew.items()
    ]
    lines += [
        "agreement of two annotators (IoU; two empty masks count as 1):",
        f"  over all {agreement.pairs} pairs: {_number(agreement.iou)}",
        f"  over {agreement.pairs_who_both_drew} pairs of non-empty masks: {_number(agreement.iou_who_both_drew)}",
        "GED floor, if annotators are independent given the image: "
        + ", ".join(f"{_number(floor)} with {number} samples" for number, floor in agreement.ged_floor.items()),
    ]
    lines += [f"note: {note}" for note in report.notes]
    lines += [f"problem: {problem}" for problem in report.problems] or ["no problems found"]
    return "\n".join(lines)


def _range(ends: tuple[float, float]) -> str:
    low, high = ends
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def _number(value: float | None) -> str:
    return "undefined (no case has two annotators)" if value is None else f"{value:.3f}"
