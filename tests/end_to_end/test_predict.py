"""`phiseg predict` from files to files, and what it says of scans that cannot be predicted."""

import csv
import json
import re
import shutil
from datetime import timedelta
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
from PIL import Image

import phiseg as package
from helpers.dicom_checks import read_map, read_on_grid
from helpers.dicom_slices import OBLIQUE, write_scan
from phiseg.cli.parallel import fabric_for_processes
from phiseg.imaging.nifti_files import read_nifti, write_nifti
from phiseg.imaging.series import read_series
from phiseg.imaging.volume import Volume
from phiseg.inference.dicom_results import stored_files
from phiseg.inference.sampling_options import Sampling
from phiseg.plotting import prediction_report

MAPS = ("samples", "mean", "labels", "gamma", "levels")
QUICK = ("--num-samples", "3", "--level-draws", "2", "--device", "cpu")


@pytest.fixture
def model(trained, tmp_path):
    """Return a function that copies the tiny PHiSeg, as if it had been trained on other images."""

    def copy(name="model", **changes):
        folder = Path(shutil.copytree(trained() / "model", tmp_path / name))
        path = folder / "preprocessing.json"
        values = json.loads(path.read_text()) | {"spacing_mm": None, "spacing_range_mm": None} | changes
        path.write_text(json.dumps(values))
        return folder

    return copy


@pytest.fixture
def predict(cli, tmp_path):
    """Return a function that predicts quickly, into `pred` unless told otherwise."""
    return lambda model, *words, out=tmp_path / "pred": cli("predict", model, *words, "--out", out, *QUICK)


def nifti(path, *, shape=(14, 12, 3), codes=(-1, 1, 1), seed=0):
    turned = np.array([[0.8, -0.6, 0], [0.6, 0.8, 0], [0, 0, 1]]) @ np.diag(codes) * (1, 1.5, 4)
    affine = np.vstack([np.column_stack([turned, (5, -6, 7)]), [0, 0, 0, 1]])
    values = np.random.default_rng(seed).uniform(size=shape).astype(np.float32)
    write_nifti(path, Volume(values, affine))
    return path


def messages(result):
    """Return the lines of ours on stderr, without progress bars."""
    return [line for line in re.findall(r"phiseg: [^\r\n]*", result.err) if "predicting:" not in line]


def maps(folder):
    return {name: nibabel.load(folder / f"{name}.nii.gz") for name in MAPS}


def table(out, name="cases.csv"):
    with (out / name).open(newline="") as file:
        return list(csv.DictReader(file))


# What is written


def test_predict_folder_of_all_scan_types(predict, model, tmp_path):
    source, out = tmp_path / "in", tmp_path / "pred"
    nifti(source / "n.nii.gz")
    raw = write_scan(source / "d", directions=OBLIQUE)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (13, 17), dtype=np.uint8)).save(source / "p.png")
    window = {"kind": "window", "low": 0.0, "high": 255.0}
    result = predict(model(intensity=window), source)
    assert result.code == 0, result
    assert result.out == f"written to {out}; look at {out / 'report.html'}\n"
    (message,) = messages(result)
    assert message.startswith(
        f"phiseg: p: {source / 'p.png'} does not state its pixel size; measurements are in pixels"
    )
    assert sorted(path.name for path in out.iterdir()) == ["cases.csv", "d", "n", "p", "report.html"]

    given = nibabel.load(source / "n.nii.gz")
    shapes = {"samples": (3,), "levels": (2,)}
    for name, image in maps(out / "n").items():
        assert image.shape == (*given.shape, *shapes.get(name, ()))
        np.testing.assert_array_equal(image.affine, given.affine)
    for image in maps(out / "d").values():
        assert image.shape[:3] == raw.T.shape
    for image in maps(out / "p").values():
        assert image.shape[:3] == (17, 13, 1)
        assert nibabel.aff2axcodes(image.affine) == ("L", "P", "S")

    rows = table(out)
    assert [float(row["agreement"]) for row in rows] == sorted(float(row["agreement"]) for row in rows)
    assert {row["case"] for row in rows} == {"d", "n", "p"}
    page = (out / "report.html").read_text()
    assert re.findall(r"<h2>(.*)</h2>", page) == [row["case"] for row in rows]
    assert page.count("data:image/png;base64,") == 3
    assert not re.search(r"https?://|@import|url\(|<script|<link", page)
    for row in rows:
        summary = json.loads((out / row["case"] / "summary.json").read_text())
        samples = maps(out / row["case"])["samples"]
        sizes = (samples.get_fdata() > 0).sum((0, 1, 2)).astype(float)
        key, other = "area_px", "volume_ml"  # of the picture, which has no pixel size
        if row["case"] != "p":
            sizes *= abs(np.linalg.det(samples.affine[:3, :3])) / 1000
            key, other = other, key
        assert summary["classes"]["lesion"][key]["samples"] == pytest.approx(sizes, rel=1e-4)
        assert other not in summary["classes"]["lesion"]
        assert float(row[f"{key}_median"]) == pytest.approx(np.median(sizes), rel=1e-4)
        assert row[f"{other}_median"] == ""
        assert float(row["present"]) == pytest.approx((sizes > 0).mean())
        assert sum(summary["level_shares"].values()) == pytest.approx(1)
        assert Image.open(out / row["case"] / "picture.png").size[0] > 1000


def test_predict_writes_dicom_seg_for_series(predict, model, tmp_path):
    write_scan(tmp_path / "scan", directions=OBLIQUE)
    predict(model(intensity={"kind": "window", "low": -1000.0, "high": 3000.0}), tmp_path / "scan")
    folder = tmp_path / "pred" / "scan"
    labels, mean = (maps(folder)[name].get_fdata() for name in ("labels", "mean"))
    slices = {}
    for path in (tmp_path / "scan").iterdir():
        data = pydicom.dcmread(path)
        slices[data.SOPInstanceUID] = np.array(data.ImagePositionPatient)
    affine = maps(folder)["labels"].affine
    for name, expected, tolerance in (("labels", labels, 0), ("mean", mean, 0.51 / 255)):
        seg = pydicom.dcmread(folder / f"{name}.seg.dcm")
        assert seg.Modality == "SEG"
        assert seg.ReferencedSeriesSequence[0].SeriesInstanceUID == "1.2.3"
        frames = seg.pixel_array.reshape(-1, *labels.shape[1::-1]) / (1 if name == "labels" else 255)
        placed = np.zeros_like(labels)
        for frame, item in zip(frames, seg.PerFrameFunctionalGroupsSequence, strict=True):
            x, y, z = item.PlanePositionSequence[0].ImagePositionPatient
            number = round((np.linalg.inv(affine) @ [-x, -y, z, 1])[2])
            placed[:, :, number] = frame.T
            source = item.DerivationImageSequence[0].SourceImageSequence[0].ReferencedSOPInstanceUID
            np.testing.assert_allclose(slices[source], (x, y, z), atol=1e-4)
        np.testing.assert_allclose(placed, expected, atol=tolerance)


def test_predict_writes_regions_maps_and_report_for_series(predict, model, tmp_path):
    write_scan(tmp_path / "scan", directions=OBLIQUE)
    predict(model(intensity={"kind": "window", "low": -1000.0, "high": 3000.0}), tmp_path / "scan")
    folder, series = tmp_path / "pred" / "scan", read_series(tmp_path / "scan")
    stored = {"regions.seg.dcm", "mean.pm.dcm", "gamma.pm.dcm", "report.sr.dcm"}
    assert {path.name for path in folder.glob("*.dcm")} == {"labels.seg.dcm", "mean.seg.dcm"} | stored
    assert {path.name for path in stored_files(folder)} == stored
    labels, mean, gamma = (maps(folder)[name].get_fdata() for name in ("labels", "mean", "gamma"))
    expected = np.stack([*(mean >= np.float32(level) for level in (0.1, 0.5, 0.9)), labels == 1], axis=-1)
    np.testing.assert_array_equal(read_on_grid(folder / "regions.seg.dcm", series), expected)
    for name, values in (("mean", mean), ("gamma", gamma)):
        read = read_map(folder / f"{name}.pm.dcm", series)
        np.testing.assert_allclose(np.nan_to_num(read), values, atol=0.5 / 255)
    report = pydicom.dcmread(folder / "report.sr.dcm")
    measured = numbers(report)
    volume = json.loads((folder / "summary.json").read_text())["classes"]["lesion"]
    parts = [volume["volume_ml"][part] for part in ("median", "low", "high")]
    assert measured == pytest.approx([*parts, volume["present"]], rel=1e-5)
    regions = pydicom.dcmread(folder / "regions.seg.dcm")
    (evidence,) = report.CurrentRequestedProcedureEvidenceSequence
    referenced = {item.SeriesInstanceUID for item in evidence.ReferencedSeriesSequence}
    assert regions.SeriesInstanceUID in referenced


def test_second_nodule_is_added_to_the_same_folder(predict, model, tmp_path):
    write_scan(tmp_path / "series", PatientID="Q/7")
    folder = model(intensity={"kind": "window", "low": -1000.0, "high": 3000.0}, centred_on="lesion")
    assert predict(folder, tmp_path / "series", "--at", "3,3,2").code == 0
    assert predict(folder, tmp_path / "series", "--at", "2,2,1").code == 0
    assert {row["case"] for row in table(tmp_path / "pred")} == {"Q_7", "Q_7-2"}
    page = (tmp_path / "pred" / "report.html").read_text()
    assert sorted(re.findall(r"<h2>(.*)</h2>", page)) == ["Q_7", "Q_7-2"]
    descriptions = {
        pydicom.dcmread(tmp_path / "pred" / case / "regions.seg.dcm").SeriesDescription for case in ("Q_7", "Q_7-2")
    }
    assert descriptions == {"PHiSeg regions at voxel 3, 3, 2", "PHiSeg regions at voxel 2, 2, 1"}


def test_cases_are_named_by_a_table(predict, model, tmp_path):
    write_scan(tmp_path / "in" / "series", uid="1.2.77", PatientID="Q/7")
    nifti(tmp_path / "in" / "n.nii.gz")
    names = tmp_path / "names.csv"
    folder = model(intensity={"kind": "window", "low": -1000.0, "high": 3000.0}, centred_on="lesion")
    names.write_text("scan,case\n1.2.77,first\n")
    result = predict(folder, tmp_path / "in", "--at", "3,3,2", "--names", names)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert f"the table of names does not list {tmp_path / 'in' / 'n.nii.gz'}; add a line" in result.err
    names.write_text("scan,case\n1.2.77,first\nn.nii.gz,second\n")
    assert predict(folder, tmp_path / "in", "--at", "3,3,2", "--names", names).code == 0
    assert predict(folder, tmp_path / "in", "--at", "2,2,1").code == 0
    assert {row["case"] for row in table(tmp_path / "pred")} == {"first", "first-2", "second", "second-2"}


def numbers(item):
    """Return the measured values of a report in their order."""
    values = [float(value.NumericValue) for value in item.get("MeasuredValueSequence", ())]
    return values + [value for child in item.get("ContentSequence", ()) for value in numbers(child)]


def test_predict_matches_python_api(predict, model, tmp_path):
    folder = model()
    predict(folder, nifti(tmp_path / "n.nii.gz"))
    sampling = Sampling(num_samples=3, level_draws=2)
    found = package.load(folder).predict(read_nifti(tmp_path / "n.nii.gz"), sampling=sampling, name="n")
    written = maps(tmp_path / "pred" / "n")
    for sample in range(3):
        np.testing.assert_array_equal(
            found.on_grid(found.labels[sample]).values, written["samples"].get_fdata()[..., sample]
        )
    np.testing.assert_allclose(found.on_grid(found.gamma).values, written["gamma"].get_fdata(), atol=1e-5)


# Points


def test_points_in_voxels_mm_and_table_agree(predict, model, tmp_path):
    folder = model(centred_on="nodule")
    scan = nifti(tmp_path / "n.nii.gz")
    x, y, z, _ = nibabel.load(scan).affine @ [6, 5, 1, 1]
    (tmp_path / "points.csv").write_text(f"case,x,y,z,unit\nn,{x},{y},{z},mm\n")
    words = [("--at", "6,5,1"), ("--at", f"lps:{-x},{-y},{z}"), ("--points", tmp_path / "points.csv")]
    found = []
    for number, at in enumerate(words):
        out = tmp_path / f"pred{number}"
        assert predict(folder, scan, *at, out=out).code == 0
        found.append(maps(out / "n")["samples"].get_fdata())
        assert json.loads((out / "n" / "summary.json").read_text())["point"] == [6, 5, 1]
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_every_point_is_a_case_and_scans_without_points_are_skipped(predict, model, tmp_path):
    folder = model(centred_on="nodule")
    source = nifti(tmp_path / "in" / "a.nii.gz").parent
    nifti(source / "b.nii.gz")
    assert predict(folder, source / "a.nii.gz", "--at", "6,5,1", "--at", "3,3,0").code == 0
    assert {row["case"] for row in table(tmp_path / "pred")} == {"a", "a-2"}
    (tmp_path / "points.csv").write_text("case,x,y,z\nb,6,5,1\n")
    result = predict(folder, source, "--points", tmp_path / "points.csv", out=tmp_path / "pred2")
    assert (result.code, messages(result)[0]) == (0, "phiseg: skipping scans without a point: a")
    assert [row["case"] for row in table(tmp_path / "pred2")] == ["b"]


def test_second_point_does_not_repeat_a_lesion(predict, model, tmp_path):
    folder, scan = model(centred_on="nodule"), nifti(tmp_path / "n.nii.gz")
    predict(folder, scan, "--at", "6,5,1")
    assert [row["case"] for row in table(tmp_path / "pred")] == ["n"]
    assert predict(folder, scan, "--at", "6,5,1", "--at", "3,3,0").code == 0
    assert sorted(row["case"] for row in table(tmp_path / "pred")) == ["n", "n-2"]
    page = (tmp_path / "pred" / "report.html").read_text()
    assert [page.count(f"<h2>{name}</h2>") for name in ("n", "n-2")] == [1, 1]
    assert (tmp_path / "pred" / "n" / "summary.json").is_file()


# Going on


def test_bad_scan_is_skipped_and_retried_after_fix(predict, model, tmp_path):
    folder = model()
    for number in range(3):
        nifti(tmp_path / "in" / f"s{number}.nii.gz", seed=number)
    bad = tmp_path / "in" / "s1.nii.gz"
    content = bad.read_bytes()
    bad.write_bytes(content[: len(content) // 2])
    result = predict(folder, tmp_path / "in")
    assert result.code == 2
    (line,) = messages(result)
    assert line.startswith(f"phiseg: skipped s1: {bad} cannot be read as NIfTI")
    assert {row["case"] for row in table(tmp_path / "pred")} == {"s0", "s2"}
    (failure,) = table(tmp_path / "pred", "failed.csv")
    assert failure == {"case": "s1", "reason": line.removeprefix("phiseg: skipped s1: ")}
    assert "Could not be predicted" in (tmp_path / "pred" / "report.html").read_text()

    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "pred" / "s0").iterdir()}
    bad.write_bytes(content)
    result = predict(folder, tmp_path / "in", "--batch-size", "1")
    assert (result.code, messages(result)) == (0, ["phiseg: 2 of 3 cases are already finished"])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "pred" / "s0").iterdir()} == done
    assert {row["case"] for row in table(tmp_path / "pred")} == {"s0", "s1", "s2"}
    assert not (tmp_path / "pred" / "failed.csv").exists()

    for words, reason in (
        (("--seed", "1"), "another seed (0, now 1)"),
        (("--noise-length", "3"), "another noise_length_mm (inf, now 3.0)"),
    ):
        result = predict(folder, tmp_path / "in", *words)
        (line,) = messages(result)
        assert result.code == 2
        assert line.startswith(f"phiseg: error: {tmp_path / 'pred'} contains the case s0 with {reason}; all cases")


# Bad input

BAD_SCANS = {
    "tilted": "contains a tilted scan",
    "gap": "seems to lack 1 slice",
    "doubled": "are both at",
    "mixed": "contains 2 series",
    "radiograph": "contains no slices with a position in space",
    "blank": "has no pixel data",
    "zero": "zero is empty: every voxel is 0; check the scan",
    "nan": "nan.nii.gz has NaN or infinite voxels",
    "cut": "cut.nii.gz cannot be read as NIfTI",
    "channels": "channels has 2 channels, but the model takes 1",
    "five": "has 5 dimensions",
    "damaged": "damaged.png cannot be read as a picture",
}


def write_bad_scans(folder):
    write_scan(folder / "tilted", skew=(0, 0.5, 0))
    write_scan(folder / "gap", depths=[0, 1, 3, 4])
    write_scan(folder / "doubled", depths=[0, 1, 1, 2])
    write_scan(folder / "mixed")
    write_scan(folder / "mixed", uid="1.2.77")
    write_scan(folder / "radiograph", Modality="CR")
    write_scan(folder / "blank", PixelData=None)
    nifti(folder / "good.nii.gz")
    values = np.zeros((8, 8, 3), np.float32)
    write_nifti(folder / "zero.nii.gz", Volume(values, np.eye(4)))
    values[1, 1, 1] = np.nan
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), folder / "nan.nii.gz")
    whole = nifti(folder / "cut.nii.gz").read_bytes()
    (folder / "cut.nii.gz").write_bytes(whole[:-200])
    nifti(folder / "channels.nii.gz", shape=(8, 8, 3, 2))
    nifti(folder / "five.nii.gz", shape=(8, 8, 3, 2, 2))
    (folder / "damaged.png").write_bytes(b"\x89PNG\r\n\x1a\n and nothing more")


def test_bad_scans_give_one_line_each(predict, model, tmp_path):
    write_bad_scans(tmp_path / "in")
    result = predict(model(), tmp_path / "in")
    assert result.code == 2
    lines = {line.split()[2].rstrip(":"): line for line in messages(result)}
    assert len(messages(result)) == len(lines) == len(BAD_SCANS)
    for name, reason in BAD_SCANS.items():
        assert f"phiseg: skipped {name}: " in lines[name]
        assert reason in lines[name]
        assert ";" in lines[name], "no advice"
    assert "Traceback" not in result.err
    assert [row["case"] for row in table(tmp_path / "pred")] == ["good"]


def test_other_modality_is_skipped_and_other_unit_warns(predict, model, tmp_path):
    write_scan(tmp_path / "in" / "other", Modality="MR")
    nifti(tmp_path / "in" / "good.nii.gz")
    result = predict(model(modality="CT"), tmp_path / "in")
    assert result.code == 2
    assert "other has modality MR, but the model was trained on CT" in result.err
    assert [row["case"] for row in table(tmp_path / "pred")] == ["good"]
    values = np.random.default_rng(0).uniform(1e4, 2e4, (14, 12, 3)).astype(np.float32)
    write_nifti(tmp_path / "odd.nii.gz", Volume(values, np.eye(4)))
    result = predict(model("plain"), tmp_path / "odd.nii.gz", out=tmp_path / "odd")
    assert result.code == 0
    assert "phiseg: odd: " in result.err
    assert "unit" in result.err


def test_other_spacing_is_resampled_or_rejected(predict, model, tmp_path):
    folder = model(spacing_range_mm=[0.5, 0.8], modality=None)
    nifti(tmp_path / "scan.nii.gz")  # pixels of 1 x 1.5 mm
    result = predict(folder, tmp_path / "scan.nii.gz", "--strict-spacing")
    assert result.code == 2
    (failed,) = table(tmp_path / "pred", "failed.csv")
    assert "but the model was trained on 0.5 to 0.8 mm" in failed["reason"]
    result = predict(folder, tmp_path / "scan.nii.gz")
    assert result.code == 0
    assert any("it is resampled to 0.8 x 0.8 mm" in line for line in messages(result))
    assert maps(tmp_path / "pred" / "scan")["mean"].shape == (14, 12, 3)
    assert "resampled to 0.8 x 0.8 mm" in (tmp_path / "pred" / "report.html").read_text()


@pytest.mark.parametrize(("fixed", "warns"), [(0.9, False), (0.4, True)])
def test_fixed_spacing_warns_about_coarse_pixels(predict, model, tmp_path, fixed, warns):
    folder = model(spacing_mm=[fixed, fixed], modality=None)
    nifti(tmp_path / "scan.nii.gz")  # pixels of 1 x 1.5 mm
    result = predict(folder, tmp_path / "scan.nii.gz", "--strict-spacing")
    assert result.code == 2
    (failed,) = table(tmp_path / "pred", "failed.csv")
    assert f"but the model was trained on {fixed} x {fixed} mm" in failed["reason"]
    result = predict(folder, tmp_path / "scan.nii.gz")
    assert result.code == 0
    assert any("it is resampled to" in line for line in messages(result)) == warns


def test_other_slice_distance_warns_or_is_rejected(predict, model, tmp_path):
    folder = model(thickness_range_mm=[0.5, 0.8], modality=None)
    nifti(tmp_path / "scan.nii.gz")
    result = predict(folder, tmp_path / "scan.nii.gz", "--strict-spacing")
    assert result.code == 2
    (failed,) = table(tmp_path / "pred", "failed.csv")
    assert "but those of the training images were 0.5 to 0.8 mm thick" in failed["reason"]
    result = predict(folder, tmp_path / "scan.nii.gz")
    assert result.code == 0
    assert any("slices are not resampled" in line for line in messages(result))


def test_other_slice_thickness_warns_or_is_rejected(predict, model, tmp_path):
    """Slices of 3 mm, 2 mm apart."""
    folder = model(thickness_range_mm=[1.5, 2.5], modality=None)
    reason = "3 mm thick, but those of the training images were 1.5 to 2.5 mm thick"
    write_scan(tmp_path / "in" / "thick")
    write_scan(tmp_path / "in" / "usual", SliceThickness=2.5)
    result = predict(folder, tmp_path / "in", "--strict-spacing")
    assert result.code == 2
    (failed,) = table(tmp_path / "pred", "failed.csv")
    assert failed["reason"].startswith(f"thick has slices {reason}")
    assert [row["case"] for row in table(tmp_path / "pred")] == ["usual"]
    result = predict(folder, tmp_path / "in")
    assert result.code == 0
    (line,) = [line for line in messages(result) if " mm thick" in line]
    assert line.startswith(f"phiseg: thick: the slices are {reason}; the samples may be less reliable")


def test_other_values_warn_or_are_rejected(predict, model, tmp_path):
    """A rejected case is not finished, and its reason does not affect the others."""
    folder = model(intensity={"kind": "window", "low": -1000.0, "high": 400.0})
    nifti(tmp_path / "in" / "mr.nii.gz")  # values from 0 to 1
    write_scan(tmp_path / "in" / "ct")
    result = predict(folder, tmp_path / "in", "--strict-intensity")
    assert result.code == 2
    assert "(1 of 2 cases failed, see failed.csv)" in result.out
    (failed,) = table(tmp_path / "pred", "failed.csv")
    assert failed["reason"].startswith("mr is rejected by --strict-intensity: no value is below 0")
    before = (tmp_path / "pred" / "ct" / "summary.json").stat()
    result = predict(folder, tmp_path / "in")
    assert result.code == 0
    assert "phiseg: 1 of 2 cases are already finished" in messages(result)
    assert any(line.startswith("phiseg: mr: no value is below 0") for line in messages(result))
    assert (tmp_path / "pred" / "ct" / "summary.json").stat() == before


def test_removed_result_is_a_failure(predict, model, tmp_path, monkeypatch):
    scans = [nifti(tmp_path / f"{name}.nii.gz", seed=n) for n, name in enumerate("ab")]
    folder = model()
    predict(folder, *scans, out=tmp_path / "undisturbed")
    draw = prediction_report.case_picture

    def disturbed(prediction, measures, name):
        if name == "b":
            shutil.rmtree(tmp_path / "pred" / "a")
        return draw(prediction, measures, name)

    monkeypatch.setattr(prediction_report, "case_picture", disturbed)
    result = predict(folder, *scans)
    assert result.code == 2
    assert (
        "phiseg: skipped a: its folder was removed while other cases were predicted; run the command again"
        in messages(result)
    )
    assert "1 of 2 cases failed" in result.out
    monkeypatch.undo()
    assert predict(folder, *scans).code == 0
    for path in (tmp_path / "undisturbed").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "pred" / path.relative_to(tmp_path / "undisturbed")).read_bytes()


def test_series_is_chosen_by_uid(predict, model, tmp_path):
    write_scan(tmp_path / "in" / "mixed")
    write_scan(tmp_path / "in" / "mixed", uid="1.2.77")
    assert predict(model(), tmp_path / "in", "--series", "1.2.77").code == 0
    assert [row["case"] for row in table(tmp_path / "pred")] == ["mixed"]


def test_derived_dicom_and_earlier_results_are_skipped(predict, model, tmp_path):
    write_scan(tmp_path / "in" / "ct")
    write_scan(tmp_path / "in" / "seg", uid="1.2.9", depths=[0], Modality="SEG")
    folder = model(intensity={"kind": "window", "low": -1000.0, "high": 3000.0})
    for out in (tmp_path / "in" / "first", tmp_path / "second"):
        result = predict(folder, tmp_path / "in", out=out)
        (line,) = messages(result)
        assert line.startswith(f"phiseg: skipping {tmp_path / 'in' / 'seg'}: ")
        assert (result.code, [row["case"] for row in table(out)]) == (0, ["ct"])


def test_only_bad_scans_fail(predict, model, tmp_path):
    write_nifti(tmp_path / "zero.nii.gz", Volume(np.zeros((8, 8, 3)), np.eye(4)))
    result = predict(model(), tmp_path / "zero.nii.gz")
    assert result.code == 2
    (told,) = messages(result)
    assert "zero is empty" in told
    assert table(tmp_path / "pred") == []
    assert [row["case"] for row in table(tmp_path / "pred", "failed.csv")] == ["zero"]


def test_point_outside_the_scan_is_skipped(predict, model, tmp_path):
    scan = nifti(tmp_path / "n.nii.gz")
    result = predict(model(centred_on="nodule"), scan, "--at", "6,5,1", "--at", "6,5,3")
    line = messages(result)[-1]
    assert line.startswith("phiseg: skipped n-2: n-2: the point (6, 5, 3) is outside the 14 x 12 x 3")
    assert result.code == 2
    assert [row["case"] for row in table(tmp_path / "pred")] == ["n"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("IN/none.nii",), "none.nii does not exist; give a NIfTI, .mha"),
        ((), "there is no INPUT"),
        (("IN/n.nii.gz", "--at", "1,2,3"), "the model segments whole slices and takes no point"),
        (("IN/n.nii.gz", "--at", "1,2"), "'1,2' is not a point"),
        (("IN/n.nii.gz", "--points", "IN/none.csv"), "none.csv does not exist; give a CSV file"),
        (("IN/n.nii.gz", "--names", "IN/none.csv"), "none.csv does not exist; give a CSV file"),
        (("IN/n.nii.gz", "--num-samples", "0"), "num_samples is 0; it must be at least 1"),
        (("IN/n.nii.gz", "--reach", "-1"), "reach_mm is -1.0"),
        (("IN/n.nii.gz", "--devices", "0"), "'devices' = 0"),
        (("IN",), "is both an input and the folder for the results"),
    ],
)
def test_invalid_arguments_give_one_line_error(cli, model, tmp_path, words, reason):
    nifti(tmp_path / "in" / "n.nii.gz")
    out = tmp_path / ("in" if words == ("IN",) else "pred")
    words = [word.replace("IN", str(tmp_path / "in")) for word in words]
    result = cli("predict", model(), *words, "--out", out)
    assert result.code == 2
    (line,) = result.err.splitlines()
    assert line.startswith("phiseg: error: ")
    assert reason in line
    assert not (tmp_path / "pred").exists()


def test_crop_model_requires_a_point(predict, model, tmp_path):
    result = predict(model(centred_on="nodule"), nifti(tmp_path / "n.nii.gz"))
    assert result.code == 2
    assert messages(result) == [
        "phiseg: error: the model segments crops around a nodule; give its position in n.nii.gz: --at x,y,z"
    ]


def test_invalid_model_folder_is_rejected(predict, tmp_path):
    result = predict(tmp_path / "none", nifti(tmp_path / "n.nii.gz"))
    assert (result.code, len(messages(result))) == (2, 1)
    assert "there is no model" in result.err


# Several processes


def test_processes_have_a_timeout_of_days():
    fabric = fabric_for_processes("cpu", 2, 1, command="phiseg predict")
    assert fabric.strategy._timeout > timedelta(days=2)


@pytest.mark.slow
def test_two_processes_write_the_same_results(phiseg, predict, model, tmp_path):
    folder = model()
    for number in range(3):
        nifti(tmp_path / "in" / f"s{number}.nii.gz", seed=number)
    (tmp_path / "in" / "s4.nii.gz").write_bytes(b"nothing")  # the second process's
    assert predict(folder, tmp_path / "in", out=tmp_path / "one").code == 2
    done = phiseg("predict", folder, tmp_path / "in", "--out", tmp_path / "two", *QUICK, "--devices", "2")
    assert done.code == 2, done
    assert "skipped s4" in done.err
    one, two = (
        {
            path.relative_to(tmp_path / out): path.read_bytes()
            for path in (tmp_path / out).rglob("*")
            if path.is_file()
        }
        for out in ("one", "two")
    )
    assert len(one) == 3 * 7 + 3
    assert [row["case"] for row in table(tmp_path / "two", "failed.csv")] == ["s4"]
    assert one == two
