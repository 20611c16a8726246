"""The client class of the package monailabel, which the plug-in of 3D Slicer contains, against the server."""

import importlib.util
import sys
import sysconfig
from pathlib import Path

import nibabel
import numpy as np
import pytest

from helpers.label_server import POINT, UID, listening, make_server
from helpers.small_viewer import random_volume
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import predict_volume

FOLDER = Path(sysconfig.get_path("purelib", vars={"base": str(Path(sys.prefix) / "monailabel")}))
INSTALL = "make .venv/.installed-monailabel"


@pytest.fixture(scope="module")
def client_module():
    """Import the client from where `make` installs it."""
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("monailabel") is None and FOLDER.is_dir():
            patch.setattr(sys, "path", [*sys.path, str(FOLDER)])
        reason = f"the client of MONAI Label is not installed; run: {INSTALL}"
        pytest.importorskip("requests", reason=reason)
        yield pytest.importorskip("monailabel.client.client", reason=reason)


@pytest.fixture(scope="module")
def server(studies):
    return make_server(studies)


@pytest.fixture(scope="module")
def address(server):
    with listening(server) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def client(client_module, address, tmp_path):
    return client_module.MONAILabelClient(address, tmpdir=str(tmp_path), client_id="tester")


def consensus(model, **options):
    sampling = Sampling(num_samples=3, level_draws=0, **options)
    prediction = predict_volume(model.network, random_volume(), point=POINT, sampling=sampling)
    return prediction.on_grid(prediction.consensus).values


def test_client_reads_info_and_datastore(client):
    assert client.auth_enabled() is False
    info = client.info()
    assert info["models"]["tiny"]["type"] == "deepedit"
    assert set(client.datastore()["objects"]) == {"scan", UID}
    assert client.train_status(check_if_running=True) is False
    assert client.next_sample("next", {})["id"] in ("scan", UID)


def test_client_segments_image_of_the_studies(client, server, studies, tmp_path):
    file, params = client.infer("tiny", "scan", {"lesion": [POINT], "num_samples": 3})
    assert Path(file) == tmp_path / "labels.nii.gz"
    image = nibabel.load(file)
    np.testing.assert_array_equal(image.get_fdata(), consensus(server.models["tiny"]))
    np.testing.assert_allclose(image.affine, nibabel.load(studies / "scan.nii.gz").affine)
    assert params["label_names"] == {"lesion": 1}
    assert params["measurements"][0]["point"] == POINT


def test_client_segments_session(client, server, studies):
    created = client.create_session(str(studies / "scan.nii.gz"))
    session = created["session_id"]
    file, _ = client.infer("tiny", "anything", {"foreground": [POINT], "num_samples": 3}, session_id=session)
    np.testing.assert_array_equal(nibabel.load(file).get_fdata(), consensus(server.models["tiny"]))
    assert client.get_session(session)["name"] == session
    client.remove_session(session)
    with pytest.raises(Exception, match="Status: 404") as caught:
        client.get_session(session)
    assert caught.value.status_code == 404


def test_client_segments_uploaded_file_and_chooses_result(client, studies):
    params = {"points": [POINT], "num_samples": 3, "result": ["sample"], "sample": 2, "result_extension": ".nrrd"}
    file, answer = client.infer("tiny", "", params, file=str(studies / "scan.nii.gz"))
    assert Path(file).name == "sample-2.nrrd"
    assert Path(file).read_bytes().startswith(b"NRRD")
    assert (answer["result"], answer["sample"]) == ("sample", 2)


def test_slicer_request_without_model_gives_empty_segments(client):
    file, params = client.infer("", "scan", {})
    assert not nibabel.load(file).get_fdata().any()
    assert params["label_names"] == {"lesion": 1}


@pytest.mark.parametrize(
    ("arguments", "status", "cause"),
    [
        (("nothing", "scan", {}), 404, "there is no model 'nothing'"),
        (("tiny", "../scan", {"points": [POINT]}), 404, "there is no image '../scan'"),
        (("tiny", "scan", {}), 400, "give its position in scan"),
    ],
)
def test_client_receives_clear_errors(client, client_module, arguments, status, cause):
    with pytest.raises(client_module.MONAILabelClientException) as caught:
        client.infer(*arguments)
    assert f"Status: {status}" in caught.value.msg
    assert cause in caught.value.msg


def test_client_cannot_store_labels(client, client_module, studies):
    with pytest.raises(client_module.MONAILabelClientException) as caught:
        client.save_label("scan", str(studies / "scan.nii.gz"))
    assert "does not store images or labels" in caught.value.msg


def test_client_uses_token_in_the_address(client_module, server, studies, tmp_path):
    with listening(server, token="secret") as port:
        plain, open_ = (
            client_module.MONAILabelClient(f"http://127.0.0.1:{port}{path}", tmpdir=str(tmp_path))
            for path in ("/", "/secret/")
        )
        with pytest.raises(client_module.MONAILabelClientException) as caught:
            plain.info()
        assert caught.value.status_code == 401
        assert open_.info()["name"] == "PHiSeg"
        session = open_.create_session(str(studies / "scan.nii.gz"))["session_id"]
        file, _ = open_.infer("tiny", "", {"points": [POINT], "num_samples": 1}, session_id=session)
        assert nibabel.load(file).shape == (20, 22, 5)
