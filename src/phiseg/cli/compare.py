"""`phiseg compare`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.parsing import parse


@dataclass
class Compare:
    """Put several evaluations into one table, with figures and a report.

    All must be of the same cases and the same number of samples. A score is bold where it is better than all
    others at p < 0.01 (paired t-test over the patients). OUT gets table.csv, table.md, table.tex, cases.csv.gz
    (every score of every case), the figures and report.html, one file that opens anywhere.

    Example: phiseg compare runs/phiseg-eval runs/probunet-eval --out report
    """

    evaluations: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="EVALUATION...")]
    """Folders that `phiseg evaluate` wrote."""
    out: Path
    """Folder for the results."""
    title: str = "Comparison of segmentation methods"
    """Of the report."""
    test: Literal["patients", "cases"] = "patients"
    """What the significance test takes as independent: patients, or cases as in the paper."""
    set_aside: Annotated[tuple[str, ...], tyro.conf.arg(metavar="METHOD ...")] = ()
    """Methods that are not at a working setting: shown with a mark, but not tested."""
    overwrite: bool = False
    """Replace results that are in OUT."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Compare, arguments, prog=prog)
    from phiseg.comparison.compare import compare
    from phiseg.comparison.table_formats import to_text
    from phiseg.core.errors import ConfigError

    if not command.evaluations:
        raise ConfigError("nothing to compare; give the folders that `phiseg evaluate` wrote")
    table = compare(
        command.evaluations,
        command.out,
        title=command.title,
        test=command.test,
        set_aside=command.set_aside,
        overwrite=command.overwrite,
    )
    print(to_text(table))
    print(f"report: {command.out / 'report.html'}")
