"""Checks before a training: run folder, recipe and dataset."""

from pathlib import Path

from phiseg.core.errors import ConfigError, OutputError
from phiseg.data.store import Dataset
from phiseg.metrics.score_registry import selectable_scores
from phiseg.training.checkpoints import STATE_FILE
from phiseg.training.recipe import Recipe, load_recipe
from phiseg.training.step import training_stream

MAY_CHANGE_ON_RESUME = {
    "steps",
    "recalibration_batches",
    "checkpoint_activations",
    "accelerator",
    "devices",
    "num_nodes",
    "tensorboard",
}
"""Settings that do not affect single steps; with a cosine schedule, `steps` does."""


def check_run_folder(out: Path, recipe: Recipe, *, resume: bool) -> None:
    """Raise an error if a run would be overwritten, or resumed with another recipe.

    With `resume`, a run without a saved state is started again, with any recipe.
    """
    config = out / "config.yaml"
    if not config.is_file():
        if out.exists() and not out.is_dir():
            raise OutputError(f"{out} is a file; choose another folder")
        if (out / "state").exists() or (out / "model").exists():
            raise OutputError(
                f"{out} contains part of a run, but no config.yaml; restore it or choose another folder"
            )
        return
    if not resume:
        raise OutputError(
            f"{out} already contains a run; pass --resume (in Python: resume=True) to continue it, or choose "
            "another folder"
        )
    if (out / STATE_FILE).is_file() or (out / "model").exists():
        _check_same_recipe(out, recipe)


def _check_same_recipe(out: Path, recipe: Recipe) -> None:
    before = load_recipe(str(out / "config.yaml")).model_dump(mode="json")
    may_change = MAY_CHANGE_ON_RESUME - ({"steps"} if recipe.train.schedule == "cosine" else set())
    for section, values in recipe.model_dump(mode="json", exclude={"name"}).items():
        for key, value in values.items():
            old = before[section].get(key)
            if value != old and not (section == "train" and key in may_change):
                raise ConfigError(
                    f"{out} was started with {section}.{key} = {old!r}, but now it is {value!r}; "
                    "resume with the same recipe, or train into a new folder"
                )


def check_trainable(recipe: Recipe, dataset: Dataset) -> None:
    """Raise an error if the recipe cannot be trained on the dataset, or if the dataset is damaged."""
    processes = recipe.train.devices * recipe.train.num_nodes
    rows = training_stream(recipe, dataset, "train", num_processes=processes).rows
    _check_selection(recipe, dataset)
    _check_batch(recipe, dataset)
    dataset.check_labels(rows)
    dataset.check_labels(dataset.rows("val"))
    dataset.verify()


def _check_selection(recipe: Recipe, dataset: Dataset) -> None:
    """Check that the validation split has cases for the criterion that selects the model."""
    criterion = recipe.train.select_by
    scores = {score.name: score for score in selectable_scores(dataset.dims)}
    if criterion in ("loss", "elbo"):
        training_stream(recipe, dataset, "val")  # raises an error if the annotator saw no case
    elif criterion not in scores:
        kind = "volumes" if dataset.dims == 3 else "images"
        raise ConfigError(
            f"train.select_by {criterion} is not a score of {kind}, which {dataset.path} has; use loss, elbo or "
            f"one of {', '.join(scores)}"
        )
    elif not (dataset.valid[dataset.rows("val")].sum(1) >= scores[criterion].min_annotators).any():
        raise ConfigError(
            f"train.select_by {criterion} needs cases with several annotators, but no validation "
            f"case of {dataset.path} has two; use loss or elbo"
        )


def _check_batch(recipe: Recipe, dataset: Dataset) -> None:
    """Raise a ConfigError if batch norm would see a single value per channel."""
    stride = 2 ** (len(recipe.model.channels) - 1)
    if recipe.model.norm == "batch" and recipe.train.batch_size == 1 and max(dataset.info.size) <= stride:
        raise ConfigError(
            "with train.batch_size 1, batch norm has a single value at the coarsest resolution; "
            "use 2 or more, fewer model.channels, or model.norm group"
        )
