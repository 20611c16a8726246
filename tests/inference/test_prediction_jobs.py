"""Names of the cases of a prediction."""

import pytest

from helpers.dicom_slices import write_scan
from phiseg.core.errors import ConfigError
from phiseg.inference.points import Point
from phiseg.inference.prediction_jobs import list_prediction_jobs
from phiseg.inference.scans import find_scans


def test_finished_cases_keep_the_names_of_older_versions(tmp_path):
    """Two files named image.nii.gz were case01-image and case02-image."""
    for case in ("case01", "case02"):
        (tmp_path / case).mkdir()
        (tmp_path / case / "image.nii.gz").write_text(case)
    scans, _ = find_scans([tmp_path])
    finished = {
        f"{scan.name}-image": {
            "scan": f"{scan.name}-image",
            "made_with": {"input": "image.nii.gz", "content": scan.content_hash, "point": None},
        }
        for scan in scans
    }
    assert [job.name for job in list_prediction_jobs(scans, (), {})] == ["case01", "case02"]
    assert [job.name for job in list_prediction_jobs(scans, (), {}, finished)] == ["case01-image", "case02-image"]
    added = list_prediction_jobs(scans, (), {"case02": [Point(1, 1, 1)]}, finished)
    assert [job.name for job in added] == ["case02-image-2"]


def test_points_of_several_scans_of_one_name_are_rejected(tmp_path):
    for number, patient in enumerate(("p1", "p2")):
        write_scan(tmp_path / patient / "CT", uid=f"1.2.{number}", PatientID=patient)
    scans, _ = find_scans([tmp_path])
    point = Point(1, 2, 3)
    with pytest.raises(ConfigError, match=r"points of 'CT', which may be any of 2 scans \(p1, p2\); use one of"):
        list_prediction_jobs(scans, (), {"CT": [point]})
    (job,) = list_prediction_jobs(scans, (), {"p2": [point]})
    assert (job.name, job.scan.path) == ("p2", tmp_path / "p2" / "CT")


def test_points_name_a_series_by_its_identifiers(tmp_path):
    write_scan(tmp_path / "ct", uid="1.2.7", PatientID="A/12 B")
    write_scan(tmp_path / "other", uid="1.2.8", PatientID="C")
    scans, _ = find_scans([tmp_path])
    for name in ("A/12 B", "A_12_B", "1.2.7", "ct"):
        assert [job.name for job in list_prediction_jobs(scans, (), {name: [Point(1, 2, 3)]})] == ["A_12_B"]
