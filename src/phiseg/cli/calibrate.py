"""The command `phiseg calibrate`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.early_checks import check_model_and_data
from phiseg.cli.parsing import optional, parse
from phiseg.core.precision import SamplingPrecision


@dataclass
class Calibrate:
    """Calibrate the spread and the confidence of a model's samples on validation data.

    The command fits temperatures and stores them in the model folder: a factor on the noise of each latent level
    (by the unbiased GED) and a divisor of the logits (by the Brier score of the mean prediction). If the divisor
    stays 1, all pixels of a sample get the same confidence, if gamma then shows better where samples are wrong. The
    result is stored only if 5-fold cross-validation over patients shows a gain beyond chance; this needs at least 5
    patients.

    `predict`, `sample`, `evaluate`, `export` and `phiseg.load` use the temperatures unless `--uncalibrated` is
    given. Fit on the split that the model was selected on, never on the split that you report.

    Examples:
        phiseg calibrate runs/phiseg --data data
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Model folder, or the run folder that contains it."""
    data: Path
    """Prepared dataset."""
    split: str = "val"
    """Split to fit on."""
    num_samples: int = 16
    """Number of samples per case."""
    num_cases: int = 200
    """Maximum number of cases to fit on, chosen from as many patients as possible."""
    seed: int = 0
    """Random seed of the samples, the folds and the choice of cases."""
    device: str = "auto"
    """Device such as cpu or cuda:1; auto uses a GPU if available."""
    precision: SamplingPrecision = "float32"
    """Number format of the network. bfloat16 is faster on CPUs with AVX512_BF16 or AMX, and on recent GPUs;
    a few pixels differ."""
    class_map: Annotated[tuple[str, ...], optional("DATA:MODEL ...", "compare classes by number")] = ()
    """Class of the model for classes of the dataset, by name, such as 'class 1:nodule'. Without it, a warning is
    printed if names differ."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Calibrate, arguments, prog=prog)
    check_model_and_data(command.model, command.data)
    from phiseg.evaluation.calibrate import MIN_PATIENTS, calibrate
    from phiseg.inference.class_map import parse_class_map
    from phiseg.models.temperatures import Calibration

    fit = calibrate(
        command.model,
        command.data,
        split=command.split,
        num_samples=command.num_samples,
        seed=command.seed,
        num_cases=command.num_cases,
        device=command.device,
        precision=command.precision,
        class_map=parse_class_map(command.class_map),
    )
    print(
        f"scores on the {fit.num_cases} fitted cases of {fit.num_patients} patients (split '{command.split}', "
        f"{command.num_samples} samples per case):"
    )
    print(f"  {'':<21}{'before':>9}{'after':>9}")
    for name, value in fit.before.items():
        print(f"  {name:<21}{value:9.4f}{fit.after[name]:9.4f}")
    for name, gain in fit.held_out.items():
        print(f"  {name} on held-out patients (cross-validation): lower by {gain:.5f}")
    noise = ", ".join(f"{factor:g}" for factor in fit.calibration.noise) or "1 for all levels"
    print(f"noise factors, fine to coarse: {noise}; temperature of the logits: {fit.calibration.logits:g}")
    if fit.calibration.margin:
        print(f"equal confidence in all pixels of a sample: logit margin {fit.calibration.margin:g}")
    if fit.calibration != Calibration():
        print(f"stored in {command.model}; use --uncalibrated to sample without them")
        return
    reason = "no other factor improves held-out patients by more than chance"
    if fit.num_patients < MIN_PATIENTS:
        reason = (
            f"only {fit.num_patients} patients of split '{command.split}' have two annotators, and at least "
            f"{MIN_PATIENTS} are needed"
        )
    print(f"all factors are 1, so calibration does not change the samples: {reason}")
