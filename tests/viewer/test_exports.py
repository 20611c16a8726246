"""What is exported can be read by others, on the grid of the scan."""

import gzip
import io
import json
import zipfile
from dataclasses import replace
from urllib.parse import unquote

import highdicom
import nibabel
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from helpers.small_viewer import make_model, nifti_bytes, of_type, random_volume
from phiseg.imaging.nifti_files import write_nifti
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import predict_volume

FILES = {"sample": "sample-3", "samples": "samples", "mean": "mean", "labels": "labels", "gamma": "gamma"}


@pytest.fixture
def oblique():
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("xyz", [10, -5, 8], degrees=True).as_matrix() @ np.diag([0.8, -0.9, 2])
    affine[:3, 3] = 3, 4, 5
    return random_volume(affine=affine)


def exported(served, name, **query):
    return served.client.get(f"/api/predictions/{name}/export", params=query)


def name_of(answer):
    assert answer.status_code == 200, answer.text
    start, name = answer.headers["content-disposition"].split("''")
    assert start == "attachment; filename*=UTF-8"
    return unquote(name)


@pytest.mark.parametrize("classes", [("background", "lesion"), ("background", "inner", "outer")])
def test_nifti_export_matches_predict_volume(serve, oblique, classes):
    served = serve(make_model(centred_on=None, classes=classes))
    scan = served.drop(("lung of Ä.nii.gz", gzip.compress(nifti_bytes(oblique)))).json()["id"]
    (done,) = of_type(served.click(scan, num_samples=5, seed=4), "done")
    prediction = predict_volume(served.viewer.model, oblique, sampling=Sampling(num_samples=5, seed=4))
    expected = {
        "sample": prediction.labels[2],
        "samples": np.moveaxis(prediction.labels, 0, 3),
        "mean": np.moveaxis(prediction.mean_probs[1:], 0, 3).squeeze(),
        "labels": prediction.mean_probs.argmax(0),
        "gamma": prediction.gamma,
    }
    for what, values in expected.items():
        answer = exported(served, done["id"], what=what, kind="nifti", index=2)
        assert name_of(answer) == f"lung_of_Ä_seed-4_{FILES[what]}.nii.gz"
        image = nibabel.Nifti1Image.from_bytes(gzip.decompress(answer.content))
        np.testing.assert_allclose(image.affine, oblique.affine, atol=1e-5)
        found = np.asarray(image.dataobj)
        assert found.shape[:3] == oblique.grid
        for number, row, column in np.random.default_rng(0).integers(0, (5, 22, 20), (40, 3)):
            place = prediction.voxel(number, row, column)
            np.testing.assert_allclose(found[place], values[number, row, column], atol=1e-5)


def test_dicom_seg_export_matches_series(serve, dicom_files):
    served = serve(make_model(low=-1000, high=3000))
    name = served.drop(*dicom_files).json()["id"]
    (done,) = of_type(served.click(name, num_samples=3), "done")
    prediction = served.viewer.prediction(done["id"]).prediction
    answer = exported(served, done["id"], what="sample", kind="seg", index=1)
    assert answer.status_code == 200, answer.text
    seg = highdicom.seg.segread(io.BytesIO(answer.content))
    volume = prediction.on_grid(prediction.labels[1]).values
    assert seg.pixel_array.sum() == volume.sum() > 0
    answer = exported(served, done["id"], what="samples", kind="seg")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.namelist() == [f"5_DICOM_files_seed-0_sample-{number}.seg.dcm" for number in (1, 2, 3)]
        segs = [highdicom.seg.segread(io.BytesIO(archive.read(name))) for name in archive.namelist()]
    assert [seg.pixel_array.sum() for seg in segs] == [(labels > 0).sum() for labels in prediction.labels]
    assert len({seg.SOPInstanceUID for seg in segs}) == 3
    answer = exported(served, done["id"], what="mean", kind="seg")
    assert highdicom.seg.segread(io.BytesIO(answer.content)).SegmentationType == "FRACTIONAL"
    answer = exported(served, done["id"], what="gamma", kind="seg")
    assert (answer.status_code, answer.json()["message"]) == (
        400,
        "a gamma map is not a segmentation; save it as NIfTI",
    )


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("Müller.nii.gz", "Müller"),
        ("Mo\u0308ller.NII", "Möller"),
        ("患者1.mha", "患者1"),
        ("scan.v2.nrrd", "scan.v2"),
        ("a/b: c.nhdr", "a_b_c"),
        ("..mhd", "scan"),
        ("x" * 240, "x" * 64),
    ],
)
def test_file_stem_keeps_letters_of_any_script(served, name, stem):
    scan = replace(served.viewer.scans.get("example"), name=name)
    assert scan.file_stem == scan.info.file_stem == stem


def test_scan_with_a_long_name_is_exported(serve, tmp_path):
    name = "患者" * 39 + "x"  # 243 bytes with its suffix
    write_nifti(tmp_path / f"{name}.nii.gz", random_volume())
    served = serve(None, tmp_path)
    (done,) = of_type(served.click(served.viewer.scans.listed()[0].id, num_samples=1), "done")
    assert name_of(exported(served, done["id"], what="labels", kind="nifti")).startswith("患者患者")


def test_numbers_export_is_reproducible(serve):
    served = serve(make_model(members=2))
    messages = served.click(num_samples=12, seed=9, levels=[{"hold": True}, {"temperature": 2}, {"seed": 4}])
    (done,), (numbers,) = of_type(messages, "done"), of_type(messages, "numbers")
    content = json.loads(exported(served, done["id"], what="numbers", kind="json").content)
    assert content["request"]["seed"] == 9
    assert content["request"]["levels"][1] == {"seed": 0, "hold": False, "temperature": 2.0}
    (found,), (shown,) = content["classes"].values(), numbers["classes"].values()
    assert found == {
        "present": shown["present"],
        "volume_ml": shown["size"],
        "diameter_mm": shown["diameter"],
        "volume_ml_if_present": shown["size_if_present"],
        "diameter_mm_if_present": shown["diameter_if_present"],
    }
    assert content["level_shares"].keys() == {"level 1", "level 2", "member"}
    assert content["level_shares"]["level 1"] == 0, "it is held"
    assert (content["model"], content["scan"], content["scores"]) == ("tiny", "synthetic example", None)


@pytest.mark.parametrize(
    ("query", "status", "cause"),
    [
        ({"what": "sample", "kind": "nifti", "index": 3}, 400, "sample 4 does not exist; 3 samples were drawn"),
        ({"what": "labels", "kind": "seg"}, 400, "this scan is not one; save it as NIfTI"),
        ({"what": "gamma", "kind": "json"}, 400, "measurements can only be saved as JSON"),
        ({"what": "numbers", "kind": "nifti"}, 400, "measurements can only be saved as JSON"),
        ({"what": "everything", "kind": "nifti"}, 422, "invalid request: query.what"),
        ({"what": "sample", "kind": "nifti", "index": -1}, 422, "invalid request: query.index"),
    ],
)
def test_invalid_export_is_explained(serve, query, status, cause):
    served = serve()
    (done,) = of_type(served.click(num_samples=3), "done")
    answer = exported(served, done["id"], **query)
    assert answer.status_code == status
    assert cause in answer.json()["message"]


def test_old_prediction_is_dropped(serve, monkeypatch):
    monkeypatch.setattr("phiseg.viewer.server.MAX_PREDICTIONS", 2)
    served = serve()
    names = [of_type(served.click(num_samples=1, seed=seed), "done")[0]["id"] for seed in range(3)]
    found = [exported(served, name, what="numbers", kind="json").status_code for name in names]
    assert found == [404, 200, 200]
