"""Training loop on Lightning Fabric, for any device, precision and number of processes.

RUN/  config.yaml  environment.json  metrics.jsonl  state/last.pt  model/ (the best so far)
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function
from tqdm import tqdm

from phiseg.compute.devices import keep_freed_memory, make_fabric
from phiseg.core.errors import Interrupted, OutputError, TrainingError
from phiseg.core.files import one_process, write_json, write_text
from phiseg.data.loader import Batch, TrainingStream, prefetch
from phiseg.data.store import Dataset
from phiseg.inference.preprocessing import Preprocessing
from phiseg.models import load_model, save_model
from phiseg.models.model_folder import load_weights, weights_hash
from phiseg.training.batch_norm import recalibrate
from phiseg.training.card import model_card, provenance
from phiseg.training.checkpoints import STATE_FILE, TrainingState, load_state, save_state
from phiseg.training.checks import check_run_folder, check_trainable
from phiseg.training.environment import dataset_identity, describe_environment
from phiseg.training.interruption import StopSignal
from phiseg.training.memory_format import match_memory_format
from phiseg.training.profiling import profiled
from phiseg.training.recipe import Recipe, criteria
from phiseg.training.step import TrainingStep, initial_model, training_stream
from phiseg.training.tracking import Tracker, progress_values
from phiseg.training.validation import validate

HINT = (
    "lower train.learning_rate, use train.precision 32-true or increase model.min_std, "
    "and check the images for outliers"
)


def train(
    recipe: Recipe, data: Path, out: Path, *, resume: bool = False, progress: bool = True, profile: bool = False
) -> Path:
    """Train a model and return its folder, `out`/model.

    Args:
        recipe: model, augmentation and training settings.
        data: folder of a prepared dataset.
        out: run folder.
        resume: continue from the last checkpoint in `out` with identical results; start a new run if there is none.
        progress: show a progress bar.
        profile: print the time per step, and write a trace of a few steps to `out`/profile.

    Raises:
        ConfigError: the recipe is invalid or does not match the dataset or the existing run.
        DataError: the dataset is missing, damaged or unsuitable.
        OutputError: the run folder exists or cannot be written.
        TrainingError: training cannot continue.
        Interrupted: SIGINT or SIGTERM stopped the training; the state of the last step is saved.
    """
    dataset = Dataset.open(data)
    recipe = recipe.for_dataset(dataset)
    check_run_folder(out, recipe, resume=resume)
    training = _Training(recipe, dataset, out, resume=resume, progress=progress, profile=profile)
    first = training.fabric.is_global_zero  # the others belong to it and share its lock
    try:
        with one_process(out, "training into it") if first else nullcontext():
            return training.run()
    except Interrupted as stopped:
        raise Interrupted(stopped.signal, training.saved_step) from None
    except RuntimeError as error:
        if "memory" in str(error):  # torch has no exception type for CPU memory
            raise TrainingError(
                "not enough memory for a training step; use a smaller train.batch_size, "
                "train.checkpoint_activations or a smaller model"
            ) from None
        if training.fabric.world_size == 1 or not _is_lost_process(error):
            raise
        raise TrainingError(
            "another process of this training run has died, so training cannot continue; "
            "run the command again with --resume"
        ) from None


class _Training:
    """A training run: model, optimiser and state.

    User errors are detected before further processes are started, so that they are reported once.
    """

    def __init__(self, recipe: Recipe, dataset: Dataset, out: Path, *, resume: bool, progress: bool, profile: bool):
        self.recipe, self.settings = recipe, recipe.train
        self.dataset, self.out, self.progress, self.profile = dataset, out, progress, profile
        self.identity = dataset_identity(dataset)
        self.fabric = make_fabric(self.settings)
        check_trainable(recipe, dataset)
        model = initial_model(recipe, self.fabric.device)
        self.state_file = out / STATE_FILE
        stored = load_state(self.state_file) if resume and self.state_file.is_file() else None
        self.initial = stored.initial if stored else {}
        if (start := self.settings.initial_weights) and not self.initial:  # a resumed run has a record of it
            first = load_model(Path(start))
            load_weights(model, model.weights_from(first), where=f"train.initial_weights {start}")
            self.initial = {**first.provenance, "sha256": weights_hash(Path(start))}
        self.training = TrainingStep(model, self.settings, self.fabric)
        self.step, self.skipped, self.skipped_in_a_row = 0, 0, 0
        self.best: float | None = None
        self.validation_due = False
        self.saved_step: int | None = None
        if stored is not None:
            self._restore(stored)

    def run(self) -> Path:
        """Run the training up to the last step."""
        self.fabric.launch()
        keep_freed_memory()
        if self.fabric.device.type == "cuda":
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.backends.cudnn.allow_tf32 = self.settings.precision != "32-true"
        self.stream = self._stream("train", rank=self.fabric.global_rank)
        self.plain_stream = self._stream("train", rank=self.fabric.global_rank, augmented=False)
        self.training.set_up()
        self._write(self._open_folder)
        bar = tqdm(
            total=self.settings.steps,
            initial=min(self.step, self.settings.steps),
            desc=self.out.name,
            unit="step",
            disable=not (self.progress and self.fabric.is_global_zero),
            dynamic_ncols=True,
        )
        batches = self._batches()
        with bar, self._profiled() as profile_step, StopSignal(announce=self.fabric.is_global_zero) as stop:
            if self.validation_due:  # the run was stopped during validation
                self._validate(bar, stop)
                self._checkpoint()
            for batch in batches:
                values = self._optimise(batch)
                profile_step()
                self.step += 1
                last = self.step == self.settings.steps
                if self.step % self.settings.log_every == 0 or last:
                    means = {name: self._mean(value) for name, value in values.items()}
                    self._track("train", {**means, "skipped": self.skipped})
                    bar.set_postfix(progress_values(means))
                self.validation_due = self.step % self.settings.validate_every == 0 or last
                stopped_by = self._signal_in_any_process(stop)
                due = self.validation_due or self.step % self.settings.checkpoint_every == 0
                good = last or not self.skipped_in_a_row  # do not save a state without finite steps
                if (due or stopped_by) and good:
                    self._checkpoint()
                if stopped_by:
                    raise Interrupted(stopped_by) if self.fabric.is_global_zero else SystemExit(0)
                if self.validation_due:
                    self._validate(bar, stop)
                    if good:
                        self._checkpoint()
                bar.update()
        if self.skipped and self.fabric.is_global_zero:
            print(f"{self.skipped} of {self.step} steps were skipped: their loss or gradient was not finite")
        if self.best is None:
            raise TrainingError(
                f"no validation had a finite {self.settings.select_by}, so no model was saved; {HINT}"
            )
        return self.out / "model"

    def _profiled(self) -> AbstractContextManager[Callable[[], None]]:
        """Return a context with a function to call after each step; only the first process records a profile."""
        if self.profile and self.fabric.is_global_zero and self.step < self.settings.steps:
            return profiled(self.out / "profile", first_step=self.step, last_step=self.settings.steps)
        return nullcontext(lambda: None)

    def _open_folder(self) -> None:
        if self.step < self.settings.steps:
            write_text(self.out / "config.yaml", self.recipe.to_yaml())
        if self.step == 0:
            write_json(self.out / "environment.json", describe_environment(self.fabric, self.dataset))
            if self.initial and not self.initial.get("patient_salt"):
                print(
                    f"phiseg: warning: {self.settings.initial_weights} was trained with an older phiseg, so the "
                    "new model has no record of its patients, and evaluate cannot warn if they are in a test split",
                    file=sys.stderr,
                )
        self.tracker = Tracker(
            self.out, start=self.step, validation_due=self.validation_due, tensorboard=self.settings.tensorboard
        )

    def _stream(self, split: str, *, rank: int = 0, augmented: bool = True) -> TrainingStream:
        number = self.settings.devices * self.settings.num_nodes
        return training_stream(
            self.recipe, self.dataset, split, augmented=augmented, rank=rank, num_processes=number
        )

    def _batches(self) -> Iterator[Batch]:
        """Yield the remaining batches. They are prefetched only on a GPU: on a CPU, the network needs all cores."""
        steps = range(self.step, self.settings.steps)
        batches: Iterator[Batch] = map(self.stream.batch, steps)
        if self.fabric.device.type != "cpu":
            batches = prefetch(self.stream, self.step, self.settings.steps, device=self.fabric.device)
        for _ in steps:
            with record_function("load the batch"):  # or wait for a prefetched batch
                batch = next(batches)
            yield batch

    def _optimise(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Run one step and return the values to log.

        Raises:
            TrainingError: too many consecutive steps were skipped.
        """
        values, taken = self.training.take(batch, self.step)
        if taken:
            self.skipped_in_a_row = 0
            return values
        self.skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= self.settings.max_skipped_steps:
            raise TrainingError(
                f"the loss or its gradient was not finite in {self.skipped_in_a_row} consecutive steps, up to step "
                f"{self.step + 1}; {HINT}, and train into a new folder"
            )
        return values

    def _signal_in_any_process(self, stop: StopSignal) -> int:
        """Return the signal that stops the training, or 0; the same in all processes."""
        if self.fabric.world_size == 1:
            return stop.received
        received = torch.tensor(stop.received, device=self.fabric.device)
        return int(self.fabric.all_reduce(received, reduce_op="max"))  # type: ignore[arg-type]

    def _validate(self, bar: Any, stop: StopSignal) -> None:
        """Validate the model. The state is saved, so a single process can stop at once."""
        with stop.at_once() if self.fabric.world_size == 1 else nullcontext():
            self._select_model(bar)

    @record_function("validate")
    def _select_model(self, bar: Any) -> None:
        """Validate the model, and keep it if it is the best so far."""
        self.validation_due = False
        model = self.training.average.model
        statistics = self.settings.norm_statistics
        if statistics in ("recalibrated", "training"):
            number = self.settings.recalibration_batches
            with self.fabric.autocast():
                batches = (self.plain_stream.batch(i, self.fabric.device) for i in range(number))
                recalibrate(
                    model,
                    batches,
                    seed=self.settings.seed,
                    sampling_path=statistics == "recalibrated",
                    progress=not bar.disable,
                )
        values = validate(model, self.dataset, self.settings, self.fabric, progress=not bar.disable)
        self._track("val", values)
        criterion = self.settings.select_by
        value = values.get(criterion)
        if value is not None and (self.best is None or criteria()[criterion](value, self.best) != self.best):
            self.best = value
            self._write(
                lambda: save_model(
                    self.out / "model",
                    model,
                    preprocessing=Preprocessing.of_dataset(
                        self.dataset, patch_size=self.settings.patch_size
                    ).to_json(),
                    provenance=provenance(self.recipe, self.dataset, self.step, initial=self.initial),
                    card=model_card(self.recipe, self.dataset, self.step, values),
                )
            )
        if not bar.disable:
            shown = ", ".join(
                f"{name} {value:.4g}"
                for name, value in values.items()
                if name in {"loss", "ged", "s_ncc"} and value is not None  # short; metrics.jsonl has all scores
            )
            tqdm.write(f"{self.out.name} step {self.step}: validation {shown}", file=sys.stderr)

    def _checkpoint(self) -> None:
        state = TrainingState(
            self.identity,
            self.training.model.state_dict(),
            self.training.optimizer.state_dict(),
            self.step,
            self.best,
            self.skipped,
            self.training.average.model.state_dict() if self.settings.averaging else {},
            self.fabric.strategy.precision.state_dict(),
            self.validation_due,
            self.initial,
        )

        def save() -> None:
            self.tracker.check()
            save_state(self.state_file, state)

        self._write(save)
        self.saved_step = self.step

    def _write(self, action: Callable[[], None]) -> None:
        """Run `action` in the first process; if it fails, all processes stop and the first reports the error."""
        error: OutputError | None = None
        if self.fabric.is_global_zero:
            try:
                action()
            except OutputError as failed:
                error = failed
        if self.fabric.broadcast(error is not None):
            raise error or SystemExit(2)

    def _restore(self, stored: TrainingState) -> None:
        where = str(self.state_file)
        if stored.fingerprint != self.identity:
            raise TrainingError(
                f"{where} belongs to another dataset, or another split, than {self.dataset.path}; "
                "resume with the original dataset"
            )
        try:
            load_weights(self.training.model, stored.weights, where=where)
            if self.settings.averaging:
                load_weights(self.training.average.model, stored.average, where=where)
            self.training.optimizer.load_state_dict(stored.optimizer)
            match_memory_format(self.training.optimizer)
            self.fabric.strategy.precision.load_state_dict(stored.scaler)
            self.step, self.best, self.skipped = int(stored.step), stored.best, stored.skipped
            self.saved_step = self.step
            self.validation_due = bool(stored.validation_due)
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError):
            raise TrainingError(
                f"{where} is damaged or belongs to another run; restore the file, or train into a new folder"
            ) from None

    def _track(self, kind: str, values: dict[str, float | None]) -> None:
        self._write(lambda: self.tracker.write(self.step, kind, values))

    def _mean(self, value: torch.Tensor) -> float | None:
        """Return the mean over all processes, or None if it is not finite, which JSON cannot represent."""
        mean = float(self.fabric.all_reduce(value.clone(), reduce_op="mean"))  # type: ignore[arg-type]
        return mean if isfinite(mean) else None


def _is_lost_process(error: RuntimeError) -> bool:
    """Return whether an error is a connection error; gloo has no exception type for these."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error).lower()
