"""A recipe: everything that decides what a training does, in one YAML file.

The recipes that ship with the package are found by name; a path to any other file works the same.
"""

from collections.abc import Callable, Sequence
from importlib.resources import files
from math import cos, pi
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from phiseg.core.config import OneOf, StrictConfig, apply_overrides, read_yaml
from phiseg.core.errors import ConfigError, nearest
from phiseg.data.augment import AugmentConfig
from phiseg.data.store import Dataset
from phiseg.metrics.registry import selectable_scores
from phiseg.models import ModelConfig


def criteria() -> dict[str, Callable[[float, float], float]]:
    """Return the criteria of model selection, each with the function that returns the better of two values."""
    ends = {"lower": min, "higher": max}
    return {
        "loss": min,
        "elbo": max,
        **{score.name: ends[score.better] for score in selectable_scores() if score.better},
    }


Criterion = Annotated[str, OneOf(criteria)]
"""The name of a criterion."""


class TrainConfig(StrictConfig):
    """How a model is trained. The defaults are the paper's where it says anything."""

    steps: int = Field(default=100_000, ge=1)
    """Optimisation steps."""
    batch_size: int = Field(default=12, ge=1, le=2**20)
    """Images a step, over all processes together."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Of Adam."""
    schedule: Literal["constant", "cosine"] = "constant"
    """How the learning rate goes on: constant as in the paper, or down to zero along half a cosine."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises from zero to where the schedule has it."""
    weight_decay: float = Field(default=0.0, ge=0)
    """The share of each weight that a step takes away, as a factor on the learning rate (AdamW)."""
    averaging: float = Field(default=0.0, ge=0, lt=1)
    """Validate, select and save an exponential moving average of the weights with this decay, such as 0.999, which
    rises to it over the first steps; 0 takes the weights themselves, as in the paper."""
    initial_weights: str | None = None
    """Model to start from (fine-tuning): a model folder, a run folder or the name of a bundled model, with the same
    network. By default, training starts from random weights."""
    seed: int = Field(default=0, ge=0)
    """The same command with the same seed gives the same weights on the same machine."""
    annotator: int | Literal["random"] = "random"
    """Whose annotation is learned: `random` draws one per image and step, a number takes always that one (the
    paper's one-expert experiment)."""
    validate_every: int = Field(default=1000, ge=1)
    """Steps between validations on the whole validation split."""
    validation_samples: int = Field(default=16, ge=2, le=2**20)
    """Samples per validation case, for GED and S_NCC."""
    checkpoint_every: int = Field(default=500, ge=1)
    """Steps between the states that `--resume` starts from."""
    log_every: int = Field(default=10, ge=1)
    """Steps between the training lines of metrics.jsonl."""
    select_by: Criterion = "loss"
    """The validation result that selects the best model: the loss (lowest, as in the paper), the elbo, or a score
    that has a direction. With few samples use the unbiased GED, because the GED prefers samples that are all alike.
    Loss and elbo use only the annotators that the model is trained on; the scores use all annotators."""
    norm_statistics: Literal["recalibrated", "both", "running"] = "recalibrated"
    """Where batch norm's statistics for evaluation come from; see `phiseg.training.normalisation`."""
    recalibration_batches: int = Field(default=100, ge=2)
    """Batches that recalibration averages over. With few of them the scores of one model vary."""
    max_skipped_steps: int = Field(default=20, ge=1)
    """Training stops after this many steps in a row with a non-finite loss or gradient."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Number format of the networks. The KL and the cross entropy are always float32."""
    checkpoint_activations: bool = False
    """Forget most activations and compute them anew in the backward pass: the same weights to the last bit, with
    less memory, in more time: `make bench` tells how much."""
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"] = "auto"
    """What to run on."""
    devices: int = Field(default=1, ge=1)
    """Processes on this machine; each takes its share of the batch."""
    num_nodes: int = Field(default=1, ge=1)
    """Machines."""
    tensorboard: bool = False
    """Also write TensorBoard files (needs the extra `tensorboard`)."""

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        falling = 0.5 * (1 + cos(pi * step / self.steps)) if self.schedule == "cosine" else 1.0
        rising = min(1.0, (step + 1) / (self.warmup_steps + 1))
        return self.learning_rate * falling * rising


class Recipe(StrictConfig):
    """What to train, on which augmentation, and how."""

    name: str = Field(default="", max_length=100)
    """How results call it; the file's name if not given."""
    model: ModelConfig
    augment: AugmentConfig = AugmentConfig()
    train: TrainConfig = TrainConfig()

    def for_dataset(self, dataset: Dataset) -> "Recipe":
        """Return the recipe with the dataset's image channels and classes.

        Raises:
            ConfigError: the recipe itself names other numbers.
        """
        found = {"image_channels": dataset.info.image_channels, "num_classes": len(dataset.info.classes)}
        for key, value in found.items():
            if key in self.model.model_fields_set and getattr(self.model, key) != value:
                raise ConfigError(
                    f"the recipe says model.{key} = {getattr(self.model, key)}, {dataset.path} has {value}; "
                    f"leave model.{key} out: a training takes it from the dataset"
                )
        return self.model_copy(update={"model": self.model.model_copy(update=found)})


def recipe_names() -> list[str]:
    """Return the names of the recipes that ship with the package."""
    folder = files("phiseg.recipes")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Load a shipped recipe by name, or a file by path, and apply `--section.key value` overrides.

    Raises:
        ConfigError: there is none, or something in it is wrong.
    """
    path = Path(name)
    if path.suffix not in {".yaml", ".yml"}:
        if name not in recipe_names():
            raise ConfigError(
                f"there is no recipe '{name}' ({nearest(name, recipe_names())}); or give a .yaml file"
            )
        path = Path(str(files("phiseg.recipes") / f"{name}.yaml"))
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no recipe: it must have a section 'model'")
    return Recipe.parse({"name": path.stem, **apply_overrides(values, overrides)}, where=name)
