"""The command `phiseg train`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import Flag, parse
from phiseg.core.errors import ConfigError


@dataclass
class Train:
    """Train a model on a prepared dataset.

    Every key of the recipe can be set on the command line as --section.key VALUE: --train.steps 2000,
    --train.batch_size 4, --model.kl_weights paper, --model.channels "[16, 32, 64]", --augment.enabled false,
    --train.annotator 0 (train on one annotator), --train.devices 2, --train.precision bf16-mixed. `phiseg info`
    lists the recipes, and `phiseg info RECIPE` all keys and values of one.

    OUT receives config.yaml (the recipe with all settings), metrics.jsonl (losses and scores), state/ (for
    --resume) and model/ (the best model so far, by validation loss unless train.select_by is set).

    Examples:
        phiseg train phiseg --data data --out runs/phiseg
        phiseg train phiseg-small --data data --out runs/small --train.steps 2000
        phiseg train phiseg --data data --out runs/phiseg --resume
    """

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """Name of a recipe, or a .yaml file such as config.yaml of another run."""
    data: Path
    """Prepared dataset."""
    out: Path
    """Run folder to write."""
    resume: Flag = False
    """Continue from the last saved state in OUT with identical results, or start if there is none."""
    profile: Flag = False
    """Print where the time of a training step is spent, and write a trace of a few steps to OUT/profile for a
    viewer such as https://ui.perfetto.dev. The training is not affected."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    words, overrides = split_overrides(arguments)
    _check_options(words)
    command = parse(Train, words, prog=prog)
    from lightning_fabric.utilities import rank_zero_only

    from phiseg.data.store import Dataset
    from phiseg.training.loop import train
    from phiseg.training.recipe import load_recipe

    model = train(
        load_recipe(command.recipe, overrides),
        command.data,
        command.out,
        resume=command.resume,
        profile=command.profile,
    )
    print_once = rank_zero_only(print)  # training on several devices runs this command in each process
    print_once(f"best model: {model}")
    dataset = Dataset.open(command.data)
    has_test = {case["patient"] for case in dataset.cases} & {*dataset.splits.get("test", ())}
    split = "" if has_test else " --split val"
    print_once(f"next: phiseg evaluate {command.out} --data {command.data} --out {command.out}-eval{split}")


def _check_options(words: Sequence[str]) -> None:
    """Suggest the section of a recipe key that was given without it: --train.steps for --steps."""
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        if option in {"--data", "--out", "--resume", "--profile", "--help"}:
            continue
        from phiseg.data.augment import AugmentConfig
        from phiseg.training.recipe import TrainConfig

        key = option.removeprefix("--").replace("-", "_")
        for section, config in (("train", TrainConfig), ("augment", AugmentConfig)):
            if key in config.model_fields:
                raise ConfigError(f"{option} is a recipe key; write --{section}.{key}")


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate `--section.key VALUE` and `--section.key=VALUE` from the arguments of the command.

    >>> split_overrides(["unet", "--train.steps", "5", "--out", "run", "--model.norm=group"])
    (['unet', '--out', 'run'], ['--train.steps', '5', '--model.norm=group'])
    """
    words, overrides = [], []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not re.match(r"--\w[\w-]*\.\w", word):
            words.append(word)
            continue
        overrides.append(word)
        if "=" not in word and rest and not rest[0].startswith("--"):
            overrides.append(rest.pop(0))
    return words, overrides
