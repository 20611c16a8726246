"""Requests that are rejected, and limits."""

import gzip
import json
import socket
import time

import httpx
import numpy as np
import pytest

from helpers.label_server import POINT, UID, client_of, infer, listening, make_server
from helpers.small_viewer import make_model, nifti_bytes, random_volume
from phiseg.core.errors import ConfigError
from phiseg.imaging.nifti_files import write_nifti
from phiseg.label_server import app, inference_service
from phiseg.viewer import access

GOOD = {"foreground": [POINT], "num_samples": 1}


def error_of(answer, status):
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"message"}
    return answer.json()["message"]


def test_unknown_model_names_the_models(served):
    assert "there is no model 'tinny' (did you mean 'tiny'" in error_of(infer(served.client, "tinny"), 404)


@pytest.mark.parametrize(
    "image",
    ["nothing", "../scan", "/etc/passwd", "..%2f..%2fetc%2fpasswd", "scan.nii.gz", "scan\0", "series/../scan"],
)
def test_image_ids_are_only_looked_up(served, image):
    assert "there is no image" in error_of(infer(served.client, image=image, params=GOOD), 404)
    assert "there is no image" in error_of(served.client.get("/datastore/image", params={"image": image}), 404)


def test_image_is_required(served):
    assert "there is no image; give ?image=ID" in error_of(infer(served.client, params=GOOD), 400)
    assert "no such session" in error_of(infer(served.client, session_id="..", params=GOOD), 404)


@pytest.mark.parametrize(
    "params", [{}, {"foreground": [], "background": [POINT]}, {"label": "lesion", "lesion": []}]
)
def test_missing_point_is_explained(served, params):
    message = error_of(infer(served.client, image="scan", params=params), 400)
    assert message.startswith("the model segments crops around a lesion; give its position in scan: place a point")


@pytest.mark.parametrize(
    ("params", "cause"),
    [
        ({"foreground": [[1, 2]]}, "points.0.2: Field required"),
        ({"foreground": [["a", 2, 3]]}, "points.0.0"),
        ({"foreground": [[1, 2, 99]]}, "the point (1, 2, 99) is outside the 20 x 22 x 5 voxels"),
        ({"foreground": [POINT] * 21}, "at most 20 items"),
        ({"num_samples": 0}, "num_samples: Input should be greater than or equal to 1"),
        ({"num_samples": 10**6}, "num_samples: Input should be less than or equal to 100"),
        ({"result": "sample", "sample": 3, "num_samples": 2}, "sample 3 does not exist; 2 samples are drawn"),
        ({"result": "everything"}, "result: Input should be 'labels'"),
        ({"quantile": 1.5}, "quantile"),
        ({"result_extension": "/../../x"}, "result_extension"),
        ({"result_dtype": "object"}, "result_dtype"),
    ],
)
def test_invalid_parameters_are_named(served, params, cause):
    assert cause in error_of(infer(served.client, image="scan", params={"foreground": [POINT], **params}), 400)


@pytest.mark.parametrize("text", ["{", "[1, 2]", "3", "[" * 100_000, '{"seed": NaN}'])
def test_params_must_be_a_json_object(served, text):
    answer = served.client.post("/infer/tiny?image=scan", files=[("params", (None, text))])
    assert "param" in error_of(answer, 400)


def test_seg_needs_a_series_and_a_segmentation(served):
    answer = infer(served.client, image="scan", output="dicom_seg", params=GOOD)
    assert "DICOM SEG needs a DICOM series" in error_of(answer, 400)
    params = {"foreground": [[3, 2, 2]], "num_samples": 1, "result": "gamma"}
    answer = infer(served.client, "ct", image=UID, output="dicom_seg", params=params)
    assert "a gamma map is not a segmentation" in error_of(answer, 400)
    assert "output" in error_of(infer(served.client, image="scan", output="picture", params=GOOD), 422)


def test_studies_are_read_only(served):
    for method, path in (
        ("PUT", "/datastore/label?image=scan"),
        ("PUT", "/datastore/?image=x"),
        ("DELETE", "/datastore/image?id=scan"),
    ):
        assert "does not store images or labels" in error_of(served.client.request(method, path), 405)


def test_unsupported_routes_are_not_found(served):
    for path in ("/train/?check_if_running=true", "/auth/", "/docs", "/openapi.json"):
        error_of(served.client.get(path), 404)


def test_image_that_does_not_match_the_model_is_explained(served):
    files = [("file", ("rgb.nii.gz", gzip.compress(nifti_bytes(random_volume((20, 22, 5, 3))))))]
    message = error_of(infer(served.client, params=GOOD, files=files), 400)
    assert message.startswith("rgb.nii.gz has 3 channels, but the model takes 1")


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("a.nii.gz", b"not nifti", "a.nii.gz cannot be read"),
        ("../../a.nrrd", b"NRRD0004\nbroken", "a.nrrd cannot be read"),
    ],
)
def test_damaged_upload_is_explained_without_paths(served, name, content, cause):
    message = error_of(served.client.put("/session/", files=[("files", (name, content))]), 400)
    assert cause in message
    assert "phiseg-sessions" not in message


def test_claimed_size_is_checked_before_reading(served):
    header = b"NRRD0004\ntype: double\ndimension: 3\nsizes: 100000 100000 100000\nencoding: raw\nendian: little\n\n"
    message = error_of(served.client.put("/session/", files=[("files", ("big.nrrd", header))]), 400)
    assert "big.nrrd: its voxels need more than" in message


def test_upload_beyond_the_limit_is_rejected(monkeypatch):
    monkeypatch.setattr(app, "MAX_UPLOAD", 5000)
    client = client_of(make_server())
    for answer in (
        client.put("/session/", files=[("files", ("a.nii", bytes(6000)))]),
        infer(client, params=GOOD, files=[("file", ("a.nii", bytes(6000)))]),
        client.put(
            "/session/",
            content=iter([bytes(3000)] * 2),
            headers={"content-type": "multipart/form-data; boundary=x"},
        ),
    ):
        assert "uploads are limited to 4 KB" in error_of(answer, 413)
    answer = client.post("/activelearning/next", content=bytes(1 << 17))
    assert "limited" in error_of(answer, 413)


def test_too_many_uploads_at_once_are_rejected(studies):
    full = make_server(studies)
    full.num_uploads = app.MAX_UPLOADS
    client = client_of(full)
    file = ("a.nii", bytes(1 << 17))
    assert "other uploads are in progress" in error_of(infer(client, params=GOOD, files=[("file", file)]), 503)
    assert "other uploads are in progress" in error_of(client.put("/session/", files=[("files", file)]), 503)
    chunked = {"content-type": "multipart/form-data; boundary=x"}
    assert "other uploads are" in error_of(client.put("/session/", content=iter([b"--x"]), headers=chunked), 503)
    assert infer(client, image="scan", output="json", params=GOOD).status_code == 200


def test_stalled_upload_ends(studies, monkeypatch):
    monkeypatch.setattr(access, "MAX_PAUSE", 0.3)
    server = make_server(studies)
    with listening(server) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(60)
        head = "PUT /session/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
        client.sendall(f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n".encode())
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 408 ")
    assert server.num_uploads == 0
    assert not list(server.sessions.folder.iterdir())


def test_long_fields_are_rejected(served):
    answer = served.client.post("/infer/tiny?image=scan", files=[("params", (None, "x" * 100_000))])
    assert "form fields are limited to 64 KB" in error_of(answer, 400)


def test_request_that_takes_too_long_ends(studies, monkeypatch):
    predict = inference_service.predict_prepared

    def predict_slowly(*arguments, **options):
        time.sleep(1.5)
        return predict(*arguments, **options)

    monkeypatch.setattr(inference_service, "predict_prepared", predict_slowly)
    with listening(make_server(studies, time_limit=0.0)) as port:
        url = f"http://127.0.0.1:{port}/infer/tiny?image=scan"
        answer = httpx.post(url, data={"params": json.dumps(GOOD)}, timeout=60)
    assert "took more than 0 s" in error_of(answer, 504)


def test_bug_is_an_internal_error_without_details(studies, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("secret")

    monkeypatch.setattr(inference_service, "predict_prepared", fail)
    message = error_of(infer(client_of(make_server(studies)), image="scan", params=GOOD), 500)
    assert message == "unexpected error (RuntimeError); see the terminal of the server for details"


@pytest.mark.parametrize("host", ["example.org", "192.168.0.1"])
def test_other_hosts_are_rejected_without_token(served, host):
    error_of(served.client.get("/info/", headers={"host": host}), 421)


def test_token_is_accepted_in_path_or_as_bearer(studies):
    client = client_of(make_server(studies), token="secret", base_url="http://lab.example:8000")
    for path in ("/info/", "/wrong/info/", "/secretx/info/", "/datastore/image?image=scan", "/"):
        error_of(client.get(path), 401)
    error_of(client.get("/info/", headers={"authorization": "Bearer wrong"}), 401)
    error_of(client.put("/session/", files=[("files", ("a.nii", b"x"))]), 401)
    error_of(infer(client, image="scan", params=GOOD), 401)
    assert client.get("/secret/info/").json()["name"] == "PHiSeg"
    assert client.get("/info/", headers={"authorization": "Bearer secret"}).status_code == 200
    assert infer(client, path="/secret", image="scan", output="json", params=GOOD).status_code == 200
    assert client.get("/secret/datastore/image", params={"image": "scan"}).status_code == 200
    client.cookies.clear()
    error_of(client.get("/info/"), 401)


def test_pages_of_other_sites_need_permission(studies):
    ohif, other = "http://localhost:3000", "http://evil.example"
    client = client_of(make_server(studies), origins=[ohif])
    answer = client.get("/info/", headers={"origin": ohif})
    assert answer.headers["access-control-allow-origin"] == ohif
    error_of(client.get("/info/", headers={"origin": other}), 403)
    assert "access-control-allow-origin" not in client.get("/info/", headers={"origin": other}).headers
    preflight = {"origin": ohif, "access-control-request-method": "PUT"}
    assert client.options("/session/", headers=preflight).status_code == 200
    error_of(client_of(make_server(studies)).get("/info/", headers={"origin": ohif}), 403)


def test_two_models_of_one_name_are_rejected():
    with pytest.raises(ConfigError, match="two models have the same name"):
        inference_service.LabelServer.of([("a", make_model()), ("a", make_model())])


def test_memory_of_images_is_limited(tmp_path):
    for number in range(3):
        write_nifti(tmp_path / f"{number}.nii.gz", random_volume(seed=number))
    limited = make_server(tmp_path)
    limited.opened.max_images = 2
    client = client_of(limited)
    found = [infer(client, image=str(n), output="json", params=GOOD).json()["measurements"] for n in (0, 1, 2, 0)]
    assert found[3] == found[0] != found[1]
    assert len(limited.opened._open) == 2
    np.testing.assert_equal([path.name for path, _ in limited.opened._open], ["2.nii.gz", "0.nii.gz"])
