"""One training step: what `phiseg train` runs, and what `phiseg.training.budget` times."""

from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.profiler import record_function

from phiseg.core.random import derive_seed
from phiseg.data.augment import AugmentConfig
from phiseg.data.loader import Batch, TrainingStream
from phiseg.data.store import Dataset
from phiseg.models import Segmenter, build_model
from phiseg.models.noise import seeded_generator
from phiseg.training.averaging import WeightAverage
from phiseg.training.batch_norm import follow_sampling_path
from phiseg.training.memory_format import set_memory_format
from phiseg.training.recipe import Recipe, TrainConfig


class StepResult(NamedTuple):
    """Outcome of a training step."""

    values: dict[str, Tensor]
    """Loss, its terms and, if the loss is finite, the norm of the gradient."""
    taken: bool
    """False if the loss or the gradient was not finite; the model is then unchanged."""


class TrainingStep:
    """Training step of a model with its optimiser and weight average.

    Call `set_up` before the first step, after restoring the state of a previous run.

    Args:
        model: model to train.
        settings: `train` section of the recipe.
        fabric: device, precision and processes.
    """

    def __init__(self, model: Segmenter, settings: TrainConfig, fabric: Fabric) -> None:
        self.model, self.settings, self.fabric = model, settings, fabric
        self.model.checkpoint_activations(settings.checkpoint_activations)
        self.average = WeightAverage(model, settings.averaging)
        self.optimizer: Any = torch.optim.AdamW(  # equals Adam without weight decay
            model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        self.parallel: Any = None

    def set_up(self) -> None:
        """Move everything to the device and connect the processes."""
        self.parallel, self.optimizer = self.fabric.setup(self.model, self.optimizer)
        self.optimizer.load_state_dict(self.optimizer.state_dict())  # moves a restored state to the device
        self.average.model.to(self.fabric.device)

    def take(self, batch: Batch, step: int) -> StepResult:
        """Run step `step`, starting at 0, unless its loss or gradient is not finite."""
        self.parallel.train()
        statistics = [buffer.clone() for buffer in self.model.buffers()]
        first = self.fabric.global_rank * len(batch.rows)
        generators = [
            seeded_generator(self.settings.seed, "noise", step, first + i) for i in range(len(batch.rows))
        ]
        self.optimizer.zero_grad()  # free their memory before the forward pass
        with record_function("forward"):
            loss = self.parallel(batch.image, batch.labels, generator=generators)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate_at(step)
        finite = self._in_all_processes(torch.isfinite(loss.total.detach()))
        values = {"loss": loss.total.detach(), **loss.terms}
        if finite:
            with record_function("backward"):
                self.fabric.backward(loss.total)
            with record_function("optimise"):
                norm: Any = self.fabric.clip_gradients(  # measures the norm and unscales fp16; no clipping
                    self.parallel, self.optimizer, max_norm=float("inf"), error_if_nonfinite=False
                )
                values["gradient_norm"] = norm
                finite = bool(torch.isfinite(norm))
                if finite or self.settings.precision == "16-mixed":  # the scaler skips this step
                    self.optimizer.step()
        if finite:
            if self.settings.norm_statistics == "both":
                with self.fabric.autocast():
                    follow_sampling_path(self.model, batch, seed=self.settings.seed, step=step)
            self.average.update(self.model, step + 1)
        else:
            for buffer, previous in zip(self.model.buffers(), statistics, strict=True):
                buffer.copy_(previous)
        return StepResult(values, finite)

    def _in_all_processes(self, flag: Tensor) -> bool:
        """Return whether `flag` is true in all processes."""
        return bool(self.fabric.all_reduce(flag.float(), reduce_op="mean") == 1)


def initial_model(recipe: Recipe, device: torch.device) -> Segmenter:
    """Return the model of the recipe with seeded random weights, in the memory format for training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(recipe.train.seed, "weights"))
        model = build_model(recipe.model)
    set_memory_format(model, device)
    return model


def training_stream(
    recipe: Recipe,
    dataset: Dataset,
    split: str = "train",
    *,
    augmented: bool = True,
    rank: int = 0,
    num_processes: int = 1,
) -> TrainingStream:
    """Return the stream of training batches of one process."""
    settings = recipe.train
    return TrainingStream(
        dataset,
        split,
        batch_size=settings.batch_size,
        seed=settings.seed,
        annotator=settings.annotator,
        annotations_per_image=settings.annotations_per_image,
        augment=recipe.augment if augmented else AugmentConfig(enabled=False),
        context=recipe.model.context,
        patch_size=settings.patch_size,
        rank=rank,
        world_size=num_processes,
    )
