"""The commands that use a trained model on scans or export it, as functions that return objects."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from phiseg.api.model import used_precision, uses_calibration
from phiseg.api.results import Predictions
from phiseg.compute.devices import usable_device
from phiseg.core.errors import ConfigError, nearest
from phiseg.core.files import AnyPath
from phiseg.core.precision import SamplingPrecision
from phiseg.core.records import Records
from phiseg.imaging.volume_files import VolumeFormat
from phiseg.inference import export, monai_bundle
from phiseg.inference.case_names import read_case_names
from phiseg.inference.points import Point, read_points
from phiseg.inference.prediction_folder import write_predictions
from phiseg.inference.sampling_options import Sampling
from phiseg.plotting.prediction_report import case_picture, write_prediction_report

Points = str | Sequence[float] | Sequence[str | Sequence[float] | NDArray[Any]] | NDArray[Any]
"""One point or several; each is text or three voxel indices."""


def predict(
    model: AnyPath,
    scans: AnyPath | Sequence[AnyPath],
    out: AnyPath,
    *,
    at: Points = (),
    points: AnyPath | None = None,
    names: AnyPath | None = None,
    series: str | None = None,
    file_format: VolumeFormat = "nii.gz",
    sampling: Sampling | None = None,
    strict_spacing: bool = False,
    strict_intensity: bool = False,
    device: str = "auto",
    precision: SamplingPrecision | None = None,
    calibrated: bool = True,
    progress: bool = True,
    **more: Any,
) -> Predictions:
    """Segment scans and write the results of each into a folder, as `phiseg predict` does.

    Finished cases in `out` are kept. For one scan without files, use `Model.predict`.

    Args:
        model: a run, a model, or the name of a bundled model.
        scans: NIfTI, MetaImage, NRRD or picture files, folders with a DICOM series, or folders of any of these.
        out: the folder for the results: one subfolder per case, cases.csv and report.html.
        at: a point inside the lesion, or several: (x, y, z) in voxels, or text such as `mm:12.5,-3,40`.
        points: a CSV file with the points of many scans.
        names: a CSV file with the names of the cases, with the columns scan and case. A scan is a path, a file or
            folder name, a series UID or a patient ID.
        series: the UID of the series, for a DICOM folder with several.
        file_format: the format of the volumes: `nii.gz`, `mha` or `nrrd`.
        sampling: the sampling settings.
        strict_spacing: refuse scans whose pixel spacing, slice distance or slice thickness is outside the range of
            the training images instead of resampling their pixels.
        strict_intensity: refuse scans, or points in them, whose values do not match those of the training images.
        device: the device, such as `cpu` or `cuda:1`; `auto` is a GPU if there is one.
        precision: the number format of the network, `float32` or the faster `bfloat16`; by default that of a loaded
            model, otherwise `float32`.
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
    place, precision = Path(out), used_precision(model, precision)
    written = write_predictions(
        Path(model),
        inputs,
        place,
        draw=case_picture,
        write_report=write_prediction_report,
        points=_points(at),
        points_by_case=read_points(Path(points)) if points is not None else None,
        names=read_case_names(Path(names)) if names is not None else None,
        series=series,
        file_format=file_format,
        sampling=_sampling(sampling, more),
        calibrated=uses_calibration(model, calibrated),
        strict_spacing=strict_spacing,
        strict_intensity=strict_intensity,
        device=usable_device(device, precision),
        precision=precision,
        progress=progress,
        notify=lambda note: warnings.warn(note, stacklevel=4),  # the line that calls predict
    )
    assert written is not None  # there is one process
    table = (place / "cases.csv").read_text(encoding="utf-8")
    every = Records.from_csv(table, text_columns=["case", "class", "look"])
    rows = Records([row for row in every if row["case"] in written.cases], columns=every.columns)
    return Predictions(rows, path=place, failed=written.failed)


def export_onnx(
    model: AnyPath,
    path: AnyPath,
    *,
    size: tuple[int, ...] | None = None,
    calibrated: bool = True,
    overwrite: bool = False,
) -> tuple[str, ...]:
    """Export a model as an ONNX file that computes one sample per image from given noise, as `phiseg export` does.

    Args:
        model: a run, a model, or the name of a bundled model.
        path: the file to write.
        size: (height, width) of the images, or (slices, height, width) of volumes; by default the size of the
            training images or patches.
        calibrated: whether to include the temperatures that `calibrate` fitted, if there are any.
        overwrite: whether to replace an existing file.

    Returns:
        The names of the inputs, which are `image` and the noise. `noise_names` in the metadata of the file states
        what each noise input controls.

    Raises:
        ConfigError, ModelError, OutputError: a package is missing, or the size, the model or `path` is unsuitable.
    """
    uses = uses_calibration(model, calibrated)
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
    monai_bundle.write_monai_bundle(model, out, calibrated=uses_calibration(model, calibrated), overwrite=overwrite)


def _sampling(sampling: Sampling | None, more: Mapping[str, Any]) -> Sampling:
    """Return sampling settings with some changed by name."""
    valid = [field.name for field in fields(Sampling)]
    for name in more:
        if name not in valid:
            raise ConfigError(f"there is no sampling setting '{name}' ({nearest(name, valid)})")
    return replace(sampling or Sampling(), **more)


def _points(at: Points) -> list[Point]:
    """Return one point or several, each as text or as three voxel indices.

    >>> _points([1, 2, 3])
    [Point(x=1.0, y=2.0, z=3.0, unit='voxel')]
    """
    given: list[Any] = [at] if isinstance(at, str) else list(at)
    if given and isinstance(given[0], Real):
        given = [given]
    return [Point.parse(one if isinstance(one, str) else ",".join(map(str, one))) for one in given]
