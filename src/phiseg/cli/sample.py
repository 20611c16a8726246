"""`phiseg sample`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import parse


@dataclass
class Sample:
    """Draw samples of the cases of a split and write them as plain arrays, for anybody's own code.

    OUT gets labels.npy (cases, samples, H, W; uint8), mean_probs.npy (cases, classes, H, W), gamma.npy (cases, H,
    W) and cases.csv in the same order. The same seed gives the same samples, whatever the batch and chunk sizes.

    Example: phiseg sample runs/phiseg --data data --num-samples 16 --out samples
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A model folder, the run folder around it, or the name of a bundled model."""
    data: Path
    """The prepared dataset."""
    out: Path
    """Folder to make."""
    split: str = "test"
    """Which cases."""
    num_samples: int = 16
    """Samples per case."""
    seed: int = 0
    """Of the samples."""
    probs: bool = False
    """Also write probs.npy (cases, samples, classes, H, W; float32): large."""
    batch_size: int = 4
    """Images encoded at once; a matter of memory, not of results."""
    chunk_size: int = 16
    """Samples of each image decoded at once; a matter of memory, not of results."""
    device: str = "auto"
    """Where to run, e.g. cpu or cuda:1; by default a GPU where there is one."""
    uncalibrated: bool = False
    """Do not use the temperatures that `phiseg calibrate` fitted."""
    class_map: Annotated[tuple[str, ...], tyro.conf.arg(metavar="DATA:MODEL ...")] = ()
    """Model class for classes of the dataset, by name, such as 'class 1:nodule'; by default classes are compared
    by number, with a warning where names differ."""
    overwrite: bool = False
    """Replace OUT if it exists."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Sample, arguments, prog=prog)
    from phiseg.core.files import check_replaceable
    from phiseg.data.store import Dataset
    from phiseg.inference.class_map import match_classes, parse_class_map
    from phiseg.inference.sampling import sample_cases, usable_device
    from phiseg.inference.writers import MARKER, write_samples
    from phiseg.models import load_model

    check_replaceable(command.out, overwrite=command.overwrite, marker=MARKER)
    model = load_model(command.model, device=usable_device(command.device), calibrated=not command.uncalibrated)
    dataset = match_classes(model, Dataset.open(command.data), parse_class_map(command.class_map))
    rows = dataset.rows(command.split).tolist()
    samples = sample_cases(
        model,
        dataset,
        rows,
        num_samples=command.num_samples,
        seed=command.seed,
        batch_size=command.batch_size,
        chunk_size=command.chunk_size,
        keep_probs=command.probs,
    )
    write_samples(
        command.out,
        samples,
        dataset,
        rows,
        num_samples=command.num_samples,
        with_probs=command.probs,
        overwrite=command.overwrite,
        progress=True,
    )
    print(f"{command.num_samples} samples of each of {len(rows)} {command.split} cases are in {command.out}")
