"""Names of the cases of a prediction."""

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
