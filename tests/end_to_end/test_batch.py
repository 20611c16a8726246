"""`phiseg batch`: from images/SOCKET to images/SOCKET and volumes.json, as the container runs it."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import SimpleITK

from helpers.known_models import place
from phiseg.imaging.itk_files import read_itk, write_itk
from phiseg.imaging.nifti_files import read_nifti, write_nifti
from phiseg.imaging.volume import Volume

ROOT = Path(__file__).parents[2]
QUICK = ("--num-samples", "3", "--device", "cpu")


@pytest.fixture
def model(trained, tmp_path):
    """Return a function that copies the tiny PHiSeg, as if it had been trained on other images."""

    def copy(**changes):
        folder = Path(shutil.copytree(trained() / "model", tmp_path / "model"))
        path = folder / "preprocessing.json"
        values = json.loads(path.read_text()) | {"spacing_mm": None, "spacing_range_mm": None} | changes
        path.write_text(json.dumps(values))
        return folder

    return copy


def scan(seed=0):
    values = np.random.default_rng(seed).uniform(size=(14, 12, 3)).astype(np.float32)
    return Volume(values, place("ASL", turn=(10, -20, 5), spacing=(1, 1.5, 4), origin=(5, -6, 7)))


@pytest.fixture
def source(tmp_path):
    """An input folder with two scans in one socket."""
    write_itk(tmp_path / "input" / "images" / "ct" / "a.mha", scan(0))
    write_nifti(tmp_path / "input" / "images" / "ct" / "b.nii.gz", scan(1))
    return tmp_path / "input"


def volumes(folder):
    return json.loads((folder / "volumes.json").read_text())


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def container_command():
    """Return the command of the container without the program, with its default arguments."""
    text = (ROOT / "Dockerfile.batch").read_text(encoding="utf-8")
    program, *words = (
        word for kind in ("ENTRYPOINT", "CMD") for word in json.loads(re.search(rf"^{kind} (.*)$", text, re.M)[1])
    )
    assert program == "phiseg"
    return words


def test_batch_as_the_container_runs_it_matches_predict(cli, model, source, tmp_path):
    folder, out = model(), tmp_path / "output"
    places = {"/input": source, "/output": out, "/opt/ml/model": folder}
    result = cli(*(places.get(word, word) for word in container_command()), *QUICK)
    assert result.code == 0, result
    assert files(out) == sorted(
        [*(f"images/{name}/{case}.mha" for name in ("labels", "mean", "gamma") for case in "ab"), "volumes.json"]
    )
    predicted = cli(
        "predict", folder, source / "images", "--out", tmp_path / "pred", "--num-samples", 3, "--level-draws", 0,
        "--device", "cpu",
    )  # fmt: skip
    assert predicted.code == 0, predicted
    for case, written in zip("ab", volumes(out)["cases"], strict=True):
        summary = json.loads((tmp_path / "pred" / case / "summary.json").read_text())
        assert written["classes"] == summary["classes"]
        for name in ("labels", "mean", "gamma"):
            assert written["files"][name] == f"images/{name}/{case}.mha"
            expected = read_nifti(tmp_path / "pred" / case / f"{name}.nii.gz")
            found = read_itk(out / "images" / name / f"{case}.mha")
            np.testing.assert_array_equal(found.values, expected.values)
            np.testing.assert_allclose(found.affine, scan().affine, atol=1e-5)


def test_batch_volumes_are_those_of_the_written_samples(cli, model, source, tmp_path):
    out = tmp_path / "out"
    result = cli("batch", source, out, "--model", model(), "--maps", "samples:draws", *QUICK)
    assert result.code == 0, result
    assert files(out) == ["images/draws/a.mha", "images/draws/b.mha", "volumes.json"]
    for written in volumes(out)["cases"]:
        image = SimpleITK.ReadImage(str(out / written["files"]["samples"]))
        samples = SimpleITK.GetArrayFromImage(image)  # (S, K, J, I)
        expected = (samples > 0).sum((1, 2, 3)) * np.prod(image.GetSpacing()[:3]) / 1000
        np.testing.assert_allclose(written["classes"]["lesion"]["volume_ml"]["samples"], expected, rtol=1e-5)


def test_batch_reports_failed_scans(cli, model, source, tmp_path):
    (source / "images" / "ct" / "damaged.mha").write_bytes(b"nothing")
    out = tmp_path / "out"
    result = cli("batch", source, out, "--model", model(), "--maps", "labels:seg", *QUICK)
    assert result.code == 2
    assert "(1 scans failed, see volumes.json)" in result.out
    assert [case["case"] for case in volumes(out)["cases"]] == ["a", "b"]
    (failed,) = volumes(out)["failed"]
    assert failed["case"] == "damaged"
    assert "damaged.mha cannot be read as MetaImage" in failed["reason"]
    assert files(out) == ["images/seg/a.mha", "images/seg/b.mha", "volumes.json"]


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_batch_with_points(cli, model, source, tmp_path, kind):
    folder, out = model(centred_on="lesion"), tmp_path / "out"
    command = ("batch", source, out, "--model", folder, *QUICK)
    result = cli(*command)
    assert (result.code, "give its position in ct: --points FILE" in result.err) == (2, True)
    voxels = [(7, 6, 1), (3, 4, 2)]
    x, y, z = scan().world(np.array(voxels)).T
    lps = np.stack([-x, -y, z], 1).tolist()
    points = tmp_path / f"points.{kind}"
    if kind == "json":
        entries = [{"name": "lesion", "point": place} for place in lps]
        points.write_text(json.dumps({"type": "Multiple points", "points": entries}))
    else:
        points.write_text("case,x,y,z,unit\n" + "".join(f"a,{x},{y},{z},lps\n" for x, y, z in lps))
    result = cli(*command, "--points", points)
    assert result.code == 0, result
    found = {case["case"]: tuple(case["point"]) for case in volumes(out)["cases"]}
    expected = {"a": voxels[0], "a-2": voxels[1]}
    assert found == (expected if kind == "csv" else expected | {"b": voxels[0], "b-2": voxels[1]})


def test_batch_keeps_previous_results(cli, model, source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "volumes.json").write_text("{}")
    command = ("batch", source, out, "--model", model(), *QUICK)
    result = cli(*command)
    assert (result.code, "volumes.json already exists" in result.err) == (2, True)
    assert files(out) == ["volumes.json"]
    assert cli(*command, "--overwrite").code == 0
    assert len(volumes(out)["cases"]) == 2


def test_batch_keeps_other_files(cli, model, source, tmp_path):
    out = tmp_path / "out"
    (out / "images" / "mean").mkdir(parents=True)
    (out / "images" / "mean" / "b.mha").write_text("of another program")
    command = ("batch", source, out, "--model", model(), *QUICK)
    result = cli(*command)
    assert (result.code, "mean/b.mha already exists; " in result.err) == (2, True)
    assert files(out) == ["images/mean/b.mha"]
    (out / "images" / "mean" / "b.mha").rename(out / "images" / "mean" / "other.mha")
    assert cli(*command).code == 0
    assert (out / "images" / "mean" / "other.mha").read_text() == "of another program"


@pytest.mark.parametrize("words", [(), ("--overwrite",)])
def test_batch_keeps_its_input(cli, model, source, words):
    before = {path: path.read_bytes() for path in source.rglob("*.*")}
    result = cli("batch", source, source, "--model", model(), "--maps", "labels:ct", *QUICK, *words)
    assert (result.code, "ct, the folder for labels, is in the input folder" in result.err) == (2, True)
    assert {path: path.read_bytes() for path in source.rglob("*.*")} == before


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--socket", "ctt"), "has no folder 'ctt' (did you mean 'ct'?)"),
        (("--maps", "labels"), "'labels' is not RESULT:SOCKET; write, for example, labels:segmentation"),
        (("--maps", "masks:a"), "with one of the results labels, mean, gamma, samples"),
        (("--maps", "labels:../a"), "'labels:../a' is not RESULT:SOCKET"),
        (("--maps", "labels:a", "mean:a"), "'mean:a' repeats a result or a socket"),
        (("--maps", "labels:a", "mean:A"), "'mean:A' repeats a result or a socket"),
        (("--points", "none.json"), "none.json does not exist; give a JSON or CSV file with points"),
    ],
)
def test_batch_rejects_invalid_options(cli, source, tmp_path, words, error):
    result = cli("batch", source, tmp_path / "out", "--model", "lidc-nodule", *words)
    assert result.code == 2
    assert error in result.err
    assert not (tmp_path / "out").exists()


def test_batch_asks_for_the_socket_if_there_are_several(cli, source, tmp_path):
    (source / "images" / "mr").mkdir()
    result = cli("batch", source, tmp_path / "out", "--model", "lidc-nodule")
    assert "has several folders (ct, mr); choose one with --socket" in result.err
