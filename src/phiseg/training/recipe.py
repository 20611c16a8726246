"""Recipes: all settings of a training run in one YAML file.

Recipes of the package are loaded by name, other recipes by path.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from math import cos, pi
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from phiseg.compute.devices import Accelerator, Precision
from phiseg.core.bundled import find_recipe
from phiseg.core.config import OneOf, StrictConfig, apply_overrides, read_yaml
from phiseg.core.errors import ConfigError, nearest
from phiseg.data.augment import AugmentConfig
from phiseg.data.patches import patch_size_for
from phiseg.data.store import Dataset
from phiseg.metrics.score_registry import selectable_scores
from phiseg.models import ModelConfig
from phiseg.models.pyramid import plan_pyramid


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
    """Settings of the training. The defaults follow the paper where it specifies them."""

    steps: int = Field(default=100_000, ge=1)
    """Number of optimisation steps."""
    batch_size: int = Field(default=12, ge=1, le=2**20)
    """Images per step, in total over all processes."""
    patch_size: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    """Slices, height and width of the patches that volumes are trained on, such as `[16, 64, 64]`. They are cut at
    random places. By default, they have whole slices, and 90 % of the volumes fit into them, but at most 32."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of Adam."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning-rate schedule: constant as in the paper, or cosine decay to zero."""
    warmup_steps: int = Field(default=0, ge=0)
    """Number of steps of linear warm-up of the learning rate."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay (AdamW); 0 is Adam."""
    averaging: float = Field(default=0.0, ge=0, lt=1)
    """Decay of an exponential moving average of the weights, such as 0.999, which is then validated, selected and
    saved. The decay increases during the first steps. 0 uses the weights themselves, as in the paper."""
    initial_weights: str | None = None
    """Model to start from (fine-tuning): a model folder, a run folder or the name of a bundled model, with the same
    network. By default, training starts from random weights."""
    seed: int = Field(default=0, ge=0)
    """Random seed. The same command with the same seed gives the same weights on the same machine."""
    annotator: int | Literal["random"] = "random"
    """Annotator used for training: `random` draws one per image and step, a number always uses that annotator (the
    single-expert experiment of the paper)."""
    annotations_per_image: int = Field(default=1, ge=1, le=2**10)
    """Annotations of each image in a step. Only mose and models with `model.presence` take more than one. Images
    with fewer annotators repeat some. No effect with a fixed `annotator`."""
    validate_every: int = Field(default=1000, ge=1)
    """Steps between validations on the whole validation split."""
    validation_samples: int = Field(default=16, ge=2, le=2**20)
    """Samples per validation case, for GED and S_NCC."""
    checkpoint_every: int = Field(default=500, ge=1)
    """Steps between checkpoints for `--resume`."""
    log_every: int = Field(default=10, ge=1)
    """Steps between training lines in metrics.jsonl."""
    select_by: Criterion = "loss"
    """The validation result that selects the best model: the loss (lowest, as in the paper), the elbo, or a score
    that has a direction. With few samples use the unbiased GED, because the GED prefers samples that are all alike.
    Loss and elbo use only the annotators that the model is trained on; the scores use all annotators."""
    norm_statistics: Literal["recalibrated", "training", "both", "running"] | None = None
    """Batch-norm statistics at sampling time; see `phiseg.training.batch_norm`. Default: `recalibrated`, or
    `training` for models whose statistics must not come from the sampling path."""
    recalibration_batches: int = Field(default=100, ge=2)
    """Number of batches for recalibration. With few batches, the scores of a model vary."""
    max_skipped_steps: int = Field(default=20, ge=1)
    """Training stops after this number of consecutive steps with a non-finite loss or gradient."""
    precision: Precision = "32-true"
    """Floating-point precision of the networks. The KL and the cross-entropy are always float32."""
    checkpoint_activations: bool = False
    """Activation checkpointing: recompute most activations in the backward pass. It needs less memory and more
    time, and the weights are bitwise identical."""
    accelerator: Accelerator = "auto"
    """Device type."""
    devices: int = Field(default=1, ge=1)
    """Number of devices, one process each; they share the batch."""
    num_nodes: int = Field(default=1, ge=1)
    """Number of machines."""
    tensorboard: bool = False
    """Also write TensorBoard files (needs the extra `tensorboard`)."""

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, starting at 0."""
        decay = 0.5 * (1 + cos(pi * step / self.steps)) if self.schedule == "cosine" else 1.0
        warmup = min(1.0, (step + 1) / (self.warmup_steps + 1))
        return self.learning_rate * decay * warmup


class Recipe(StrictConfig):
    """Model, augmentation and training settings."""

    name: str = Field(default="", max_length=100)
    """Name in results; default: name of the file."""
    model: ModelConfig
    augment: AugmentConfig = AugmentConfig()
    train: TrainConfig = TrainConfig()

    @model_validator(mode="after")
    def _check_norm_statistics(self) -> Self:
        statistics, problem = self.train.norm_statistics, self.model.sampling_statistics_problem
        if problem and statistics in ("recalibrated", "both") and self.model.norm == "batch":
            raise ValueError(
                f"train.norm_statistics {statistics} is not possible with model {self.model.name}: {problem}; use "
                "train.norm_statistics training"
            )
        return self

    @model_validator(mode="after")
    def _check_annotations(self) -> Self:
        if self.train.annotations_per_image > 1 and not self.model.takes_sets:
            unless = " unless model.presence is true" if "presence" in type(self.model).model_fields else ""
            raise ValueError(
                f"train.annotations_per_image {self.train.annotations_per_image} is not possible with model "
                f"{self.model.name}, which takes one annotation per image{unless}; use 1"
            )
        return self

    def for_dataset(self, dataset: Dataset) -> "Recipe":
        """Return the recipe with the image channels, classes and patch size of the dataset, without open defaults.

        For volumes, strides and kernels that the recipe leaves open are planned from the median spacing of the
        training volumes; volumes of unknown spacing count as cubes.

        Raises:
            ConfigError: the recipe specifies different numbers, or a 2-D model for volumes or the reverse.
        """
        check_dims(self.model, dataset)
        found: dict[str, Any] = {
            "image_channels": dataset.info.image_channels,
            "num_classes": len(dataset.info.classes),
        }
        for key, value in found.items():
            if key in self.model.model_fields_set and getattr(self.model, key) != value:
                raise ConfigError(
                    f"the recipe has model.{key} = {getattr(self.model, key)}, but {dataset.path} has {value}; "
                    f"remove model.{key} from the recipe: it is set from the dataset"
                )
        patch_size = patch_size_for(dataset, self.train.patch_size)
        if patch_size is not None:
            plan = plan_pyramid(_median_spacing(dataset), len(self.model.channels), patch_size)
            found |= {key: value for key, value in plan._asdict().items() if getattr(self.model, key) is None}
        return self.model_copy(
            update={
                "model": self.model.model_copy(update=found),
                "train": self.train.model_copy(
                    update={"patch_size": patch_size, "norm_statistics": self._norm_statistics}
                ),
            }
        )

    @property
    def _norm_statistics(self) -> str:
        """Batch-norm statistics at sampling time, the default resolved."""
        return self.train.norm_statistics or (
            "training" if self.model.sampling_statistics_problem else "recalibrated"
        )

    def with_settings(self, settings: Mapping[str, Any] | None = None, /, **more: Any) -> "Recipe":
        """Return the recipe with other values for some of its keys.

        >>> recipe = load_recipe("phiseg-small").with_settings(steps=500, kl_weights="paper")
        >>> recipe.train.steps, recipe.model.kl_weights
        (500, 'paper')

        Args:
            settings: new values by key. `{"steps": 500}`, `{"train.steps": 500}` and `{"train": {"steps": 500}}`
                mean the same.
            more: the same as keyword arguments.

        Raises:
            ConfigError: a key does not exist, with the nearest one; or a value is invalid.
        """
        values = self.model_dump(mode="json", exclude_unset=True)
        for key, value in {**(settings or {}), **more}.items():
            *sections, last = self._full_key(key).split(".")
            place = values
            for section in sections:
                place = place.setdefault(section, {})
                if not isinstance(place, dict):
                    raise ConfigError(f"'{key}': '{section}' is a value, not a section")
            new = _plain(value)
            if isinstance(new, dict) and isinstance(place.get(last), dict):
                place[last] = {**place[last], **new}
            else:
                place[last] = new
        return type(self).parse(values, where=self.name or "the recipe")

    def _full_key(self, key: str) -> str:
        """Return a key with its section: train.steps for steps."""
        sections = {"train": self.train, "augment": self.augment, "model": self.model}
        if key in type(self).model_fields or key.partition(".")[0] in sections:
            return key
        full = [f"{name}.{key}" for name, section in sections.items() if key in type(section).model_fields]
        if not full:
            known = {name for section in sections.values() for name in type(section).model_fields}
            raise ConfigError(f"the recipe has no setting '{key}' ({nearest(key, known)})")
        if len(full) > 1:
            raise ConfigError(f"setting '{key}' is ambiguous; write {' or '.join(map(repr, full))}")
        return full[0]


def check_dims(model: ModelConfig, dataset: Dataset) -> None:
    """Raise ConfigError if a 2-D model would get volumes, or a 3-D model would get images."""
    if model.dims == 2 and dataset.dims == 3:
        raise ConfigError(
            f"{dataset.path} contains volumes, but the model takes images (model.dims 2); use a model with "
            "model.dims 3, such as phiseg3d-small, or prepare the dataset without --volumes"
        )
    if model.dims == 3 and dataset.dims == 2:
        raise ConfigError(
            f"{dataset.path} contains images, but the model takes volumes (model.dims 3); use a model with "
            "model.dims 2, such as phiseg-small, or prepare the dataset with --volumes"
        )


def _median_spacing(dataset: Dataset) -> tuple[float, ...]:
    """Return the median spacing (between slices, vertical, horizontal) of the training volumes."""
    spacings = [spacing for row in dataset.rows("train").tolist() if (spacing := dataset.voxel_spacing_mm(row))]
    return tuple(np.median(spacings, axis=0).tolist()) if spacings else (1.0, 1.0, 1.0)


def _plain(value: Any) -> Any:
    """Return a value of a setting with dicts for mappings and text for paths."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def load_recipe(
    name: str | Path, overrides: Sequence[str] = (), *, settings: Mapping[str, Any] | None = None, **more: Any
) -> Recipe:
    """Load a bundled recipe by name, or a recipe file by path, and change some of its keys.

    >>> load_recipe("phiseg-small", steps=500).train.steps
    500

    Args:
        name: the name of a bundled recipe, see `recipe_names`, or the path of a .yaml file.
        overrides: changes as on the command line, such as `["--train.steps", "500"]`.
        settings: changes by key, such as `{"train.steps": 500}`; see `Recipe.with_settings`.
        more: the same as keyword arguments, such as `steps=500`.

    Raises:
        ConfigError: there is no such recipe, or a key or value is invalid.
    """
    path = find_recipe(name)
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not a recipe: it must have a section 'model'")
    recipe = Recipe.parse({"name": path.stem, **apply_overrides(values, overrides)}, where=str(name))
    return recipe.with_settings(settings, **more) if settings or more else recipe
