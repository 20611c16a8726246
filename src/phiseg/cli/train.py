"""The command `phiseg train`."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import Flag, parse
from phiseg.core.bundled import find_recipe
from phiseg.core.errors import ConfigError, Interrupted


@dataclass
class Train:
    """Train a model on a prepared dataset.

    Every key of the recipe can be set on the command line as --section.key VALUE: --train.steps 2000,
    --train.batch_size 4, --model.kl_weights paper, --model.channels "[16, 32, 64]", --augment.enabled false,
    --train.annotator 0 (train on one annotator), --train.devices 2, --train.precision bf16-mixed. `phiseg info`
    lists the recipes, and `phiseg info RECIPE` all keys and values of one.

    OUT receives config.yaml (the recipe with all settings), metrics.jsonl (losses and scores), state/ (for
    --resume) and model/ (the best model so far, by validation loss unless train.select_by is set).

    Ctrl-C and SIGTERM finish the current step, save its state and print the command that resumes the training.

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
    command = parse(Train, words, prog=prog, more_usage="[--section.key VALUE ...]")
    find_recipe(command.recipe)
    from phiseg.data.store import Dataset

    dataset = Dataset.open(command.data)
    from lightning_fabric.utilities import rank_zero_only

    from phiseg.training.checkpoints import STATE_FILE
    from phiseg.training.loop import train
    from phiseg.training.recipe import load_recipe

    print_once = rank_zero_only(print)  # training on several devices runs this command in each process
    recipe = load_recipe(command.recipe, overrides)
    if command.resume and not (command.out / STATE_FILE).is_file():
        print_once(f"{command.out} has no saved state; the training starts at step 0")
    try:
        model = train(recipe, command.data, command.out, resume=command.resume, profile=command.profile)
    except Interrupted as stopped:
        again = [*prog.split(), *arguments, *([] if command.resume else ["--resume"])]
        print(f"phiseg: {stopped}. To resume, run:\n  {shlex.join(again)}", file=sys.stderr)
        raise SystemExit(128 + stopped.signal) from None
    print_once(f"best model: {model}")
    has_test = {case["patient"] for case in dataset.cases} & {*dataset.splits.get("test", ())}
    split = "" if has_test else " --split val"
    print_once(f"next: phiseg evaluate {command.out} --data {command.data} --out {command.out}-eval{split}")


def _check_options(words: Sequence[str]) -> None:
    """Suggest the recipe key for an unknown option: --train.steps for --steps or --step."""
    own = ["data", "out", "resume", "profile", "help"]
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        key = option.removeprefix("--").replace("-", "_")
        if key in own:
            continue
        from phiseg.core.config import keys_at
        from phiseg.training.recipe import Recipe

        keys: dict[str, list[str]] = {}
        for section in ("train", "augment", "model"):
            for name in keys_at(Recipe, [section]):
                keys.setdefault(name, []).append(f"--{section}.{name}")
        if key in keys:
            raise ConfigError(f"{option} is a recipe key; write {' or '.join(keys[key])}")
        close = get_close_matches(key, [*own, *keys], n=1)
        if close and close[0] in keys:
            raise ConfigError(f"unknown option {option}; did you mean {' or '.join(keys[close[0]])}?")


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
