"""The demo: PHiSeg against the Probabilistic U-Net on the embedded lesion phantom, from nothing to a report."""

from pathlib import Path
from typing import Any

from phiseg.comparison.compare import compare
from phiseg.comparison.tables import Table
from phiseg.core.errors import ConfigError, DataError
from phiseg.data.prepare.phantom import prepare_phantom
from phiseg.data.store import Dataset
from phiseg.evaluation.scores import evaluate
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
    """Prepare, train, evaluate and compare; what is there from an earlier run is used again.

    OUT/  data/  phiseg-small/  probunet-small/  (runs)  phiseg-small-eval/  probunet-small-eval/
          table.csv  table.md  table.tex  *.png  report.html

    Args:
        out: the folder to write.
        size: of the phantom's images.
        num_cases: of the phantom.
        steps: of each training: the same budget for both.
        num_samples: per test case.
        seed: of the phantom, the trainings and the samples.
        progress: whether to show progress bars.

    Raises:
        ConfigError: a setting is out of its range.
        DataError: `out` holds a demo with other settings.
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
        raise ConfigError(f"num_samples is {num_samples}; give at least 1")
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
    """Refuse a folder with the dataset or a run of a demo with other settings."""
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
