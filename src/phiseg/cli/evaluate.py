"""The command `phiseg evaluate`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.early_checks import check_model_and_data
from phiseg.cli.parallel import fabric_for_processes
from phiseg.cli.parsing import Flag, optional, parse
from phiseg.core.precision import SamplingPrecision
from phiseg.core.shard import Shard


@dataclass
class Evaluate:
    """Evaluate a model: draw samples for every case of a split and compare them with the annotations.

    OUT receives cases.csv (scores per case), summary.json (means), reliability.csv (calibration of the
    probabilities) and examples.npz (data of the figures).

    GED decreases with the number of samples, so only compare evaluations with the same number. `ged_floor` is the
    expected GED of samples from the annotators' own distribution, assuming that annotators are independent given
    the image.

    Examples:
        phiseg evaluate runs/phiseg --data data --out runs/phiseg-eval
        phiseg evaluate runs/phiseg --data data --out runs/phiseg-val --split val --num-samples 16
        phiseg evaluate runs/phiseg --data data --out shards/2 --shard 2/8
        phiseg evaluate runs/phiseg --data data --out runs/phiseg-eval --merge shards/*
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Model folder, run folder that contains one, name of a bundled model, or hf:owner/name@revision."""
    data: Path
    """Prepared dataset."""
    out: Path
    """Folder for the results."""
    split: str = "test"
    """Split to evaluate on."""
    num_samples: int = 100
    """Number of samples per case."""
    seed: int = 0
    """Random seed of the samples."""
    method: Annotated[str | None, optional("NAME", "name of the recipe")] = None
    """Name of the method in tables."""
    dice_annotator: Annotated[
        int | Literal["all", "majority", "staple"] | None,
        optional("INT|all|majority|staple", "the annotator that the model was trained on, or all"),
    ] = None
    """Reference for Dice: the number of an annotator, all annotators, or their consensus (majority or STAPLE)."""
    num_examples: int = 4
    """Number of cases stored for the figures, starting with the most disputed one."""
    batch_size: int = 4
    """Number of images encoded at once; volumes are encoded one by one. Affects memory use only, not results."""
    chunk_size: Annotated[int | None, optional("INT", "8 on a CPU, 16 on a GPU")] = None
    """Number of samples per image decoded at once. For volumes, batch-size times chunk-size slices are decoded at
    once. Affects memory use only, not results."""
    workers: Annotated[int | None, optional("INT", "one per core on a CPU; 1 for volumes and on a GPU")] = None
    """Number of batches sampled and scored in parallel, each by its own thread. Memory use grows with it; results
    do not change."""
    device: str = "auto"
    """Device such as cpu or cuda:1 (cpu or cuda with several processes); auto uses a GPU if available."""
    precision: SamplingPrecision = "float32"
    """Number format of the network. bfloat16 is faster on CPUs with AVX512_BF16 or AMX, and on recent GPUs;
    a few pixels differ."""
    devices: int = 1
    """Number of processes on this machine among which the cases are divided."""
    num_nodes: int = 1
    """Number of machines among which the cases are divided."""
    uncalibrated: Flag = False
    """Ignore the temperatures fitted by `phiseg calibrate`."""
    hide_neighbours: Flag = False
    """Hide the neighbouring slices from a model that uses them as context."""
    class_map: Annotated[tuple[str, ...], optional("DATA:MODEL ...", "compare classes by number")] = ()
    """Class of the model for classes of the dataset, by name, such as 'class 1:nodule'. Without it, a warning is
    printed if names differ."""
    shard: Annotated[str | None, optional("I/N", "score all cases")] = None
    """Score only part I of N of the cases, such as 2/8, and write a shard to OUT. The N jobs are independent."""
    merge: Annotated[tuple[Path, ...], optional("SHARD ...", "score the cases")] = ()
    """Shard folders to merge into OUT. All other options must be those of the shards."""
    overwrite: Flag = False
    """Replace OUT if it exists."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Evaluate, arguments, prog=prog)
    shard = None if command.shard is None else Shard.parse(command.shard)
    check_model_and_data(command.model, command.data)
    from phiseg.compute.devices import keep_freed_memory
    from phiseg.evaluation.model_evaluation import evaluate
    from phiseg.inference.class_map import parse_class_map
    from phiseg.metrics.score_registry import summary_scores

    keep_freed_memory()
    device, first = command.device, True
    if fabric := fabric_for_processes(device, command.devices, command.num_nodes, command=prog):
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
        workers=command.workers,
        device=device,
        precision=command.precision,
        calibrated=not command.uncalibrated,
        hide_neighbours=command.hide_neighbours,
        class_map=parse_class_map(command.class_map),
        shard=shard,
        merge=command.merge,
        overwrite=command.overwrite,
    )
    if not first:
        return
    if shard:
        print(f"shard {shard} of {summary.method}: {summary.num_cases} {summary.split_title} cases")
        print(f"results: {command.out}")
        print("next: run the other shards, then the same command with --merge and the folders of all shards")
        return
    print(
        f"{summary.method} on {summary.num_cases} {summary.split_title} cases of {summary.num_patients} patients, "
        f"{summary.num_samples} samples each"
    )
    if summary.num_with_neighbours is not None:
        print(f"  {summary.num_with_neighbours} of {summary.num_cases} cases with neighbouring slices")
    for score in summary_scores(summary.dataset.dims):
        value, interval = summary.scores[score.name], summary.intervals.get(score.name)
        if value is not None:
            spread = f"   95 % interval {interval[0]:.4f} to {interval[1]:.4f}" if interval else ""
            print(f"  {score.name:<21}{value:9.4f}{spread}")
    if summary.ged_correlated is not None:
        print(
            "  the correlation of annotators given the model's probabilities can explain a ged_unbiased of up to "
            f"{summary.ged_correlated:.4f}"
        )
    if summary.ged is None:
        print("  no GED and S_NCC: they need at least two annotators per case")
    print(f"results: {command.out}")
    print(f"next: phiseg compare {command.out} ... --out report")
