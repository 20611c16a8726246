"""DICOM measurement reports: numbers, references to segments and conformance."""

import shutil
import subprocess
from dataclasses import replace

import highdicom
import numpy as np
import pydicom
import pytest
from pydicom.sr.codedict import codes

from helpers.dicom_checks import validate
from helpers.dicom_slices import write_scan
from phiseg.core.errors import DataError
from phiseg.imaging.dicom_report import Finding, write_report
from phiseg.imaging.dicom_seg import consensus_segment, write_regions
from phiseg.imaging.series import read_series

CLASSES = ("background", "nodule", "vessel")
FINDINGS = [Finding("nodule", 4, 1.25, 0.75, 2.123456789, 0.96875), Finding("vessel", 8, 0.0, 0.0, 0.1, 0.25)]


@pytest.fixture
def series(tmp_path):
    write_scan(tmp_path / "scan")
    return read_series(tmp_path / "scan")


@pytest.fixture
def segmentation(series, tmp_path):
    """A DICOM SEG with an empty consensus of the vessel."""
    probs = np.zeros((*series.volume.grid, 2), dtype=np.float32)
    probs[2:5, 2:5, 1:3, 0], probs[0, 0, 0, 1] = 0.8, 0.2
    labels = (probs[..., 0] > 0.5).astype(np.uint8)
    return write_regions(tmp_path / "r.dcm", probs, labels, series, classes=CLASSES, description="regions")


def derived(items):
    """Return the values of NUM items by their derivation or, without one, by their name."""
    values = {}
    for item in items:
        measured = item.MeasuredValueSequence[0]
        name = item.ConceptNameCodeSequence[0].CodeMeaning
        for child in item.get("ContentSequence", ()):
            assert name == "Volume"
            name = child.ConceptCodeSequence[0].CodeValue
        values[name] = float(measured.NumericValue), measured.MeasurementUnitsCodeSequence[0].CodeValue
    return values


def test_write_report_contains_volumes_and_references(series, segmentation, tmp_path):
    path = tmp_path / "report.dcm"
    write_report(path, FINDINGS, segmentation, series, description="PHiSeg volumes", settings=["seed = 3"])

    data = pydicom.dcmread(path)
    assert (data.Modality, data.ContentTemplateSequence[0].TemplateIdentifier) == ("SR", "1500")
    assert (data.CompletionFlag, data.VerificationFlag) == ("COMPLETE", "UNVERIFIED")
    assert (data.PatientID, data.StudyInstanceUID) == ("scan", series.headers[0].StudyInstanceUID)
    report = highdicom.sr.srread(path).content
    groups = report.get_volumetric_roi_measurement_groups()
    assert [group.tracking_identifier for group in groups] == ["nodule", "vessel"]
    assert groups[0].finding_type == codes.SCT.Nodule
    for group, finding in zip(groups, FINDINGS, strict=True):
        items = [item for item in group[0].ContentSequence if item.ValueType == "NUM"]
        median, fifth, ninety_fifth = "373099004", "371888009", "371889001"  # SNOMED CT
        assert derived(items) == {
            median: (pytest.approx(finding.median_ml, rel=1e-5), "mL"),
            fifth: (pytest.approx(finding.low_ml, rel=1e-5), "mL"),
            ninety_fifth: (pytest.approx(finding.high_ml, rel=1e-5), "mL"),
            "Share of samples with the finding": (pytest.approx(finding.present, rel=1e-5), "1"),
        }
        (reference,) = [item for item in group[0].ContentSequence if item.ValueType == "IMAGE"]
        (place,) = reference.ReferencedSOPSequence
        assert place.ReferencedSOPInstanceUID == segmentation.SOPInstanceUID
        assert place.ReferencedSegmentNumber == finding.segment
    names = [segmentation.SegmentSequence[finding.segment - 1].SegmentLabel for finding in FINDINGS]
    assert names == ["nodule, consensus", "vessel, consensus"]
    assert [consensus_segment(number) for number in (1, 2)] == [finding.segment for finding in FINDINGS]
    validate(path)


@pytest.mark.skipif(shutil.which("dsrdump") is None, reason="no dsrdump; install it with: apt-get install dcmtk")
def test_report_is_readable_by_dcmtk(series, segmentation, tmp_path):
    write_report(tmp_path / "report.dcm", FINDINGS, segmentation, series, description="PHiSeg volumes")
    done = subprocess.run(["dsrdump", tmp_path / "report.dcm"], capture_output=True, text=True, check=True)
    volumes = [line for line in done.stdout.splitlines() if 'NUM:(,,"Volume")' in line]
    assert [line.split('"')[3] for line in volumes] == ["1.25", "0.75", "2.12346", "0.0", "0.0", "0.1"]


def test_write_report_is_reproducible(series, segmentation, tmp_path):
    def uid(findings):
        write_report(tmp_path / "r.dcm", findings, segmentation, series, description="PHiSeg volumes")
        return pydicom.dcmread(tmp_path / "r.dcm").SOPInstanceUID

    assert uid(FINDINGS) == uid(FINDINGS) != uid(FINDINGS[:1])


def test_write_report_rejects_incomplete_headers(series, segmentation, tmp_path):
    incomplete = replace(series)
    del incomplete.headers[0].StudyInstanceUID
    with pytest.raises(DataError, match="has no StudyInstanceUID"):
        write_report(tmp_path / "report.dcm", FINDINGS, segmentation, incomplete, description="none")
    assert not (tmp_path / "report.dcm").exists()
