"""Batch prediction from one folder tree to another, as in challenges: the work of `phiseg batch`.

INPUT/   images/SOCKET/*.mha (or any other scans)
OUTPUT/  images/SOCKET/CASE.mha  volumes.json
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from phiseg.core.errors import OutputError
from phiseg.core.files import check_new_file, write_json
from phiseg.core.formats import BATCH
from phiseg.core.precision import SamplingPrecision
from phiseg.inference.case_folders import read_summary
from phiseg.inference.points import Point
from phiseg.inference.prediction_folder import PredictionFolder, write_predictions
from phiseg.inference.prediction_jobs import list_prediction_jobs
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scans import find_scans
from phiseg.models.model_folder import weights_hash

VOLUMES = "volumes.json"


def write_batch(
    model: Path,
    scans: Path,
    output: Path,
    *,
    maps: Mapping[str, str],
    points: Sequence[Point] = (),
    points_by_case: Mapping[str, Sequence[Point]] | None = None,
    sampling: Sampling | None = None,
    device: torch.device | str = "cpu",
    precision: SamplingPrecision = "float32",
    overwrite: bool = False,
    progress: bool = True,
    notify: Callable[[str], None] = print,
) -> dict[str, str]:
    """Predict all scans of a folder and write one .mha file per case and result, and volumes.json.

    Cases are predicted by `write_predictions` in a temporary folder in `output`.

    Args:
        model: a model folder, the run folder around it, or the name of a bundled model.
        scans: folder with scans.
        output: folder for the results.
        maps: name of the folder in `output`/images for each result, such as `labels`.
        points: points that are used in every scan.
        points_by_case: points of the scans of that name.
        sampling: the sampling settings.
        device: the device, such as `cpu` or `cuda:1`.
        precision: see `write_predictions`.
        overwrite: replace files of the same names from a previous batch.
        progress: show progress bars.
        notify: called with each remark, such as files that are skipped.

    Returns:
        The reason for each case that could not be predicted, by name.

    Raises:
        ConfigError, DataError, ModelError, OutputError: an argument, an input, the model or `output` is unsuitable.
    """
    check_new_file(output / VOLUMES, overwrite=overwrite)
    for result, socket in maps.items():
        folder = output / "images" / socket
        if folder.resolve().is_relative_to(scans.resolve()):
            raise OutputError(
                f"{folder}, the folder for {result}, is in the input folder {scans}; choose another folder"
            )
    for job in list_prediction_jobs(find_scans([scans])[0], points, points_by_case or {}):
        for socket in maps.values():
            check_new_file(output / _place(socket, job.name), overwrite=overwrite)
    try:
        output.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".phiseg-", dir=output) as temporary:
            written = write_predictions(
                model,
                [scans],
                Path(temporary) / "cases",
                draw=lambda *_: b"",
                write_report=lambda out, *_, **__: out,
                points=points,
                points_by_case=points_by_case,
                file_format="mha",
                sampling=sampling,
                device=device,
                precision=precision,
                progress=progress,
                notify=notify,
            )
            assert written is not None  # there is one process
            cases = [_publish(written, case, output, maps) for case in written.cases]
    except OSError as error:
        raise OutputError(f"cannot write to {output}: {error.strerror or error}; choose another folder") from error
    failed = [{"case": case, "reason": reason} for case, reason in written.failed.items()]
    origin = {"model": str(model), "weights": weights_hash(model), "precision": precision}
    write_json(output / VOLUMES, {**BATCH.marker, **origin, "cases": cases, "failed": failed})
    return written.failed


def _publish(written: PredictionFolder, case: str, output: Path, maps: Mapping[str, str]) -> dict[str, Any]:
    """Move the results of a case to the output, and return its entry in volumes.json."""
    summary = read_summary(written.path / case)
    assert summary is not None, case
    files = {}
    for result, socket in maps.items():
        place = _place(socket, case)
        (output / place).parent.mkdir(parents=True, exist_ok=True)
        (written.path / case / f"{result}.mha").replace(output / place)
        files[result] = place.as_posix()
    kept = ("point", "classes", "agreement", "truncated", "unusual", "warnings")
    return {"case": case, "input": summary["made_with"]["input"], "files": files} | {
        key: summary[key] for key in kept
    }


def _place(socket: str, case: str) -> Path:
    """Return the path of a result in the output folder."""
    return Path("images") / socket / f"{case}.mha"
