"""Case folders: complete or absent, reused if finished, and no other file is changed."""

import json
import re
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from helpers.dicom_slices import write_scan
from helpers.known_models import KnownModel, ball, brightest, noisy, place
from phiseg.core.errors import ConfigError, DataError, OutputError
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume
from phiseg.inference import case_folders, prepared_stack
from phiseg.inference.case_folders import (
    predict_scans,
    read_summaries,
    unfinished_predictions,
)
from phiseg.inference.points import Point
from phiseg.inference.prediction_jobs import list_prediction_jobs, share_jobs
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scans import ScanFile, find_scans

FILES = ["gamma.nii.gz", "labels.nii.gz", "mean.nii.gz", "picture.png", "samples.nii.gz", "summary.json"]
SAMPLING = Sampling(num_samples=3)


@pytest.fixture
def scans(tmp_path):
    """Three balls in different geometry."""
    for number, codes in enumerate(("LPS", "RAS", "ASL")):
        affine = place(codes, turn=(10, 0, 5), spacing=(1, 1.5, 2 + number), origin=(1, 2, 3))
        write_nifti(tmp_path / "in" / f"s{number}.nii.gz", ball((8, 9, 6), affine, radius=5 + number))
    return tmp_path / "in"


def run(source, out, *, model=None, sampling=SAMPLING, identity=None, points=(), stop=None):
    """Predict a folder; returns what was still to do, and what failed."""
    model = model or KnownModel(noisy)
    identity = {"model": "abc"} if identity is None else identity

    def draw(prediction, measures, name):
        if name == stop:
            raise KeyboardInterrupt
        return b"picture of " + name.encode()

    jobs = list_prediction_jobs(find_scans([source])[0], points, {}, read_summaries(out))
    left = unfinished_predictions(jobs, out, model, sampling=sampling, identity=identity)
    failed = predict_scans(model, left, out, sampling=sampling, identity=identity, draw=draw, progress=False)
    return [job.name for job in left], failed


def read(folder):
    return json.loads((folder / "summary.json").read_text())


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Jobs


def job_names(names, points=(), by_case=None):
    scans = [ScanFile(name, None, "nifti") for name in names]
    return [(job.name, job.point) for job in list_prediction_jobs(scans, points, by_case or {})]


def test_jobs_are_one_per_scan_or_point():
    one, two, three = Point(1, 1, 1), Point(2, 2, 2), Point(3, 3, 3)
    assert job_names(["a", "b"]) == [("a", None), ("b", None)]
    assert job_names(["a", "b"], [one]) == [("a", one), ("b", one)]
    assert job_names(["a", "b"], [one, two]) == [("a", one), ("a-2", two), ("b", one), ("b-2", two)]
    assert job_names(["a", "b"], by_case={"b": [three]}) == [("b", three)]
    assert job_names(["a", "b"], [one], {"b": [three]}) == [("a", one), ("b", one), ("b-2", three)]


def test_points_of_unknown_scans_are_rejected():
    with pytest.raises(ConfigError, match=r"points of 'c', which is not one of the scans \(a, b\)"):
        job_names(["a", "b"], by_case={"c": [Point(1, 1, 1)]})


def test_duplicate_case_names_are_rejected():
    with pytest.raises(ConfigError, match="would both be named a-2"):
        job_names(["a", "a-2"], by_case={"a": [Point(1, 1, 1)] * 2, "a-2": [Point(1, 1, 1)]})


def test_case_names_stay_when_points_are_added(tmp_path):
    for name in ("a", "b"):
        write_nifti(tmp_path / "in" / f"{name}.nii.gz", ball((15, 15, 15), place()))
    model = KnownModel(brightest, centred_on="nodule")
    one, two, three = Point(7, 7, 7), Point(6, 7, 7), Point(7, 6, 7)

    def add(*points):
        return run(tmp_path / "in", tmp_path / "out", model=model, points=points)

    assert add(one) == (["a", "b"], {})
    before = snapshot(tmp_path / "out")
    assert add(one) == ([], {})
    assert add(one, two) == (["a-2", "b-2"], {})
    assert add(three) == (["a-3", "b-3"], {})  # alone, and still a case of its own
    assert add(three, two, one) == ([], {})
    after = snapshot(tmp_path / "out")
    assert before == {path: after[path] for path in before}
    used = {path.name: read(path)["made_with"]["point"]["x"] for path in (tmp_path / "out").iterdir()}
    assert used == {"a": 7, "b": 7, "a-2": 6, "b-2": 6, "a-3": 7, "b-3": 7}


def test_series_of_one_patient_have_different_names(tmp_path):
    for name, uid in (("first", "1.2.3"), ("second", "1.2.9")):
        write_scan(tmp_path / name, uid=uid, PatientID="Q/7")
    assert run(tmp_path / "first", tmp_path / "out") == (["Q_7"], {})
    assert run(tmp_path / "second", tmp_path / "out") == (["Q_7-second"], {})
    assert run(tmp_path / "second", tmp_path / "out") == ([], {})
    assert run(tmp_path / "first", tmp_path / "out") == ([], {})
    (tmp_path / "second").rename(tmp_path / "moved")
    (tmp_path / "first").rename(tmp_path / "second")  # another series in a folder of the same name
    with pytest.raises(OutputError, match="Q_7-second was made with another content"):
        run(tmp_path / "second", tmp_path / "out")


def test_cases_of_older_versions_keep_their_names(tmp_path):
    write_scan(tmp_path / "folder", PatientID="Q7")
    assert run(tmp_path / "folder", tmp_path / "out") == (["Q7"], {})
    (tmp_path / "out" / "Q7").rename(tmp_path / "out" / "folder")
    assert run(tmp_path / "folder", tmp_path / "out") == ([], {})


def test_copies_of_a_file_keep_their_names(scans, tmp_path):
    for folder in ("a", "b"):
        (scans / folder).mkdir()
        (scans / folder / "x.nii.gz").write_bytes((scans / "s0.nii.gz").read_bytes())
    assert run(scans, tmp_path / "out") == (["a-x", "b-x", "s0", "s1", "s2"], {})
    assert run(scans, tmp_path / "out") == ([], {})
    shutil.rmtree(tmp_path / "out" / "a-x")
    assert run(scans, tmp_path / "out") == (["a-x"], {})


def test_points_name_a_series_by_patient_or_folder(tmp_path):
    write_scan(tmp_path / "folder", PatientID="Q7")
    scans, _ = find_scans([tmp_path / "folder"])
    one, two = Point(1, 1, 1), Point(2, 2, 2)
    for name in ("Q7", "folder"):
        jobs = list_prediction_jobs(scans, (), {name: [one, two]})
        assert [(job.name, job.point) for job in jobs] == [("Q7", one), ("Q7-2", two)]


# Cases


def test_results_are_on_the_grid_of_the_scan(scans, tmp_path):
    assert run(scans, tmp_path / "out") == (["s0", "s1", "s2"], {})
    for name in ("s0", "s1", "s2"):
        source = nibabel.load(scans / f"{name}.nii.gz")
        folder = tmp_path / "out" / name
        assert sorted(path.name for path in folder.iterdir()) == FILES
        images = {file: nibabel.load(folder / file) for file in FILES if file.endswith(".nii.gz")}
        for image in images.values():
            assert image.shape[:3] == source.shape
            np.testing.assert_array_equal(image.affine, source.affine)
        assert images["samples.nii.gz"].shape[3] == 3
        assert images["samples.nii.gz"].get_data_dtype() == np.uint8
        inside = source.get_fdata()
        labels, mean = images["labels.nii.gz"].get_fdata(), images["mean.nii.gz"].get_fdata()
        np.testing.assert_array_equal(labels, mean > 0.5)
        assert np.corrcoef(inside.ravel(), mean.ravel())[0, 1] > 0.5
        samples = images["samples.nii.gz"].get_fdata()
        summary = json.loads((folder / "summary.json").read_text())
        volumes = samples.sum((0, 1, 2)) * abs(np.linalg.det(source.affine[:3, :3])) / 1000
        assert summary["classes"]["lesion"]["volume_ml"]["samples"] == pytest.approx(volumes, rel=1e-5)
        assert (summary["case"], summary["level_shares"], summary["has_spacing"]) == (name, None, True)
        assert (folder / "picture.png").read_bytes() == b"picture of " + name.encode()


def test_classes_have_separate_maps(tmp_path):
    values = np.stack([ball((6, 6, 4), place(), offset=(x, 0, 0)).values for x in (-2, 2)], axis=-1)
    write_nifti(tmp_path / "in" / "a.nii.gz", Volume(values, place()))
    model = KnownModel(brightest, classes=("background", "a", "b"), channels=2)
    assert run(tmp_path / "in", tmp_path / "out", model=model) == (["a"], {})
    mean = nibabel.load(tmp_path / "out" / "a" / "mean.nii.gz").get_fdata()
    assert mean.shape == (6, 6, 4, 2)
    expected = np.exp(100 * values / 400)
    np.testing.assert_allclose(mean, expected / (1 + expected.sum(-1, keepdims=True)), atol=1e-4)


def test_points_of_a_scan_are_separate_cases(scans, tmp_path, monkeypatch):
    """And the scan is read once."""
    reads = []
    read_scan = prepared_stack.read_scan
    monkeypatch.setattr(
        prepared_stack, "read_scan", lambda file, **rest: reads.append(file.name) or read_scan(file, **rest)
    )
    model = KnownModel(noisy, centred_on="nodule", size=(6, 6))
    points = [Point(4, 4, 3), Point(2, 2, 2)]
    left, failed = run(scans, tmp_path / "out", model=model, points=points)
    assert left == ["s0", "s0-2", "s1", "s1-2", "s2", "s2-2"]
    assert failed == {}
    assert reads == ["s0", "s1", "s2"]
    summary = read(tmp_path / "out" / "s0")
    assert summary["made_with"]["point"] == {"x": 4, "y": 4, "z": 3, "unit": "voxel"}


def test_summary_uses_voxel_indices_of_the_file(scans, tmp_path):
    """Whatever the orientation: the point is the given one, and the box is where the samples are."""
    model = KnownModel(brightest, centred_on="nodule", size=(6, 4))
    run(scans, tmp_path / "out", model=model, sampling=Sampling(num_samples=3, reach_mm=3), points=[Point(3, 5, 2)])
    for name in ("s0", "s1", "s2"):
        summary = read(tmp_path / "out" / name)
        assert summary["point"] == [3, 5, 2]
        samples = np.argwhere(nibabel.load(tmp_path / "out" / name / "samples.nii.gz").get_fdata() > 0)[:, :3]
        box = np.array(summary["box"])
        assert (box[:, 0] <= samples.min(0)).all()
        assert (samples.max(0) < box[:, 1]).all()
        assert (box[:, 1] - box[:, 0]).prod() <= 6 * 4 * 3  # the crop, in the point's slice and those beside it


# Going on


def test_finished_cases_are_kept(scans, tmp_path):
    run(scans, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    quicker = Sampling(num_samples=3, batch_size=1, chunk_size=1)
    assert run(scans, tmp_path / "out", sampling=quicker) == ([], {})
    assert snapshot(tmp_path / "out") == before


def test_interrupted_run_resumes_to_the_same_results(scans, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(scans, tmp_path / "out", stop="s1")
    assert list(read_summaries(tmp_path / "out")) == ["s0"]
    assert run(scans, tmp_path / "out") == (["s1", "s2"], {})
    run(scans, tmp_path / "whole")
    whole = {path.relative_to(tmp_path / "whole"): data for path, data in snapshot(tmp_path / "whole").items()}
    assert {path.relative_to(tmp_path / "out"): data for path, data in snapshot(tmp_path / "out").items()} == whole


def test_leftovers_of_a_killed_process_are_not_cases(scans, tmp_path):
    run(scans, tmp_path / "out")
    (tmp_path / "out" / "s0").rename(tmp_path / "out" / ".s0.999999999.tmp")
    assert list(read_summaries(tmp_path / "out")) == ["s1", "s2"]
    assert run(scans, tmp_path / "out") == (["s0"], {})
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["s0", "s1", "s2"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sampling": Sampling(num_samples=4)}, r"another num_samples \(3, now 4\)"),
        ({"sampling": Sampling(num_samples=3, seed=7)}, r"another seed \(0, now 7\)"),
        ({"sampling": Sampling(num_samples=3, noise_length_mm=2)}, r"another noise_length_mm \(inf, now 2\)"),
        ({"identity": {"model": "xyz"}}, r"another model \(abc, now xyz\)"),
        ({"identity": {"model": "abc", "calibration": 2}}, r"another calibration \(None, now 2\)"),
    ],
)
def test_other_settings_are_rejected(scans, tmp_path, changes, reason):
    run(scans / "s0.nii.gz", tmp_path / "out")
    before = snapshot(tmp_path)
    for source in (scans / "s0.nii.gz", scans / "s1.nii.gz"):
        with pytest.raises(OutputError, match=f"out contains the case s0 with {reason}; .*: use the former value"):
            run(source, tmp_path / "out", **changes)
    assert snapshot(tmp_path) == before


def test_other_scan_of_the_same_name_is_rejected(scans, tmp_path):
    run(scans / "s0.nii.gz", tmp_path / "out")
    other = tmp_path / "other" / "s0.nii.gz"
    other.parent.mkdir()
    other.write_bytes((scans / "s0.nii.gz").read_bytes())
    assert run(other, tmp_path / "out") == ([], {})  # it was only moved
    other.write_bytes((scans / "s1.nii.gz").read_bytes())
    with pytest.raises(OutputError, match="s0 was made with another content"):
        run(other, tmp_path / "out")


def test_other_folders_are_not_changed(scans, tmp_path):
    out = tmp_path / "out"
    for content, reason in (
        ({"notes.txt": "mine"}, "not a result of phiseg"),
        ({"summary.json": '{"format": "phiseg-evaluation"}'}, "exists, but is not a prediction"),
        ({"summary.json": "[]"}, "exists, but is not a prediction"),
        ({"summary.json": "{"}, "summary.json is damaged \\(not JSON\\); remove"),
        ({"summary.json": '{"format": "phiseg-prediction", "version": 99}'}, "has version 99, up to 2 is known"),
    ):
        (out / "s1").mkdir(parents=True)
        for name, text in content.items():
            (out / "s1" / name).write_text(text)
        with pytest.raises(OutputError, match=reason):
            run(scans, out)
        assert sorted(path.name for path in out.rglob("*")) == sorted(["s1", *content])  # before any work
        (out / "s1" / next(iter(content))).unlink()
        (out / "s1").rmdir()
    (out / "evaluation").mkdir()
    (out / "evaluation" / "summary.json").write_text('{"format": "phiseg-evaluation"}')
    assert run(scans, out)[1] == {}
    assert list(read_summaries(out)) == ["s0", "s1", "s2"]


def test_file_instead_of_results_folder_is_rejected(scans, tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OutputError, match=r"cannot write .*choose another"):
        run(scans, tmp_path / "out")


def test_points_are_checked_before_reading(scans, tmp_path):
    (scans / "s0.nii.gz").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"give its position in s0: --at x,y,z \(in Python: at=\(x, y, z\)\)"):
        run(scans, tmp_path / "out", model=KnownModel(noisy, centred_on="nodule"))
    with pytest.raises(ConfigError, match="takes no point; predict s0 without"):
        run(scans, tmp_path / "out", points=[Point(1, 1, 1)])
    assert not (tmp_path / "out").exists()


# Bad scans


def test_bad_scan_is_reported_and_skipped(scans, tmp_path, capsys):
    whole = (scans / "s1.nii.gz").read_bytes()
    (scans / "s1.nii.gz").write_bytes(whole[: len(whole) // 2])
    left, failed = run(scans, tmp_path / "out")
    assert left == ["s0", "s1", "s2"]
    assert list(failed) == ["s1"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"phiseg: skipped s1: {failed['s1']}"
    assert "s1.nii.gz cannot be read as NIfTI" in line
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["s0", "s2"]
    (scans / "s1.nii.gz").write_bytes(whole)
    assert run(scans, tmp_path / "out") == (["s1"], {})


def allocate_too_much():
    torch.empty(10**15)


def fail_with(error):
    raise error


@pytest.mark.parametrize(
    "fail",
    [
        lambda: fail_with(OSError(5, "Input/output error")),
        lambda: fail_with(MemoryError()),
        lambda: fail_with(torch.OutOfMemoryError("CUDA")),
        allocate_too_much,
    ],
)
def test_disk_and_memory_errors_skip_only_their_case(scans, tmp_path, monkeypatch, fail):
    predict_prepared = case_folders.predict_prepared

    def predict(model, stack, **rest):
        if stack.name == "s1":
            fail()
        return predict_prepared(model, stack, **rest)

    monkeypatch.setattr(case_folders, "predict_prepared", predict)
    _, failed = run(scans, tmp_path / "out")
    assert list(failed) == ["s1"]
    assert re.search("Input/output error; check|smaller --chunk-size or --batch-size", failed["s1"])
    assert list(read_summaries(tmp_path / "out")) == ["s0", "s2"]


def test_bug_is_not_reported_as_memory_error(scans, tmp_path, monkeypatch):
    monkeypatch.setattr(case_folders, "predict_prepared", lambda *_, **__: fail_with(RuntimeError("shapes differ")))
    with pytest.raises(RuntimeError, match="shapes differ"):
        run(scans, tmp_path / "out")


def test_missing_scan_fails_only_its_case(scans, tmp_path):
    run(scans / "s0.nii.gz", tmp_path / "out")
    (scans / "s0.nii.gz").rename(tmp_path / "elsewhere")
    (scans / "s0.nii.gz").symlink_to(tmp_path / "nowhere")
    before = snapshot(tmp_path / "out")
    left, failed = run(scans, tmp_path / "out")
    assert left == ["s0", "s1", "s2"]
    assert list(failed) == ["s0"]
    assert "s0.nii.gz cannot be read (No such file or directory); check" in failed["s0"]
    assert before.items() <= snapshot(tmp_path / "out").items()


def test_scan_is_hashed_once_per_call(scans, tmp_path, monkeypatch):
    model = KnownModel(noisy, centred_on="nodule", size=(6, 6))
    read_bytes, reads = Path.read_bytes, []
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path.name) or read_bytes(path))
    for _ in ("predicted", "finished"):
        reads.clear()
        run(scans, tmp_path / "out", model=model, points=[Point(4, 4, 3), Point(2, 2, 2)])
        assert [name for name in reads if name.endswith(".nii.gz")] == ["s0.nii.gz", "s1.nii.gz", "s2.nii.gz"]


# What a user should know


REACH = "the last slice within --reach in 100 % of the samples (use a larger --reach)"
CROP = "the border of the crop in 100 % of the samples (use a model with larger crops)"
SCAN = "the first or last slice of the scan in 100 % of the samples"


@pytest.mark.parametrize(
    ("depth", "size", "reach", "limits"),
    [
        (15, (16, 16), 1, REACH),
        (15, (4, 4), 100, CROP),
        (15, (4, 4), 1, f"{REACH}, to {CROP}"),
        (3, (16, 16), 100, SCAN),
        (3, (16, 16), None, SCAN),
        (3, (16, 16), 1, SCAN),  # the reach ends with the scan: a larger one would help nothing
        (5, (16, 16), 1, REACH),  # two slices are left
        (5, (4, 4), 2, f"{CROP}, to {SCAN}"),
    ],
)
def test_truncation_warning_names_limits_and_advice(tmp_path, capsys, depth, size, reach, limits):
    """A ball with a radius of 4 mm, in slices of 1 mm."""
    write_nifti(tmp_path / "in" / "a.nii.gz", ball((15, 15, depth), place()))
    model = KnownModel(brightest, centred_on="nodule", size=size)
    sampling = Sampling(num_samples=3, reach_mm=reach)
    run(tmp_path / "in", tmp_path / "out", model=model, sampling=sampling, points=[Point(7, 7, depth // 2)])
    warning = f"the lesion may be larger than measured: it extends to {limits}"
    assert read(tmp_path / "out" / "a")["truncated"] == 1
    assert read(tmp_path / "out" / "a")["warnings"] == [warning]
    assert capsys.readouterr().err == f"phiseg: a: {warning}\n"


def test_truncation_warning_counts_samples_per_limit(tmp_path):
    """The ball's radius differs from sample to sample, so that not all of them extend to the reach."""
    write_nifti(tmp_path / "in" / "a.nii.gz", ball((31, 31, 31), place(), radius=5))
    model = KnownModel(noisy, centred_on="nodule", size=(40, 40))
    sampling = Sampling(num_samples=16, reach_mm=6)
    run(tmp_path / "in", tmp_path / "out", model=model, sampling=sampling, points=[Point(15, 15, 15)])
    samples = nibabel.load(tmp_path / "out" / "a" / "samples.nii.gz").get_fdata()
    share = samples[:, :, [9, 21]].any((0, 1, 2)).mean()
    assert 0 < share < 1
    (warning,) = read(tmp_path / "out" / "a")["warnings"]
    assert f"the last slice within --reach in {100 * share:.0f} % of the samples" in warning
    assert read(tmp_path / "out" / "a")["truncated"] == share


def test_complete_lesion_has_no_warning(tmp_path, capsys):
    write_nifti(tmp_path / "in" / "a.nii.gz", ball((15, 15, 15), place()))
    model = KnownModel(brightest, centred_on="nodule")
    run(tmp_path / "in", tmp_path / "out", model=model, points=[Point(7, 7, 7)])
    assert (read(tmp_path / "out" / "a")["truncated"], read(tmp_path / "out" / "a")["warnings"]) == (0, [])
    assert capsys.readouterr().err == ""


def test_missing_dicom_results_are_noted(tmp_path, capsys, monkeypatch):
    def write_report(*_, **__):
        raise DataError("a header lacks a date; use the NIfTI output")

    monkeypatch.setattr("phiseg.imaging.dicom_report.write_report", write_report)
    write_scan(tmp_path / "in" / "d")
    assert run(tmp_path / "in", tmp_path / "out") == (["d"], {})
    warning = "no DICOM results: a header lacks a date; use the NIfTI output"
    assert read(tmp_path / "out" / "d")["warnings"] == [warning]
    assert capsys.readouterr().err == f"phiseg: d: {warning}\n"
    assert not list((tmp_path / "out" / "d").glob("*.dcm"))


# Several processes


def test_processes_share_whole_scans():
    scans = [ScanFile(name, None, "nifti") for name in "abc"]
    points = [Point(1, 1, 1), Point(2, 2, 2)]
    jobs = list_prediction_jobs(scans, points, {"b": points[:1]})
    shared = [[job.name for job in share_jobs(jobs, rank, 2)] for rank in (0, 1)]
    assert shared == [["a", "a-2", "c", "c-2"], ["b", "b-2", "b-3"]]
    assert share_jobs(jobs, 0, 1) == jobs
    assert share_jobs(jobs, 3, 4) == []


def test_several_processes_write_the_same_results(scans, tmp_path):
    model = KnownModel(noisy)
    jobs = list_prediction_jobs(find_scans([scans])[0], (), {})
    for rank in (1, 0):
        predict_scans(
            model,
            share_jobs(jobs, rank, 2),
            tmp_path / "shared",
            sampling=SAMPLING,
            identity={"model": "abc"},
            draw=lambda prediction, measures, name: b"picture of " + name.encode(),
            progress=False,
        )
    run(scans, tmp_path / "alone")
    shared, alone = (
        {path.relative_to(tmp_path / out): data for path, data in snapshot(tmp_path / out).items()}
        for out in ("shared", "alone")
    )
    assert shared == alone
