"""Scans from their files to the report, called from Python."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from helpers.known_models import place
from phiseg.core.bundled import find_model
from phiseg.core.errors import ConfigError, OutputError
from phiseg.core.shard import Shard
from phiseg.imaging.itk_files import read_itk, write_itk
from phiseg.imaging.nifti_files import read_nifti, write_nifti
from phiseg.imaging.volume import Volume
from phiseg.inference.case_folders import read_summary
from phiseg.inference.points import Point
from phiseg.inference.prediction_folder import write_predictions
from phiseg.inference.sampling_options import Sampling
from phiseg.models import load_model, save_calibration, save_model
from phiseg.models.temperatures import Calibration


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


@pytest.fixture
def crop_model(trained, tmp_path):
    """A model of crops around lesions."""
    model = load_model(trained())
    preprocessing = model.preprocessing | {"centred_on": "lesion"}
    save_model(tmp_path / "crops", model, preprocessing=preprocessing, provenance=model.provenance, card="")
    return tmp_path / "crops"


def test_write_predictions_checks_points_before_it_writes(crop_model, scans, report, tmp_path):
    with pytest.raises(ConfigError, match="crops around a lesion"):
        predict(crop_model, scans, report, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    points = {"a": [Point(8.0, 8.0, 1.0)]}
    written, notes = predict(crop_model, scans, report, tmp_path / "out", points_by_case=points)
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


def test_write_predictions_records_and_keeps_the_precision(trained, turned_scan, report, tmp_path, bfloat16):
    write_itk(tmp_path / "in" / "a.mha", turned_scan)
    for precision in ("float32", bfloat16):
        out = tmp_path / precision
        predict(trained(), tmp_path / "in", report, out, precision=precision)
        made_with = json.loads((out / "a" / "summary.json").read_text())["made_with"]
        assert made_with["precision"] == precision
    means = [read_nifti(tmp_path / name / "a" / "mean.nii.gz").values for name in ("float32", bfloat16)]
    np.testing.assert_allclose(*means, rtol=0, atol=0.05)
    assert not np.array_equal(*means)
    with pytest.raises(OutputError, match=r"another precision \(bfloat16, now float32\)"):
        predict(trained(), tmp_path / "in", report, tmp_path / bfloat16)


def test_report_states_coverage_only_for_the_measured_noise(trained, scans, report, tmp_path):
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
    save_calibration(folder, Calibration(noise=(1.2,) * load_model(folder).num_levels), fit={})
    for calibrated, coverage in ((True, None), (False, 0.9)):
        out = tmp_path / f"calibrated-{calibrated}"
        predict(folder, scans / "a.nii.gz", report, out, sampling=default, calibrated=calibrated)
        assert (report.volume_check and report.volume_check.coverage) == coverage


@pytest.fixture
def five_scans(tmp_path):
    for number in range(5):
        values = np.random.default_rng(number).random((16, 18, 2)).astype(np.float32)
        write_nifti(tmp_path / "scans" / f"s{number}.nii.gz", Volume(values, place(spacing=(5.6, 5.6, 8))))
    return tmp_path / "scans"


def contents(folder):
    """Return the content of all files but pictures, whose text is rendered with rounding that varies."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    shown = ("picture.png", "report.html")
    return {path.relative_to(folder): None if path.name in shown else path.read_bytes() for path in files}


def test_shards_together_write_the_cases_of_a_single_run(trained, five_scans, report, tmp_path):
    predict(trained(), five_scans, report, tmp_path / "single")
    report.given.clear()
    parts = []
    for number in (2, 3, 1):  # a later shard finds finished cases of the others
        written, notes = predict(trained(), five_scans, report, tmp_path / "out", shard=Shard(number, 3))
        assert written.report is None
        assert notes == []
        parts.append(written.cases)
    assert parts == [("s1", "s4"), ("s2",), ("s0", "s3")]
    assert report.given == []
    written, notes = predict(trained(), five_scans, report, tmp_path / "out")
    assert notes == ["5 of 5 cases are already finished"]
    assert report.given == [(["s0", "s1", "s2", "s3", "s4"], {}, str(trained()))]
    assert contents(tmp_path / "out") == contents(tmp_path / "single")


def test_shard_keeps_the_points_of_a_scan_together(crop_model, five_scans, report, tmp_path):
    points = [Point(8.0, 8.0, 0.0), Point(9.0, 9.0, 1.0)]
    written, _ = predict(crop_model, five_scans, report, tmp_path / "out", points=points, shard=Shard(4, 5))
    assert written.cases == ("s3", "s3-2")


def test_shard_without_scans_is_refused(trained, five_scans, report, tmp_path):
    with pytest.raises(ConfigError, match="shard 6/6 has no scans: there are 5; use at most 5 shards"):
        predict(trained(), five_scans, report, tmp_path / "out", shard=Shard(6, 6))
    assert not (tmp_path / "out").exists()


DYING = """
import os, signal, sys
from phiseg.inference import case_folders
original, number = case_folders.measure, iter(range(9))

def dying(prediction):
    if next(number) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(prediction)

case_folders.measure = dying
from phiseg.cli.main import main
main(sys.argv[1:])
"""
"""A program that runs phiseg and is killed in its second case."""


def test_command_without_shard_completes_a_killed_shard(phiseg, trained, five_scans, tmp_path):
    words = ["predict", str(trained()), str(five_scans), "--num-samples", "2", "--level-draws", "0"]
    out = tmp_path / "out"
    shard = [*words, "--out", str(out), "--shard"]
    killed = subprocess.run([sys.executable, "-c", DYING, *shard, "1/2"], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    done = phiseg(*shard, "2/2")
    assert done.code == 0, done.err
    assert "shard 2/2: 2 cases written" in done.out
    assert sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) == ["s0", "s1", "s3"]
    done = phiseg(*words, "--out", out)
    assert done.code == 0, done.err
    assert "3 of 5 cases are already finished" in done.err
    single = phiseg(*words, "--out", tmp_path / "single")
    assert single.code == 0, single.err
    assert contents(out) == contents(tmp_path / "single")
