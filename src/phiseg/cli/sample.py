"""The command `phiseg sample`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.early_checks import check_model_and_data
from phiseg.cli.parsing import Flag, optional, parse
from phiseg.core.precision import SamplingPrecision


@dataclass
class Sample:
    """Draw samples for the cases of a split and save them as NumPy arrays.

    OUT receives labels.npy (cases, samples, H, W; uint8), mean_probs.npy and mean_log_probs.npy (cases, classes,
    H, W), gamma.npy (cases, H, W), and cases.csv in the same order. Slices of volumes are stored one after the
    other. `phiseg score` reads this folder. The samples depend on the seed, not on the batch and chunk sizes.

    Examples:
        phiseg sample runs/phiseg --data data --num-samples 16 --out samples
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Model folder, run folder that contains one, name of a bundled model, or hf:owner/name@revision."""
    data: Path
    """Prepared dataset."""
    out: Path
    """Folder for the arrays."""
    split: str = "test"
    """Split to draw samples for."""
    num_samples: int = 16
    """Number of samples per case."""
    seed: int = 0
    """Random seed of the samples."""
    probs: Flag = False
    """Also write probs.npy (cases, samples, classes, H, W; float32), which is large."""
    batch_size: int = 4
    """Number of images encoded at once; volumes are encoded one by one. Affects memory use only, not results."""
    chunk_size: Annotated[int | None, optional("INT", "8 on a CPU, 16 on a GPU")] = None
    """Number of samples per image decoded at once. For volumes, batch-size times chunk-size slices are decoded at
    once. Affects memory use only, not results."""
    device: str = "auto"
    """Device such as cpu or cuda:1; auto uses a GPU if available."""
    precision: SamplingPrecision = "float32"
    """Number format of the network. bfloat16 is faster on CPUs with AVX512_BF16 or AMX, and on recent GPUs;
    a few pixels differ."""
    uncalibrated: Flag = False
    """Ignore the temperatures fitted by `phiseg calibrate`."""
    class_map: Annotated[tuple[str, ...], optional("DATA:MODEL ...", "compare classes by number")] = ()
    """Class of the model for classes of the dataset, by name, such as 'class 1:nodule'. Without it, a warning is
    printed if names differ."""
    overwrite: Flag = False
    """Replace OUT if it exists."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Sample, arguments, prog=prog)
    check_model_and_data(command.model, command.data)
    from phiseg.core.files import check_replaceable
    from phiseg.inference.class_map import parse_class_map
    from phiseg.inference.sample_writer import MARKER, write_samples
    from phiseg.inference.sampling import sample_split

    check_replaceable(command.out, overwrite=command.overwrite, marker=MARKER)
    drawn = sample_split(
        command.model,
        command.data,
        split=command.split,
        num_samples=command.num_samples,
        seed=command.seed,
        batch_size=command.batch_size,
        chunk_size=command.chunk_size,
        keep_probs=command.probs,
        device=command.device,
        precision=command.precision,
        calibrated=not command.uncalibrated,
        class_map=parse_class_map(command.class_map),
    )
    write_samples(
        command.out,
        drawn.samples,
        drawn.dataset,
        drawn.rows,
        num_samples=command.num_samples,
        with_probs=command.probs,
        overwrite=command.overwrite,
        progress=True,
    )
    print(f"{command.out}: {command.num_samples} samples for each of {len(drawn.rows)} {command.split} cases")
