"""`phiseg train`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import parse
from phiseg.core.errors import ConfigError


@dataclass
class Train:
    """Train a model on a prepared dataset.

    RECIPE is the name of a shipped recipe (`phiseg info` lists them) or a YAML file. Any of its keys can be changed
    here, as --section.key VALUE: --train.steps 2000, --train.batch_size 4, --model.kl_weights paper,
    --model.channels "[16, 32, 64]", --augment.enabled false, --train.annotator 0 (learn from one expert),
    --train.devices 2, --train.precision bf16-mixed. `phiseg info RECIPE` prints every key with its value.

    OUT becomes a run folder: config.yaml (the resolved recipe), metrics.jsonl (losses and scores), state/ (what
    --resume needs) and model/ (the best model so far, by validation loss unless train.select_by says otherwise).

    Example: phiseg train phiseg --data data --out runs/phiseg --train.steps 2000
    """

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """Name of a recipe, or a .yaml file such as the config.yaml of another run."""
    data: Path
    """The prepared dataset."""
    out: Path
    """The run's folder."""
    resume: bool = False
    """Go on from the last state in OUT as if nothing had happened; start anew if there is none."""
    profile: bool = False
    """Tell where the time of a step goes, and write a trace of a few steps to OUT/profile for a viewer such as
    https://ui.perfetto.dev; the training itself stays the same."""


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
    tell = rank_zero_only(print)  # a training on several devices runs this command in each of its processes
    tell(f"the best model is in {model}")
    dataset = Dataset.open(command.data)
    has_test = {case["patient"] for case in dataset.cases} & {*dataset.splits.get("test", ())}
    split = "" if has_test else " --split val"
    tell(f"next: phiseg evaluate {command.out} --data {command.data} --out {command.out}-eval{split}")


def _check_options(words: Sequence[str]) -> None:
    """Name the section of a recipe's key that was given without it: --steps for --train.steps."""
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        if option in {"--data", "--out", "--resume", "--profile", "--help"}:
            continue
        from phiseg.data.augment import AugmentConfig
        from phiseg.training.recipe import TrainConfig

        key = option.removeprefix("--").replace("-", "_")
        for section, config in (("train", TrainConfig), ("augment", AugmentConfig)):
            if key in config.model_fields:
                raise ConfigError(f"{option} is a key of the recipe; write --{section}.{key}")


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate `--section.key VALUE` and `--section.key=VALUE` from the command's own arguments.

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
