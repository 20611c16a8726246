"""The command `phiseg score`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from phiseg.cli.early_checks import check_exists, check_is_dataset
from phiseg.cli.parsing import Flag, optional, parse
from phiseg.core.errors import ConfigError

if TYPE_CHECKING:
    from phiseg.evaluation.score_samples import Scored


@dataclass
class ScoreSamples:
    """Score samples from any program: compare them with the annotations of every case of a split.

    SAMPLES has one of four forms:

    Array: labels.npy (cases, samples, H, W) with class indices, or probs.npy (cases, samples, classes, H, W).

    Archive: an .npz file with labels or probs, and optionally the names in cases; or with one array per case.

    Folder of arrays: labels.npy or probs.npy, and optionally cases.csv, mean_probs.npy and mean_log_probs.npy, as
    `phiseg sample` writes them.

    Folder of cases: CASE/sample-1.nii.gz, CASE/sample-2.nii.gz, ..., or .png or .npy files; or CASE/samples.nii.gz
    with all samples.

    For volumes, (D, H, W) replaces (H, W).

    Cases are matched by name. Without names, they must be in the order of the split. S_NCC and calibration need
    probabilities. Without them, Dice is that of the majority of the samples.

    OUT receives the files of `phiseg evaluate`, so `phiseg compare` can compare it with any evaluation. With
    several numbers of samples, OUT has one evaluation for each, such as OUT/samples-16, of the first samples.

    Conventions compute scores as other publications do: ged-all-pairs, ged-distinct-pairs, ged-root,
    ged-root-empty-differ, ged-empty-differ, ged-present-classes, hm-iou-repeated, hm-iou-best, hm-iou-empty-differ;
    or as challenges do: qubiq-soft-dice, curvas-soft-dice, curvas-consensus-dice, curvas-crps, curvas-crps-limited,
    curvas-ece.

    Examples:
        phiseg score theirs/labels.npy --data data --cases theirs/names.txt --out theirs-eval
        phiseg score samples --data data --split test --num-samples 16,50,100 --out samples-eval
        phiseg score samples --data data --out samples-eval --conventions ged-root hm-iou-best
    """

    samples: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SAMPLES")]
    """File or folder with the samples."""
    data: Path
    """Prepared dataset."""
    out: Path
    """Folder for the results."""
    split: str = "test"
    """Split to score."""
    cases: Annotated[Path | None, optional("FILE", "cases.csv next to the arrays, if there is one")] = None
    """Names of the cases in the order of the samples: a CSV file with a column `case`, or one name per line."""
    num_samples: Annotated[str, optional("N,N,...", "all samples")] = ""
    """Numbers of samples to score, such as 16,50,100; the first ones of each case are used."""
    conventions: Annotated[tuple[str, ...], optional("NAME ...|all", "none")] = ()
    """Conventions to compute in addition. OUT receives conventions.csv and convention_cases.csv."""
    method: Annotated[str | None, optional("NAME", "name of the file or folder")] = None
    """Name of the method in tables."""
    dice_annotator: Annotated[
        int | Literal["all", "majority", "staple"], tyro.conf.arg(metavar="INT|all|majority|staple")
    ] = "all"
    """Reference for Dice: the number of an annotator, all annotators, or their consensus (majority or STAPLE)."""
    num_examples: int = 4
    """Number of cases stored for the figures, starting with the most disputed one."""
    overwrite: Flag = False
    """Replace OUT if it exists."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(ScoreSamples, arguments, prog=prog)
    num_samples = parse_numbers(command.num_samples)
    check_exists(command.samples)
    check_is_dataset(command.data)
    from phiseg.evaluation.score_samples import score

    scored = score(
        command.samples,
        command.data,
        command.out,
        split=command.split,
        cases=command.cases,
        num_samples=num_samples,
        conventions=command.conventions,
        method=command.method,
        dice_annotator=command.dice_annotator,
        num_examples=command.num_examples,
        overwrite=command.overwrite,
    )
    summary = scored[0].summary
    print(f"{summary.method} on {summary.num_cases} {summary.split_title} cases of {summary.num_patients} patients")
    _print_table(scored)
    print(f"results: {', '.join(str(one.path) for one in scored)}")
    print(f"next: phiseg compare {scored[-1].path} ... --out report")


def parse_numbers(text: str) -> list[int]:
    """Parse numbers of samples.

    >>> parse_numbers("16,50,100")
    [16, 50, 100]

    Raises:
        ConfigError: a part is not a positive integer.
    """
    words = text.replace(",", " ").split()
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ConfigError(f"--num-samples '{text}' is not a list of positive integers, such as 16,50,100")
    return [int(word) for word in words]


def _print_table(scored: "Sequence[Scored]") -> None:
    """Print one column per number of samples."""
    from phiseg.metrics.score_registry import summary_scores

    width = max(21, *(len(row["convention"]) + 2 for row in scored[0].conventions), 0)
    print(f"  {'samples':<{width}}" + "".join(f"{one.summary.num_samples:9d}" for one in scored))
    for entry in summary_scores(scored[0].summary.dataset.dims):
        values = [one.summary.scores[entry.name] for one in scored]
        if any(value is not None for value in values):
            print(f"  {entry.name:<{width}}" + "".join(_number(value) for value in values))
    for place, row in enumerate(scored[0].conventions):
        values = [one.conventions[place]["mean"] for one in scored]
        print(f"  {row['convention']:<{width}}" + "".join(_number(value) for value in values))


def _number(value: float | None) -> str:
    return f"{'-':>9}" if value is None else f" {value:8.4f}"
