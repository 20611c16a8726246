"""`phiseg calibrate`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import parse


@dataclass
class Calibrate:
    """Fit temperatures for a trained model and store them in its folder.

    One factor on the noise of each latent level (the unbiased GED decides) and one on the logits (the Brier score
    of the mean prediction decides). Factors are stored only if they help on held-out patients in a 5-fold
    cross-validation by more than chance, and none with fewer than 5 patients. `predict`, `sample`, `evaluate`,
    `export` and `phiseg.load` use them unless `--uncalibrated` is given. Fit on the split that the model was
    selected on, never on the one that is reported.

    Example: phiseg calibrate runs/phiseg --data data
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A model folder, or the run folder around it."""
    data: Path
    """The prepared dataset."""
    split: str = "val"
    """Which cases to fit on."""
    num_samples: int = 16
    """Samples per case."""
    num_cases: int = 200
    """Largest number of cases to fit on, chosen from as many patients as possible."""
    seed: int = 0
    """Seed of the samples, the folds and the choice of cases."""
    device: str = "auto"
    """Where to run, e.g. cpu or cuda:1; by default a GPU where there is one."""
    class_map: Annotated[tuple[str, ...], tyro.conf.arg(metavar="DATA:MODEL ...")] = ()
    """Model class for classes of the dataset, by name, such as 'class 1:nodule'; by default classes are compared
    by number, with a warning where names differ."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Calibrate, arguments, prog=prog)
    from phiseg.evaluation.calibrate import MIN_PATIENTS, calibrate
    from phiseg.inference.class_map import parse_class_map

    fit = calibrate(
        command.model,
        command.data,
        split=command.split,
        num_samples=command.num_samples,
        seed=command.seed,
        num_cases=command.num_cases,
        device=command.device,
        class_map=parse_class_map(command.class_map),
    )
    print(
        f"on the {fit.num_cases} cases of {fit.num_patients} patients it was fitted on (split '{command.split}', "
        f"{command.num_samples} samples a case):"
    )
    print(f"  {'':<21}{'before':>9}{'after':>9}")
    for name, value in fit.before.items():
        print(f"  {name:<21}{value:9.4f}{fit.after[name]:9.4f}")
    if fit.num_patients < MIN_PATIENTS:
        print(
            f"phiseg: warning: {fit.num_patients} patients of split '{command.split}' have two annotators, too few "
            f"to tell a gain from chance, so every factor stays 1; fit on {MIN_PATIENTS} or more",
            file=sys.stderr,
        )
    for name, gain in fit.held_out.items():
        print(f"  {name} of held-out patients, fitted on the others: lower by {gain:.5f}")
    noise = ", ".join(f"{factor:g}" for factor in fit.calibration.noise) or "1 everywhere"
    print(f"factors on the noise, fine to coarse: {noise}; logits divided by {fit.calibration.logits:g}")
    print(f"stored in {command.model}; `--uncalibrated` samples without them")
