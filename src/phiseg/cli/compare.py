"""The command `phiseg compare`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.early_checks import check_exists
from phiseg.cli.parsing import Flag, optional, parse, required
from phiseg.core.errors import ConfigError


@dataclass
class Compare:
    """Compare evaluations in one table, with figures and a report.

    All evaluations must have the same cases and the same number of samples. A score is bold if it is better than
    all others at p < 0.01 (paired t-test over patients). OUT receives table.csv, table.md, table.tex, cases.csv.gz
    (all scores of all cases), the figures, and report.html as a single self-contained file.

    Examples:
        phiseg compare runs/phiseg-eval runs/probunet-eval --out report
    """

    evaluations: Annotated[tuple[Path, ...], tyro.conf.Positional, required("EVALUATION...")]
    """Folders written by `phiseg evaluate` or `phiseg score`."""
    out: Path
    """Folder for the results."""
    title: str = "Comparison of segmentation methods"
    """Title of the report."""
    test: Literal["patients", "cases"] = "patients"
    """Unit that the significance test treats as independent: patients, or cases as in the paper."""
    set_aside: Annotated[tuple[str, ...], optional("METHOD ...", "test all methods")] = ()
    """Methods with unsuitable settings. They are shown with a mark but not tested."""
    equal_time: Flag = False
    """State that all trainings took the same time. Without this option, methods that were trained for different
    numbers of steps are not tested against each other."""
    overwrite: Flag = False
    """Replace existing results in OUT."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Compare, arguments, prog=prog)
    if not command.evaluations:
        raise ConfigError("nothing to compare; give the folders written by `phiseg evaluate`")
    for folder in command.evaluations:
        check_exists(folder, advice="give folders written by `phiseg evaluate`")
    from phiseg.comparison.compare import compare
    from phiseg.comparison.table_formats import to_text

    table = compare(
        command.evaluations,
        command.out,
        title=command.title,
        test=command.test,
        set_aside=command.set_aside,
        equal_time=command.equal_time,
        overwrite=command.overwrite,
    )
    print(to_text(table))
    print(f"report: {command.out / 'report.html'}")
