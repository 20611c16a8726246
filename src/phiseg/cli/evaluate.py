"""`phiseg evaluate`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.parsing import parse
from phiseg.core.errors import ConfigError


@dataclass
class Evaluate:
    """Score a model's samples on every case of a split.

    OUT gets cases.csv (one row a case), summary.json (the means), reliability.csv (how true the probabilities are)
    and examples.npz (what the figures show). GED falls with the number of samples, so compare only scores of the
    same number, and read it beside `ged_floor`, the expected score of samples from the annotators' distribution if
    annotators are independent given the image.

    Example: phiseg evaluate runs/phiseg --data data --out runs/phiseg-eval
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A model folder, the run folder around it, or the name of a bundled model."""
    data: Path
    """The prepared dataset."""
    out: Path
    """Folder to make."""
    split: str = "test"
    """Which cases."""
    num_samples: int = 100
    """Samples per case."""
    seed: int = 0
    """Of the samples."""
    method: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """How tables call it; by default the recipe's name."""
    dice_annotator: int | Literal["all", "majority", "staple"] | None = None
    """Whose annotation Dice is taken against: an annotator's number, all of them, or their consensus by majority or
    STAPLE; by default the one the model learned from, or all."""
    num_examples: int = 4
    """Cases kept for the figures, from the most disputed one down."""
    batch_size: int = 4
    """Images encoded at once; a matter of memory, not of results."""
    chunk_size: int = 16
    """Samples of each image decoded at once; a matter of memory, not of results."""
    device: str = "auto"
    """Where to run, e.g. cpu or cuda:1 (several processes: cpu or cuda); by default a GPU where there is one."""
    devices: int = 1
    """Processes on this machine; they share the cases."""
    num_nodes: int = 1
    """Machines that share the cases."""
    uncalibrated: bool = False
    """Do not use the temperatures that `phiseg calibrate` fitted."""
    hide_neighbours: bool = False
    """Show a model with context (neighbouring slices) every slice without its neighbours."""
    class_map: Annotated[tuple[str, ...], tyro.conf.arg(metavar="DATA:MODEL ...")] = ()
    """Model class for classes of the dataset, by name, such as 'class 1:nodule'; by default classes are compared
    by number, with a warning where names differ."""
    overwrite: bool = False
    """Replace OUT if it exists."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Evaluate, arguments, prog=prog)
    from phiseg.evaluation.scores import evaluate
    from phiseg.inference.class_map import parse_class_map
    from phiseg.metrics.registry import summary_scores
    from phiseg.training.recipe import TrainConfig
    from phiseg.training.setup import make_fabric

    device, first = command.device, True
    if (command.devices, command.num_nodes) != (1, 1):
        if ":" in command.device:
            kind = command.device.partition(":")[0]
            raise ConfigError(
                f"--device {command.device} is one device, for several processes; use --device {kind}"
            )
        machine = {"accelerator": command.device, "devices": command.devices, "num_nodes": command.num_nodes}
        fabric = make_fabric(TrainConfig.parse(machine, where="phiseg evaluate"), timeout=timedelta(days=14))
        fabric.launch()
        device, first = str(fabric.device), fabric.is_global_zero
    summary = evaluate(
        command.model,
        command.data,
        command.out,
        split=command.split,
        num_samples=command.num_samples,
        seed=command.seed,
        method=command.method,
        dice_annotator=command.dice_annotator,
        num_examples=command.num_examples,
        batch_size=command.batch_size,
        chunk_size=command.chunk_size,
        device=device,
        calibrated=not command.uncalibrated,
        hide_neighbours=command.hide_neighbours,
        class_map=parse_class_map(command.class_map),
        overwrite=command.overwrite,
    )
    if not first:
        return
    print(
        f"{summary.method} on {summary.num_cases} {summary.split} cases of {summary.num_patients} patients, "
        f"{summary.num_samples} samples each"
    )
    if summary.num_with_neighbours is not None:
        print(f"  {summary.num_with_neighbours} of {summary.num_cases} cases with neighbouring slices")
    for score in summary_scores():
        value, interval = summary.scores[score.name], summary.intervals.get(score.name)
        if value is not None:
            spread = f"   95 % interval {interval[0]:.4f} to {interval[1]:.4f}" if interval else ""
            print(f"  {score.name:<21}{value:9.4f}{spread}")
    if summary.ged_correlated is not None:
        print(
            "  the residual correlation of the annotators given the model's probabilities can account for a "
            f"ged_unbiased of up to {summary.ged_correlated:.4f}"
        )
    if summary.ged is None:
        print("  no GED and S_NCC: they compare with several annotators, and no case here has two")
    print(f"written to {command.out}; next: phiseg compare {command.out} ... --out report")
