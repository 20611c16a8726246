"""DICOM structured report (TID 1500) with the volumes of segments of a DICOM SEG."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from highdicom.sr import (
    AlgorithmIdentification,
    CodedConcept,
    ComprehensiveSR,
    DeviceObserverIdentifyingAttributes,
    Measurement,
    MeasurementReport,
    ObservationContext,
    ObserverContext,
    ReferencedSegment,
    SourceSeriesForSegmentation,
    TrackingIdentifier,
    VolumetricROIMeasurementsAndQualitativeEvaluations,
)
from pydicom.sr.codedict import codes

from phiseg.core.files import atomic_file
from phiseg.imaging.dicom_seg import property_codes
from phiseg.imaging.dicom_source import (
    INTENDED_USE,
    NAME,
    VERSION,
    derive_uid,
    identification,
    source_images,
    wrap_errors,
)
from phiseg.imaging.series import DicomSeries

_SERIES_NUMBER = 9006
_PROCEDURES = {
    "CT": codes.LN.CTUnspecifiedBodyRegion,
    "MR": codes.LN.MRIUnspecifiedBodyRegion,
    "PT": codes.LN.PETUnspecifiedBodyRegion,
}
_MILLILITRE = CodedConcept("mL", "UCUM", "mL")
PRESENT = CodedConcept("present", "99PHISEG", "Share of samples with the finding")


@dataclass(frozen=True)
class Finding:
    """Volume of one class over the samples."""

    name: str
    """Class name."""
    segment: int
    """Number of its segment in the DICOM SEG."""
    median_ml: float
    low_ml: float
    """Lower end of the 90 % interval."""
    high_ml: float
    """Upper end of the 90 % interval."""
    present: float
    """Share of the samples that contain the class."""


def write_report(
    path: Path,
    findings: Sequence[Finding],
    segmentation: Any,
    series: DicomSeries,
    *,
    description: str,
    settings: Sequence[str] = (),
) -> None:
    """Write a measurement report, atomically.

    Each finding refers to its segment and contains its volume three times, distinguished by the derivation: median,
    5th percentile and 95th percentile over the samples.

    Args:
        path: output file.
        findings: what to report.
        segmentation: dataset of the DICOM SEG with the segments.
        series: the segmented series.
        description: series description shown by viewers, truncated to 64 characters.
        settings: settings of the algorithm, such as the number of samples.

    Raises:
        DataError: the headers of the series lack an attribute that a report must refer to.
        OutputError: the file cannot be written.
    """
    content = json.dumps([*map(asdict, findings), *settings])
    identity = [series.uid, str(segmentation.SOPInstanceUID), description, content]
    with wrap_errors(series):
        device = DeviceObserverIdentifyingAttributes(
            uid=derive_uid("device", []), name=NAME, manufacturer_name=NAME, model_name=NAME, serial_number=VERSION
        )
        report = MeasurementReport(
            observation_context=ObservationContext(
                observer_device_context=ObserverContext(codes.DCM.Device, device)
            ),
            procedure_reported=_PROCEDURES.get(series.modality, codes.SCT.ImagingProcedure),
            imaging_measurements=[_group(finding, segmentation, identity, settings) for finding in findings],
            title=codes.DCM.ImagingMeasurementReport,
        )
        document = ComprehensiveSR(
            evidence=[segmentation, *source_images(series)],
            content=report,
            is_complete=True,
            **identification(identity, series_number=_SERIES_NUMBER, description=description),
        )
        document.CompletionFlagDescription = INTENDED_USE
    with atomic_file(path) as file, wrap_errors(series):
        document.save_as(file, enforce_file_format=True)


def _group(finding: Finding, segmentation: Any, identity: Sequence[str], settings: Sequence[str]) -> Any:
    """Return the measurements of one finding (TID 1411)."""
    source = segmentation.ReferencedSeriesSequence[0].SeriesInstanceUID
    category, what = property_codes(finding.name)
    volumes = (
        (finding.median_ml, codes.SCT.Median),
        (finding.low_ml, codes.SCT.FifthPercentile),
        (finding.high_ml, codes.SCT.NinetyFifthPercentile),
    )
    measurements = [
        Measurement(codes.SCT.Volume, _short(value), _MILLILITRE, derivation=kind) for value, kind in volumes
    ]
    measurements.append(Measurement(PRESENT, _short(finding.present), codes.UCUM.NoUnits))
    return VolumetricROIMeasurementsAndQualitativeEvaluations(
        tracking_identifier=TrackingIdentifier(derive_uid(finding.name, identity), finding.name),
        referenced_segment=ReferencedSegment(
            segmentation.SOPClassUID,
            segmentation.SOPInstanceUID,
            finding.segment,
            source_series=SourceSeriesForSegmentation(source),
        ),
        finding_category=category,
        finding_type=what,
        algorithm_id=AlgorithmIdentification(NAME, VERSION, parameters=list(settings) or None),
        measurements=measurements,
    )


def _short(value: float) -> float:
    """Return a number of at most 16 characters, as DICOM requires."""
    return float(f"{value:.6g}")
