"""Sessions: uploaded images, their use and their end."""

import gzip

import numpy as np
import pytest
import SimpleITK

from helpers.dicom_slices import write_scan
from helpers.label_server import POINT, client_of, infer, make_server, read_nifti_bytes
from helpers.small_viewer import make_model, nifti_bytes, random_volume
from phiseg.imaging.itk_files import write_itk
from phiseg.label_server import sessions

PARAMS = {"foreground": [POINT], "num_samples": 2}


@pytest.fixture
def server():
    server = make_server()
    yield server
    server.sessions.close()


@pytest.fixture
def client(server):
    return client_of(server)


def upload(client, *files, **query):
    answer = client.put("/session/", params=query, files=[("files", file) for file in files])
    assert answer.status_code == 200, answer.text
    return answer.json()


def scan_file(seed=0, name="scan.nii.gz"):
    return name, gzip.compress(nifti_bytes(random_volume(seed=seed)))


def test_session_is_segmented_like_the_same_file_of_the_studies(client, studies):
    session = upload(client, scan_file())["session_id"]
    known = infer(client_of(make_server(studies)), image="scan", output="image", params=PARAMS)
    answer = infer(client, image="ignored", session_id=session, output="image", params=PARAMS)
    assert answer.content == known.content


@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
def test_slicer_may_upload_other_formats(client, tmp_path, suffix):
    write_itk(tmp_path / f"a{suffix}", random_volume())
    session = upload(client, (f"a{suffix}", (tmp_path / f"a{suffix}").read_bytes()))["session_id"]
    params = {**PARAMS, "result_extension": suffix}
    answer = infer(client, session_id=session, output="image", params=params)
    (tmp_path / f"b{suffix}").write_bytes(answer.content)
    image, labels = (SimpleITK.ReadImage(str(tmp_path / f"{name}{suffix}")) for name in "ab")
    assert (labels.GetSize(), labels.GetOrigin()) == (image.GetSize(), image.GetOrigin())
    np.testing.assert_allclose(labels.GetDirection(), image.GetDirection(), atol=1e-9)


def test_series_may_be_uploaded(tmp_path):
    write_scan(tmp_path)
    client = client_of(make_server(models={"ct": make_model(low=-1000, high=3000)}))
    session = upload(client, *((path.name, path.read_bytes()) for path in tmp_path.iterdir()))["session_id"]
    params = {"foreground": [[3, 2, 2]], "num_samples": 2}
    answer = infer(client, "ct", session_id=session, output="dicom_seg", params=params)
    assert answer.headers["content-type"] == "application/dicom", answer.text
    image = client.get(f"/session/{session}", params={"image": True})
    assert read_nifti_bytes(image.content).shape == (7, 6, 5)


def test_session_is_described_without_paths(client, server):
    created = upload(client, scan_file(), expiry=60)
    info = client.get(f"/session/{created['session_id']}").json()
    assert info == created["session_info"]
    assert (info["image"], info["expiry"]) == ("scan.nii.gz", 60)
    assert str(server.sessions.folder) not in str(info)
    assert upload(client, scan_file(), expiry=10**9)["session_info"]["expiry"] == sessions.EXPIRY


def test_deleted_session_leaves_no_files(client, server):
    session = upload(client, scan_file())["session_id"]
    infer(client, session_id=session, params=PARAMS)
    assert list(server.sessions.folder.iterdir())
    assert client.delete(f"/session/{session}").status_code == 200
    assert not list(server.sessions.folder.iterdir())
    assert not server.opened._open
    for answer in (
        client.get(f"/session/{session}"),
        client.delete(f"/session/{session}"),
        infer(client, session_id=session, params=PARAMS),
    ):
        assert answer.status_code == 404


def test_session_expires_after_its_last_use(client, server, monkeypatch):
    now = sessions.time.time()
    session = upload(client, scan_file(), expiry=100)["session_id"]
    monkeypatch.setattr(sessions.time, "time", lambda: now + 90)
    assert infer(client, session_id=session, params=PARAMS).status_code == 200
    monkeypatch.setattr(sessions.time, "time", lambda: now + 180)
    assert client.get(f"/session/{session}").status_code == 200
    monkeypatch.setattr(sessions.time, "time", lambda: now + 200)
    assert client.get(f"/session/{session}").status_code == 404
    assert not list(server.sessions.folder.iterdir())


def test_session_that_expires_while_its_request_waits_is_segmented(client, server, monkeypatch):
    session = upload(client, scan_file())["session_id"]
    monkeypatch.setattr(server, "compute", compute_after(lambda: server.sessions.remove(session), server.compute))
    assert infer(client, session_id=session, output="json", params=PARAMS).status_code == 200
    assert infer(client, session_id=session, params=PARAMS).status_code == 404
    assert not list(server.sessions.folder.iterdir())


def compute_after(event, compute):
    """Return `compute` with an event while the request waits."""

    async def compute_later(work, has_left):
        event()
        return await compute(work, has_left)

    return compute_later


def test_rejected_upload_leaves_no_files(client, server):
    assert client.put("/session/", files=[("files", ("a.nii", b"x"))]).status_code == 400
    two = [("files", scan_file(name=f"{number}.nii.gz")) for number in range(2)]
    answer = client.put("/session/", files=two)
    assert (answer.status_code, answer.json()["message"]) == (400, "the upload contains 2 scans; upload one scan")
    assert client.put("/session/").status_code == 400
    assert not list(server.sessions.folder.iterdir())


def test_number_and_size_of_sessions_are_limited(client, server, monkeypatch):
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    first = upload(client, scan_file())["session_id"]
    upload(client, scan_file())
    answer = client.put("/session/", files=[("files", scan_file())])
    assert (answer.status_code, "too many sessions" in answer.text) == (400, True)
    client.delete(f"/session/{first}")
    monkeypatch.setattr(sessions, "MAX_SESSION_BYTES", 1000)
    assert client.put("/session/", files=[("files", scan_file())]).status_code == 400
    assert len(list(server.sessions.folder.iterdir())) == 1


def test_closed_server_leaves_no_folder(client, server):
    upload(client, scan_file())
    server.sessions.close()
    assert not server.sessions.folder.exists()
