"""Export of predictions as files."""

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Literal

import numpy as np

from phiseg.core.errors import DataError
from phiseg.imaging.dicom_seg import write_seg
from phiseg.imaging.nifti_files import write_nifti, write_nifti_sequence
from phiseg.imaging.volume import Volume
from phiseg.inference.measures import to_json
from phiseg.inference.prediction import Prediction
from phiseg.viewer.click_prediction import Drawn

What = Literal["sample", "samples", "mean", "labels", "gamma", "numbers"]
Kind = Literal["nifti", "seg", "json"]


def export_file(drawn: Drawn, *, model: str, what: What, kind: Kind, index: int = 0) -> tuple[bytes, str]:
    """Return the content and the name of an exported file.

    The name starts with the name of the scan and the seed.

    Args:
        drawn: prediction of a click.
        model: name of the model.
        what: one sample, all samples (one 4-D NIfTI file, or a zip of DICOM SEG files), the mean probabilities (of
            all classes except the background), the most probable classes, the gamma map, or the numbers with all
            settings to reproduce them.
        kind: JSON for numbers, NIfTI or DICOM SEG for everything else.
        index: index of one sample, from 0.

    Raises:
        DataError: the sample does not exist, or cannot be written in this format.
    """
    if (what == "numbers") != (kind == "json"):
        raise DataError("measurements can only be saved as JSON, and images only as NIfTI or DICOM SEG")
    stem = f"{drawn.scan.file_stem}_seed-{drawn.request.seed}"
    if what == "numbers":
        return json.dumps(_numbers(drawn, model), indent=2).encode(), f"{stem}_numbers.json"
    number = len(drawn.prediction.labels)
    if what == "sample" and index >= number:
        raise DataError(f"sample {index + 1} does not exist; {number} samples were drawn")
    title = f"sample-{index + 1}" if what == "sample" else what
    suffix = ".nii.gz" if kind == "nifti" else ".seg.zip" if what == "samples" else ".seg.dcm"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"export{suffix}"
        if kind == "nifti":
            _write_nifti(file, drawn.prediction, what, index)
        elif what == "samples":
            seg = file.with_name("sample.seg.dcm")
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for sample in range(number):
                    _write_seg(seg, drawn, "sample", sample)
                    archive.write(seg, f"{stem}_sample-{sample + 1}.seg.dcm")
        else:
            _write_seg(file, drawn, what, index)
        return file.read_bytes(), f"{stem}_{title}{suffix}"


def _write_nifti(file: Path, prediction: Prediction, what: What, index: int) -> None:
    if what == "samples":
        write_nifti_sequence(file, map(prediction.on_grid, prediction.labels), number=len(prediction.labels))
    else:
        write_nifti(file, _volume(prediction, what, index))


def _volume(prediction: Prediction, what: What, index: int) -> Volume:
    if what == "mean":
        foreground = np.moveaxis(prediction.mean_probs[1:], 0, 3)  # (n, h, w, K-1)
        return prediction.on_grid(foreground if foreground.shape[3] > 1 else foreground[..., 0])
    if what == "gamma":
        return prediction.on_grid(prediction.gamma)
    return prediction.on_grid(prediction.labels[index] if what == "sample" else prediction.consensus)


def _write_seg(file: Path, drawn: Drawn, what: What, index: int) -> None:
    series = drawn.scan.series
    if series is None:
        raise DataError("DICOM SEG needs a DICOM series, and this scan is not one; save it as NIfTI")
    if what == "gamma":
        raise DataError("a gamma map is not a segmentation; save it as NIfTI")
    fractional = what == "mean"
    volume = _volume(drawn.prediction, what, index)
    title = f"sample-{index + 1}" if what == "sample" else what
    values = volume.values[..., None] if fractional and volume.values.ndim == 3 else volume.values
    write_seg(
        file,
        values,
        series,
        classes=drawn.prediction.classes,
        kind="fractional" if fractional else "binary",
        description=f"PHiSeg {title} of {len(drawn.prediction.labels)} samples",
    )


def _numbers(drawn: Drawn, model: str) -> dict[str, object]:
    return {
        "model": model,
        "scan": drawn.scan.name,
        "request": drawn.request.model_dump(mode="json"),
        "voxel": drawn.prediction.voxel(*drawn.request.point),
        **to_json(drawn.measures),
        "unusual": drawn.prediction.unusual,
        "scores": drawn.scores and drawn.scores.model_dump(mode="json", exclude={"type"}),
    }
