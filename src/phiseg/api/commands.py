"""The main commands as functions that return objects.

Paths may be text, `Path`s or objects that stand for their folder: a `Run`, `Model`, `Dataset` or `Scores`.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from phiseg.api.model import Model
from phiseg.api.results import Comparison, Predictions, Run, Samples, Scores
from phiseg.comparison import compare as comparison
from phiseg.comparison.table_formats import to_text
from phiseg.compute.devices import usable_device
from phiseg.core.errors import ConfigError, nearest
from phiseg.core.files import AnyPath, check_replaceable
from phiseg.core.records import Records
from phiseg.evaluation import scores as scoring
from phiseg.evaluation.results import read_evaluation
from phiseg.inference import export, monai_bundle
from phiseg.inference.points import Point, read_points
from phiseg.inference.prediction_folder import write_predictions
from phiseg.inference.sampling import CaseSamples, sample_split
from phiseg.inference.volumes import Sampling
from phiseg.inference.writers import MARKER, write_samples
from phiseg.plotting.prediction_report import case_picture, write_prediction_report
from phiseg.training import loop
from phiseg.training.recipe import Recipe, load_recipe

Points = str | Sequence[float] | Sequence[str | Sequence[float] | NDArray[Any]] | NDArray[Any]
"""One point or several; each is text or three voxel indices."""


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
        recipe: the name of a shipped recipe such as `phiseg-small`, the path of a .yaml file, or a `Recipe`.
        data: the prepared dataset.
        out: the run folder to write.
        settings: values for keys of the recipe, such as `{"train.steps": 500}`; see `Recipe.with_settings`.
        resume: whether to continue from the last state in `out`; without one, the training starts at step 0.
        progress: whether to show a progress bar.
        profile: whether to report where the time of a step goes, and write a trace of a few steps to `out`/profile.
        more: settings as keyword arguments, such as `steps=500`.

    Returns:
        The run: its best model, its recipe and its metrics.

    Raises:
        ConfigError: the recipe or a setting is invalid; an unknown setting names the nearest one.
        DataError, OutputError, TrainingError: the dataset, the run folder or the training itself fails.
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
    chunk_size: int = 16,
    device: str = "auto",
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
        chunk_size: samples of each image decoded at once; affects memory use only.
        device: the device, such as `cpu` or `cuda:1`; `auto` is a GPU if there is one.
        calibrated: whether to use the temperatures that `calibrate` fitted, if there are any.
        hide_neighbours: whether to hide the neighbouring slices from a model with context.
        class_map: the model's class for classes of the dataset, by name, such as `{"class 1": "nodule"}`; by
            default classes are compared by number, with a warning if names differ.
        overwrite: whether to replace an evaluation in `out`.
        progress: whether to show a progress bar.

    Raises:
        ConfigError, DataError, ModelError, OutputError: an argument, the data, the model or `out` is unsuitable.
    """
    scoring.evaluate(
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
        device=device,
        calibrated=_uses_calibration(model, calibrated),
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
    overwrite: bool = False,
) -> Comparison:
    """Compare evaluations in one table with significance tests, figures and a report, as `phiseg compare` does.

    Args:
        evaluations: what `evaluate` returned, or its folders; all of the same cases and number of samples.
        out: the folder to write: table.csv, table.md, table.tex, figures and report.html.
        title: the title of the report.
        test: the unit that the significance test takes as independent.
        set_aside: methods that are not at a working setting. They are shown with a mark but not tested.
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
    table = comparison.compare(folders, Path(out), title=title, test=test, set_aside=aside, overwrite=overwrite)
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
    chunk_size: int = 16,
    device: str = "auto",
    calibrated: bool = True,
    class_map: Mapping[str, str] | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Samples:
    """Draw samples of the cases of a split, as `phiseg sample` does.

    Args:
        model: a run, a model, or the name of a bundled model.
        data: the prepared dataset.
        out: the folder to write the arrays to, and to map them from; by default they stay in memory.
        split: the split to sample.
        num_samples: the number of samples per case.
        seed: the same seed draws the same samples.
        probs: whether to keep the probabilities of every sample, too; they are large.
        batch_size: images encoded at once; affects memory use only.
        chunk_size: samples of each image decoded at once; affects memory use only.
        device: the device, such as `cpu` or `cuda:1`; `auto` is a GPU if there is one.
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
        calibrated=_uses_calibration(model, calibrated),
        class_map=class_map,
    )
    cases = Records(dataset.cases[row] for row in rows)
    if out is None:
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
    names = ["labels", "mean_probs", "gamma", *(["probs"] if probs else [])]
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in names}
    return Samples(cases=cases, path=folder, **arrays)


def predict(
    model: AnyPath,
    scans: AnyPath | Sequence[AnyPath],
    out: AnyPath,
    *,
    at: Points = (),
    points: AnyPath | None = None,
    series: str | None = None,
    sampling: Sampling | None = None,
    strict_spacing: bool = False,
    device: str = "auto",
    calibrated: bool = True,
    progress: bool = True,
    **more: Any,
) -> Predictions:
    """Segment scans and write the results of each into a folder, as `phiseg predict` does.

    Finished cases in `out` are kept. For one scan without files, use `Model.predict`.

    Args:
        model: a run, a model, or the name of a bundled model.
        scans: NIfTI files, PNGs, folders with a DICOM series, or folders of any of these.
        out: the folder for the results: one subfolder per case, cases.csv and report.html.
        at: a point inside the lesion, or several: (x, y, z) in voxels, or text such as `mm:12.5,-3,40`.
        points: a CSV file with the points of many scans.
        series: the UID of the series, for a DICOM folder with several.
        sampling: the sampling settings.
        strict_spacing: whether to refuse scans whose pixel spacing is outside of the range of the training images
            instead of resampling them.
        device: the device, such as `cpu` or `cuda:1`; `auto` is a GPU if there is one.
        calibrated: whether to use the temperatures that `calibrate` fitted, if there are any.
        progress: whether to show progress bars.
        more: sampling settings as keyword arguments, such as `num_samples=16, seed=1`.

    Returns:
        One row per finished case and class (volumes, diameters, agreement of the samples), and the failed cases.

    Raises:
        ConfigError, DataError, ModelError, OutputError: an argument, the input, the model or `out` is unsuitable. A
            scan that cannot be predicted is reported in `Predictions.failed` instead.
    """
    inputs = [Path(one) for one in ([scans] if isinstance(scans, str | PathLike) else scans)]
    place = Path(out)
    written = write_predictions(
        Path(model),
        inputs,
        place,
        draw=case_picture,
        write_report=write_prediction_report,
        points=_points(at),
        points_by_case=read_points(Path(points)) if points is not None else None,
        series=series,
        sampling=_sampling(sampling, more),
        calibrated=_uses_calibration(model, calibrated),
        strict_spacing=strict_spacing,
        device=usable_device(device),
        progress=progress,
        notify=lambda note: warnings.warn(note, stacklevel=4),  # the line that calls predict
    )
    assert written is not None  # there is one process
    table = (place / "cases.csv").read_text(encoding="utf-8")
    rows = Records.from_csv(table, text_columns=["case", "class", "look"])
    return Predictions(rows, path=place, failed=written.failed)


def export_onnx(
    model: AnyPath,
    path: AnyPath,
    *,
    size: tuple[int, int] | None = None,
    calibrated: bool = True,
    overwrite: bool = False,
) -> tuple[str, ...]:
    """Export a model as an ONNX file that computes one sample per image from given noise, as `phiseg export` does.

    Args:
        model: a run, a model, or the name of a bundled model.
        path: the file to write.
        size: (height, width) of the images; by default that of the training images.
        calibrated: whether to include the temperatures that `calibrate` fitted, if there are any.
        overwrite: whether to replace an existing file.

    Returns:
        The names of the inputs: `image`, and the noise from fine to coarse.

    Raises:
        ConfigError, ModelError, OutputError: a package is missing, or the size, the model or `path` is unsuitable.
    """
    uses = _uses_calibration(model, calibrated)
    return export.export_onnx(model, path, size=size, calibrated=uses, overwrite=overwrite)


def write_monai_bundle(model: AnyPath, out: AnyPath, *, calibrated: bool = True, overwrite: bool = False) -> None:
    """Write a model as a MONAI bundle, as `phiseg export --monai-bundle` does.

    Args:
        model: a run, a model, or the name of a bundled model; it is copied into the bundle.
        out: the folder of the bundle.
        calibrated: whether to include the temperatures that `calibrate` fitted, if there are any.
        overwrite: whether to replace an existing bundle.

    Raises:
        ModelError, OutputError: the model or `out` is unsuitable.
    """
    monai_bundle.write_monai_bundle(
        model, out, calibrated=_uses_calibration(model, calibrated), overwrite=overwrite
    )


def _sampling(sampling: Sampling | None, more: Mapping[str, Any]) -> Sampling:
    """Return sampling settings with some changed by name."""
    valid = [field.name for field in fields(Sampling)]
    for name in more:
        if name not in valid:
            raise ConfigError(f"there is no sampling setting '{name}' ({nearest(name, valid)})")
    return replace(sampling or Sampling(), **more)


def _points(at: Points) -> list[Point]:
    """Return one point or several, each as text or as three voxel indices.

    >>> _points(np.array([1, 2, 3]))
    [Point(x=1.0, y=2.0, z=3.0, unit='voxel')]
    """
    given: list[Any] = [at] if isinstance(at, str) else list(at)
    if given and isinstance(given[0], Real):
        given = [given]
    return [Point.parse(one if isinstance(one, str) else ",".join(map(str, one))) for one in given]


def _in_memory(drawn: Sequence[CaseSamples], cases: Records) -> Samples:
    kept = [case.probs.numpy() for case in drawn if case.probs is not None]
    return Samples(
        labels=np.stack([case.summary.labels.numpy() for case in drawn]),
        mean_probs=np.stack([case.summary.mean_probs.numpy() for case in drawn]),
        gamma=np.stack([case.summary.gamma.numpy() for case in drawn]),
        cases=cases,
        probs=np.stack(kept) if kept else None,
    )


def _uses_calibration(model: AnyPath, calibrated: bool) -> bool:
    """A model that was loaded without its temperatures is used without them."""
    return calibrated and not (isinstance(model, Model) and not model.calibrated)
