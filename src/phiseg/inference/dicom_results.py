"""DICOM results of a case, for PACS and viewers. All refer to the images of the scanned series.

CASE/  labels.seg.dcm  mean.seg.dcm  regions.seg.dcm  mean.pm.dcm  gamma.pm.dcm  report.sr.dcm
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phiseg.core.errors import DataError
from phiseg.imaging.series import DicomSeries
from phiseg.imaging.volume import Volume
from phiseg.inference.measures import Measures
from phiseg.inference.prediction import Prediction

STORED = ("regions.seg.dcm", "mean*.pm.dcm", "gamma.pm.dcm", "report.sr.dcm")
"""Patterns of the files that are sent to a PACS. The others contain nothing more: the labels are segments of
`regions.seg.dcm`, and the fractional segmentation, which few viewers show, has the values of `mean.pm.dcm`."""


def write_dicom_results(
    folder: Path,
    series: DicomSeries,
    prediction: Prediction,
    measures: Measures,
    *,
    labels: Volume,
    mean: Volume,
    made_with: Mapping[str, Any],
) -> None:
    """Write all DICOM results of a case, or none.

    Args:
        folder: folder of the case.
        series: the scanned series.
        prediction: prediction of the case.
        measures: its measurements.
        labels: the consensus, the most probable class of the mean, (I, J, K).
        mean: mean probability of the foreground class (I, J, K), or of each of them (I, J, K, K-1).
        made_with: settings of the prediction.

    Raises:
        DataError: the headers of the series are not sufficient.
    """
    try:
        _write_all(folder, series, prediction, measures, labels, mean, made_with)
    except DataError:
        for file in folder.glob("*.dcm"):
            file.unlink()
        raise


def stored_files(folder: Path) -> list[Path]:
    """Return the DICOM results of a case that are sent to a PACS."""
    return [file for pattern in STORED for file in sorted(folder.glob(pattern))]


def _write_all(
    folder: Path,
    series: DicomSeries,
    prediction: Prediction,
    measures: Measures,
    labels: Volume,
    mean: Volume,
    made_with: Mapping[str, Any],
) -> None:
    from phiseg.imaging.dicom_map import GAMMA, PROBABILITY, write_map  # importing highdicom is slow
    from phiseg.imaging.dicom_report import Finding, write_report
    from phiseg.imaging.dicom_seg import consensus_segment, write_regions, write_seg

    classes = prediction.classes
    probs = mean.values.reshape(*mean.grid, -1)
    voxel = prediction.voxel(*prediction.point) if prediction.point else None
    at = f" at voxel {voxel[0]}, {voxel[1]}, {voxel[2]}" if voxel else ""
    words = f"PHiSeg consensus{at}"
    write_seg(folder / "labels.seg.dcm", labels.values, series, classes=classes, kind="binary", description=words)
    words = f"PHiSeg mean{at}"
    write_seg(folder / "mean.seg.dcm", probs, series, classes=classes, kind="fractional", description=words)
    words = f"PHiSeg regions{at}"
    regions = write_regions(
        folder / "regions.seg.dcm", probs, labels.values, series, classes=classes, description=words
    )
    for number, name in enumerate(classes[1:], start=1):
        file = folder / ("mean.pm.dcm" if len(classes) == 2 else f"mean-{number}.pm.dcm")
        words = f"PHiSeg probability of {name}{at}"
        write_map(file, probs[..., number - 1], series, quantity=PROBABILITY, description=words)
    gamma = prediction.on_grid(prediction.gamma)
    words = f"PHiSeg disagreement (gamma){at}"
    write_map(folder / "gamma.pm.dcm", gamma.values, series, quantity=GAMMA, description=words)
    findings = [
        Finding(
            name,
            consensus_segment(number),
            found.volume_ml.median,
            found.volume_ml.low,
            found.volume_ml.high,
            found.present,
        )
        for number, (name, found) in enumerate(measures.classes.items(), start=1)
    ]
    write_report(
        folder / "report.sr.dcm",
        findings,
        regions,
        series,
        description=f"PHiSeg volumes{at}",
        settings=[f"{name} = {made_with[name]}" for name in ("num_samples", "seed", "model")],
    )
