"""The demo: train PHiSeg and a Probabilistic U-Net on synthetic lesions and compare them in a report."""

from pathlib import Path
from typing import Any

from phiseg.comparison.compare import compare
from phiseg.comparison.tables import Table
from phiseg.core.errors import ConfigError, DataError
from phiseg.data.prepare.phantom import prepare_phantom
from phiseg.data.store import Dataset
from phiseg.evaluation.model_evaluation import evaluate
from phiseg.training.loop import train
from phiseg.training.recipe import load_recipe

METHODS = ("phiseg-small", "probunet-small")


def demo(
    out: Path,
    *,
    size: int = 64,
    num_cases: int = 500,
    steps: int = 400,
    num_samples: int = 100,
    seed: int = 0,
    progress: bool = True,
) -> Table:
    """Prepare, train, evaluate and compare. Finished parts of a previous run are reused.

    OUT/  data/  phiseg-small/  probunet-small/  (runs)  phiseg-small-eval/  probunet-small-eval/
          table.csv  table.md  table.tex  *.png  report.html

    Args:
        out: folder to write.
        size: height and width of the images.
        num_cases: number of images.
        steps: training steps per model.
        num_samples: number of samples per test case.
        seed: seed of the images, the training and the samples.
        progress: show progress bars.

    Raises:
        ConfigError: a setting is out of range.
        DataError: `out` contains a demo with other settings.
    """
    overrides = [
        f"--train.steps={steps}",
        f"--train.seed={seed}",
        f"--train.validate_every={-(-steps // 3)}",
        "--train.validation_samples=8",
        f"--train.checkpoint_every={max(1, steps // 5)}",
    ]
    recipes = {name: load_recipe(name, overrides) for name in METHODS}
    if num_samples < 1:
        raise ConfigError(f"num_samples is {num_samples}; it must be at least 1")
    _check_settings(out, phantom="lesion", size=size, num_cases=num_cases, seed=seed, steps=steps)
    data = out / "data"
    if not data.exists():
        prepare_phantom("lesion", data, seed=seed, size=size, num_cases=num_cases, progress=progress)
    for name, recipe in recipes.items():
        train(recipe, data, out / name, resume=True, progress=progress)
    for name in METHODS:
        evaluate(
            out / name,
            data,
            out / f"{name}-eval",
            num_samples=num_samples,
            seed=seed,
            reuse=True,
            progress=progress,
        )
    return compare([out / f"{name}-eval" for name in METHODS], out, overwrite=True, title="PHiSeg demo")


def _check_settings(out: Path, **wanted: Any) -> None:
    """Raise DataError if the folder contains a dataset or run of a demo with other settings."""
    found: dict[str, Any] = {}
    if (out / "data").exists():
        info = Dataset.open(out / "data").info
        found = {"seed": info.seed, **{key: info.source.get(key) for key in ("phantom", "size", "num_cases")}}
    for config in (out / name / "config.yaml" for name in METHODS):
        if config.exists():
            found["steps"] = load_recipe(str(config)).train.steps
    if different := ", ".join(
        f"{key} {found[key]}" for key in wanted if found.get(key, wanted[key]) != wanted[key]
    ):
        raise DataError(f"{out} was made with other settings ({different}); choose another --out or remove it")
