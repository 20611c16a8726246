"""Scans from their files to the report, called from Python."""

import numpy as np
import pytest

from helpers.known_models import place
from phiseg.core.errors import ConfigError
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume
from phiseg.inference.batch_prediction import read_summary
from phiseg.inference.points import Point
from phiseg.inference.prediction_folder import write_predictions
from phiseg.inference.volumes import Sampling
from phiseg.models import load_model, save_model


@pytest.fixture
def scans(tmp_path):
    """A folder with two scans, and a file that cannot be read."""
    for number, name in enumerate("ab"):
        values = np.random.default_rng(number).random((16, 18, 3)).astype(np.float32)
        write_nifti(tmp_path / "scans" / f"{name}.nii.gz", Volume(values, place(spacing=(5.6, 5.6, 8))))
    (tmp_path / "scans" / "damaged.nii.gz").write_bytes(b"nothing")
    return tmp_path / "scans"


@pytest.fixture
def report(tmp_path):
    """A report that keeps what it is given, in a list of its own."""

    def write(out, finished, failed, *, model, volume_check):
        write.given.append((list(finished), dict(failed), model))
        return out / "page.html"

    write.given = []
    return write


def predict(model, scans, report, out, **options):
    notes = []
    written = write_predictions(
        model,
        [scans],
        out,
        draw=lambda prediction, measures, name: name.encode(),
        write_report=report,
        sampling=Sampling(num_samples=2, level_draws=0),
        device="cpu",
        progress=False,
        notify=notes.append,
        **options,
    )
    return written, notes


def test_write_predictions_returns_the_folder_with_finished_and_failed_cases(trained, scans, report, tmp_path):
    out = tmp_path / "out"
    written, notes = predict(trained(), scans, report, out)
    assert (written.path, written.report, written.cases) == (out, out / "page.html", ("a", "b"))
    assert list(written.failed) == ["damaged"]
    assert report.given == [(["a", "b"], written.failed, str(trained()))]
    assert notes == []
    assert read_summary(out / "a")["classes"].keys() == {"lesion"}
    assert (out / "b" / "picture.png").read_bytes() == b"b"


def test_write_predictions_keeps_finished_cases(trained, scans, report, tmp_path):
    (scans / "damaged.nii.gz").unlink()
    predict(trained(), scans / "a.nii.gz", report, tmp_path / "out")
    before = (tmp_path / "out" / "a" / "summary.json").stat().st_mtime_ns
    written, notes = predict(trained(), scans, report, tmp_path / "out")
    assert written.cases == ("a", "b")
    assert notes == ["1 of 2 cases are already finished"]
    assert (tmp_path / "out" / "a" / "summary.json").stat().st_mtime_ns == before


def test_write_predictions_checks_points_before_it_writes(trained, scans, report, tmp_path):
    model = load_model(trained())
    save_model(
        tmp_path / "crops",
        model,
        preprocessing=model.preprocessing | {"centred_on": "lesion"},
        provenance=model.provenance,
        card="",
    )
    with pytest.raises(ConfigError, match="crops around a lesion"):
        predict(tmp_path / "crops", scans, report, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    points = {"a": [Point(8.0, 8.0, 1.0)]}
    written, notes = predict(tmp_path / "crops", scans, report, tmp_path / "out", points_by_case=points)
    assert (written.cases, written.failed) == (("a",), {})
    assert notes == ["skipping scans without a point: b, damaged"]
