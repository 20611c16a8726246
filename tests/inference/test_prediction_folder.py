"""Scans from their files to the report, called from Python."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from helpers.known_models import place
from phiseg.core.bundled import find_model
from phiseg.core.errors import ConfigError, OutputError
from phiseg.imaging.itk_files import read_itk, write_itk
from phiseg.imaging.nifti_files import read_nifti, write_nifti
from phiseg.imaging.volume import Volume
from phiseg.inference.case_folders import read_summary
from phiseg.inference.points import Point
from phiseg.inference.prediction_folder import write_predictions
from phiseg.inference.sampling_options import Sampling
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
        write.volume_check = volume_check
        return out / "page.html"

    write.given = []
    return write


def predict(model, scans, report, out, **options):
    notes = []
    options = {"sampling": Sampling(num_samples=2, level_draws=0)} | options
    written = write_predictions(
        model,
        [scans],
        out,
        draw=lambda prediction, measures, name: name.encode(),
        write_report=report,
        device="cpu",
        progress=False,
        notify=notes.append,
        **options,
    )
    return written, notes


def test_write_predictions_returns_finished_and_failed_cases(trained, scans, report, tmp_path):
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


# MetaImage and NRRD


@pytest.fixture
def turned_scan():
    values = np.random.default_rng(3).random((16, 18, 3)).astype(np.float32)
    return Volume(values, place("ASL", turn=(10, -20, 5), spacing=(5.6, 5.6, 8), origin=(1, 2, 3)))


@pytest.mark.parametrize("suffix", ["mha", "nrrd"])
def test_write_predictions_of_itk_files_match_those_of_nifti(trained, turned_scan, report, tmp_path, suffix):
    """The same voxels in the same place have the same samples, whatever the files are."""
    write_nifti(tmp_path / "n" / "a.nii.gz", turned_scan)
    write_itk(tmp_path / "i" / f"a.{suffix}", turned_scan)
    predict(trained(), tmp_path / "n", report, tmp_path / "from-nifti")
    written, _ = predict(trained(), tmp_path / "i", report, tmp_path / "from-itk", file_format=suffix)
    assert written.cases == ("a",)
    for name in ("samples", "mean", "labels", "gamma"):
        expected = read_nifti(tmp_path / "from-nifti" / "a" / f"{name}.nii.gz", channels=True)
        found = read_itk(tmp_path / "from-itk" / "a" / f"{name}.{suffix}", channels=True)
        assert found.values.dtype == expected.values.dtype
        np.testing.assert_allclose(found.affine, turned_scan.affine, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.affine, expected.affine, atol=1e-5)
        np.testing.assert_allclose(found.values, expected.values, atol=1e-4)
    assert not list((tmp_path / "from-itk").rglob("*.nii.gz"))


def test_write_predictions_in_another_format_have_equal_voxels(trained, turned_scan, report, tmp_path):
    write_itk(tmp_path / "in" / "a.mha", turned_scan)
    for suffix in ("nii.gz", "mha", "nrrd"):
        predict(trained(), tmp_path / "in", report, tmp_path / suffix, file_format=suffix)
    for name in ("samples", "mean", "labels", "gamma"):
        nifti = read_nifti(tmp_path / "nii.gz" / "a" / f"{name}.nii.gz", channels=True).values
        for suffix in ("mha", "nrrd"):
            found = read_itk(tmp_path / suffix / "a" / f"{name}.{suffix}", channels=True).values
            np.testing.assert_array_equal(found, nifti)


def test_write_predictions_rejects_another_format_in_the_same_folder(trained, turned_scan, report, tmp_path):
    write_itk(tmp_path / "in" / "a.mha", turned_scan)
    predict(trained(), tmp_path / "in", report, tmp_path / "out")
    path = tmp_path / "out" / "a" / "summary.json"
    summary = json.loads(path.read_text())
    del summary["made_with"]["format"]  # as in older folders
    path.write_text(json.dumps(summary))
    _, notes = predict(trained(), tmp_path / "in", report, tmp_path / "out")
    assert notes == ["1 of 1 cases are already finished"]
    with pytest.raises(OutputError, match=r"the case a with another format \(nii.gz, now mha\); .* another --out"):
        predict(trained(), tmp_path / "in", report, tmp_path / "out", file_format="mha")


def test_report_states_coverage_only_for_the_measured_coupling(trained, scans, report, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(find_model(trained()), folder)
    values = json.loads((folder / "preprocessing.json").read_text())
    values["slice_coupling"] = {"length_mm": 5.0, "shared": 0.0}
    values["volume_check"] = {"dataset": "d", "num_lesions": 9, "num_annotators": 4, "coverage": 0.9}
    (folder / "preprocessing.json").write_text(json.dumps(values))
    default = Sampling(num_samples=2, level_draws=0)
    stated = {}
    for length in (None, 5.0, 0.0):
        sampling = replace(default, noise_length_mm=length)
        predict(folder, scans / "a.nii.gz", report, tmp_path / f"out-{length}", sampling=sampling)
        stated[length] = report.volume_check and report.volume_check.coverage
    assert stated == {None: 0.9, 5.0: 0.9, 0.0: None}
