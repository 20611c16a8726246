"""The commands that work on datasets, as functions that return objects.

Paths may be text, `Path`s or objects that stand for their folder: a `Run`, `Model`, `Dataset` or `Scores`.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from phiseg.api.model import used_precision, uses_calibration
from phiseg.api.results import Comparison, Run, Samples, Scores
from phiseg.comparison import compare as comparison
from phiseg.comparison.table_formats import to_text
from phiseg.core.errors import ConfigError
from phiseg.core.files import AnyPath, check_replaceable
from phiseg.core.precision import SamplingPrecision
from phiseg.core.records import Records
from phiseg.evaluation import model_evaluation
from phiseg.evaluation.evaluation_folder import read_evaluation
from phiseg.inference.sample_writer import MARKER, write_samples
from phiseg.inference.sampling import CaseSamples, sample_split
from phiseg.training import loop
from phiseg.training.recipe import Recipe, load_recipe


def train(
    recipe: AnyPath | Recipe,
    data: AnyPath,
    out: AnyPath,
    *,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    progress: bool = True,
    profile: bool = False,
    **more: Any,
) -> Run:
    """Train a model on a prepared dataset, as `phiseg train` does.

    Args:
        recipe: the name of a bundled recipe such as `phiseg-small`, the path of a .yaml file, or a `Recipe`.
        data: the prepared dataset.
        out: the run folder to write.
        settings: values for keys of the recipe, such as `{"train.steps": 500}`; see `Recipe.with_settings`.
        resume: whether to continue from the last state in `out`; without one, the training starts at step 0.
        progress: whether to show a progress bar.
        profile: whether to report where the time of a step goes, and write a trace of a few steps to `out`/profile.
        more: settings as keyword arguments, such as `steps=500`.

    Returns:
        The run, with its best model, its recipe and its metrics.

    Raises:
        ConfigError: the recipe or a setting is invalid; an unknown setting names the nearest one.
        DataError, OutputError, TrainingError: the dataset, the run folder or the training itself fails.
        Interrupted: Ctrl-C or SIGTERM stopped the training after its state was saved. It is a `KeyboardInterrupt`.
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(Path(recipe))
    chosen = chosen.with_settings(settings, **more)
    loop.train(chosen, Path(data), Path(out), resume=resume, progress=progress, profile=profile)
    return Run(Path(out))


def evaluate(
    model: AnyPath,
    data: AnyPath,
    out: AnyPath,
    *,
    split: str = "test",
    num_samples: int = 100,
    seed: int = 0,
    method: str | None = None,
    dice_annotator: int | Literal["all", "majority", "staple"] | None = None,
    num_examples: int = 4,
    batch_size: int = 4,
    chunk_size: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    precision: SamplingPrecision | None = None,
    calibrated: bool = True,
    hide_neighbours: bool = False,
    class_map: Mapping[str, str] | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Scores:
    """Score a model's samples on every case of a split, as `phiseg evaluate` does.

    Args:
        model: a run, a model, or the name of a bundled model.
        data: the prepared dataset.
        out: the folder to write; `compare` reads it.
        split: the split to score.
        num_samples: the number of samples per case. Compare only scores of the same number.
        seed: the same seed draws the same samples.
        method: the name in tables; by default that of the recipe.
        dice_annotator: the annotator to compute Dice against: a number, `all` (averaged), or the consensus by
            `majority` or `staple`; by default the one that the model was trained on, or all.
        num_examples: the number of cases kept for the figures.
        batch_size: images encoded at once; affects memory use only.
        chunk_size: samples of each image decoded at once; affects memory use only. Default: 8 on a CPU, 16 on a
            GPU.
        workers: batches sampled and scored in parallel; affects memory use and time only. Default: one per core on
            a CPU, 1 for volumes and on a GPU.
        device: the device, such as `cpu` or `cuda:1`; `auto` is a GPU if there is one.
        precision: the number format of the network, `float32` or the faster `bfloat16`; by default that of a loaded
            model, otherwise `float32`.
        calibrated: whether to use the temperatures that `calibrate` fitted, if there are any.
        hide_neighbours: whether to hide the neighbouring slices from a model with context.
        class_map: the model's class for classes of the dataset, by name, such as `{"class 1": "nodule"}`; by
            default classes are compared by number, with a warning if names differ.
        overwrite: whether to replace an evaluation in `out`.
        progress: whether to show a progress bar.

    Raises:
        ConfigError, DataError, ModelError, OutputError: an argument, the data, the model or `out` is unsuitable.
    """
    model_evaluation.evaluate(
        Path(model),
        Path(data),
        Path(out),
        split=split,
        num_samples=num_samples,
        seed=seed,
        method=method,
        dice_annotator=dice_annotator,
        num_examples=num_examples,
        batch_size=batch_size,
        chunk_size=chunk_size,
        workers=workers,
        device=device,
        precision=used_precision(model, precision),
        calibrated=uses_calibration(model, calibrated),
        hide_neighbours=hide_neighbours,
        class_map=class_map,
        overwrite=overwrite,
        progress=progress,
    )
    return read_scores(out)


def read_scores(folder: AnyPath) -> Scores:
    """Open an evaluation that `evaluate` or `phiseg evaluate` wrote.

    Raises:
        DataError: the folder is not an evaluation, or it is damaged.
    """
    return Scores(read_evaluation(Path(folder)))


def compare(
    evaluations: AnyPath | Sequence[AnyPath],
    out: AnyPath,
    *,
    title: str = "Comparison of segmentation methods",
    test: Literal["patients", "cases"] = "patients",
    set_aside: str | Sequence[str] = (),
    equal_time: bool = False,
    overwrite: bool = False,
) -> Comparison:
    """Compare evaluations in one table with significance tests, figures and a report, as `phiseg compare` does.

    Args:
        evaluations: what `evaluate` returned, or its folders; all of the same cases and number of samples.
        out: the folder to write: table.csv, table.md, table.tex, figures and report.html.
        title: the title of the report.
        test: the unit that the significance test takes as independent.
        set_aside: methods with unsuitable settings. They are shown with a mark but not tested.
        equal_time: whether all trainings took the same time. Otherwise, methods that were trained for different
            numbers of steps are not tested against each other.
        overwrite: whether to replace a comparison in `out`.

    Returns:
        The table, one row per method; `pandas.DataFrame(table)` works.

    Raises:
        ConfigError: there is nothing to compare, or no evaluation has the name of a method to set aside.
        DataError: a folder is not an evaluation, or two of them cannot be compared.
        OutputError: `out` already has a comparison, or is not writable.
    """
    given = [evaluations] if isinstance(evaluations, str | PathLike) else evaluations
    folders = [Path(one) for one in given]
    if not folders:
        raise ConfigError("there is nothing to compare; give what evaluate returned")
    aside = [set_aside] if isinstance(set_aside, str) else set_aside
    table = comparison.compare(
        folders,
        Path(out),
        title=title,
        test=test,
        set_aside=aside,
        equal_time=equal_time,
        overwrite=overwrite,
    )
    rows = Records.from_csv((Path(out) / "table.csv").read_text(encoding="utf-8"), text_columns=["method"])
    return Comparison(rows, path=Path(out), notes=table.notes, text=to_text(table))


def sample(
    model: AnyPath,
    data: AnyPath,
    out: AnyPath | None = None,
    *,
    split: str = "test",
    num_samples: int = 16,
    seed: int = 0,
    probs: bool = False,
    batch_size: int = 4,
    chunk_size: int | None = None,
    device: str = "auto",
    precision: SamplingPrecision | None = None,
    calibrated: bool = True,
    class_map: Mapping[str, str] | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Samples:
    """Draw samples of the cases of a split, as `phiseg sample` does.

    The samples have the class numbers of the dataset, unless `class_map` is not one-to-one: then they have those of
    the model, with a warning.

    Args:
        model: a run, a model, or the name of a bundled model.
        data: the prepared dataset.
        out: the folder to write the arrays to, and to map them from; by default they stay in memory.
        split: the split to sample.
        num_samples: the number of samples per case.
        seed: the same seed draws the same samples.
        probs: whether to keep the probabilities of every sample, too; they are large.
        batch_size: images encoded at once; affects memory use only.
        chunk_size: samples of each image decoded at once; affects memory use only. Default: 8 on a CPU, 16 on a
            GPU.
        device: the device, such as `cpu` or `cuda:1`; `auto` is a GPU if there is one.
        precision: the number format of the network, `float32` or the faster `bfloat16`; by default that of a loaded
            model, otherwise `float32`.
        calibrated: whether to use the temperatures that `calibrate` fitted, if there are any.
        class_map: the model's class for classes of the dataset, by name, such as `{"class 1": "nodule"}`; by
            default classes are compared by number, with a warning if names differ.
        overwrite: whether to replace samples in `out`.
        progress: whether to show a progress bar.

    Raises:
        ConfigError, DataError, ModelError, OutputError: an argument, the data, the model or `out` is unsuitable.
    """
    if out is not None:
        check_replaceable(Path(out), overwrite=overwrite, marker=MARKER)
    dataset, rows, drawn = sample_split(
        Path(model),
        Path(data),
        split=split,
        num_samples=num_samples,
        seed=seed,
        batch_size=batch_size,
        chunk_size=chunk_size,
        keep_probs=probs,
        device=device,
        precision=used_precision(model, precision),
        calibrated=uses_calibration(model, calibrated),
        class_map=class_map,
    )
    cases = Records(dataset.cases[row] for row in rows)
    if out is None:
        if dataset.dims == 3 and len({dataset.depth(row) for row in rows}) > 1:
            raise ConfigError("the volumes differ in depth, so one array cannot hold their samples; pass out")
        found = list(tqdm(drawn, "sampling", len(rows), unit="case", disable=not progress, dynamic_ncols=True))
        return _in_memory(found, cases)
    folder = Path(out)
    write_samples(
        folder,
        drawn,
        dataset,
        rows,
        num_samples=num_samples,
        with_probs=probs,
        overwrite=overwrite,
        progress=progress,
    )
    names = ["labels", "mean_probs", "mean_log_probs", "gamma", *(["probs"] if probs else [])]
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in names}
    return Samples(cases=cases, path=folder, **arrays)


def _in_memory(drawn: Sequence[CaseSamples], cases: Records) -> Samples:
    kept = [case.probs.numpy() for case in drawn if case.probs is not None]
    return Samples(
        labels=np.stack([case.summary.labels.numpy() for case in drawn]),
        mean_probs=np.stack([case.summary.mean_probs.numpy() for case in drawn]),
        gamma=np.stack([case.summary.gamma.numpy() for case in drawn]),
        mean_log_probs=np.stack([case.summary.mean_log_probs.numpy() for case in drawn]),
        cases=cases,
        probs=np.stack(kept) if kept else None,
    )
