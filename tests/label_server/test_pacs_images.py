"""Images of a PACS: listed, fetched once, and deleted. tests/pacs has the same with a real server."""

import gc

import pytest

from helpers.dicom_slices import write_scan
from helpers.label_server import client_of, infer, make_server
from helpers.small_viewer import make_model
from phiseg.core.errors import DataError
from phiseg.label_server import pacs_images
from phiseg.label_server.pacs_images import PacsImages

PARAMS = {"foreground": [[3, 2, 2]], "num_samples": 2}


class FakePacs:
    """Two CT series and a segmentation; counts what is requested."""

    def __init__(self):
        self.requests = []

    def list_series(self, *, limit):
        self.requests.append("list")
        return {"1.2.8": "CT", "1.2.7": "CT", "1.2.9": "SEG"}

    def fetch_series(self, series_uid, folder):
        self.requests.append(series_uid)
        if series_uid not in ("1.2.7", "1.2.8"):
            raise DataError(f"pacs has no series {series_uid}; check the UID")
        write_scan(folder, uid=series_uid)


@pytest.fixture
def pacs():
    return FakePacs()


@pytest.fixture
def server(pacs):
    server = make_server(models={"ct": make_model(low=-1000, high=3000)}, images=PacsImages(pacs))
    yield server
    server.close()


def test_scans_are_listed_without_fetching(server, pacs):
    client = client_of(server)
    assert set(client.get("/datastore/?output=all").json()["objects"]) == {"1.2.7", "1.2.8"}
    assert client.get("/info/").json()["datastore"]["total"] == 2
    assert client.post("/activelearning/next").json() == {"id": "1.2.7", "name": "1.2.7.nii.gz"}
    assert pacs.requests == ["list"]


def test_series_is_fetched_once(server, pacs):
    client = client_of(server)
    answer = infer(client, "ct", image="1.2.8", output="dicom_seg", params=PARAMS)
    assert answer.headers["content-type"] == "application/dicom", answer.text
    assert infer(client, "ct", image="1.2.8", output="json", params=PARAMS).status_code == 200
    assert client.get("/datastore/image", params={"image": "1.2.8"}).status_code == 200
    assert pacs.requests == ["1.2.8"]


def test_unknown_series_are_reported(server, pacs):
    client = client_of(server)
    answer = infer(client, "ct", image="1.2.99", params=PARAMS)
    assert (answer.status_code, answer.json()["message"]) == (400, "pacs has no series 1.2.99; check the UID")
    assert infer(client, "ct", image="../1.2.8", params=PARAMS).status_code == 404
    assert pacs.requests == ["1.2.99"]
    assert not list(server.images._folder.iterdir())


def test_series_in_use_is_kept(server, monkeypatch):
    monkeypatch.setattr(pacs_images, "MAX_FETCHED", 1)
    waiting = server.images.find("1.2.7")
    server.images.find("1.2.8")
    assert len(list(waiting.path.iterdir())) == 5
    path = waiting.path
    del waiting
    assert not path.exists()


def test_failed_request_does_not_keep_series(server, monkeypatch):
    monkeypatch.setattr(pacs_images, "MAX_FETCHED", 1)
    client = client_of(server)
    outside = PARAMS | {"foreground": [[99, 2, 2]]}
    gc.disable()  # a reference cycle would keep the series
    try:
        assert infer(client, "ct", image="1.2.7", params=outside).status_code == 400
        assert infer(client, "ct", image="1.2.8", params=PARAMS).status_code == 200
        assert len(list(server.images._folder.iterdir())) == 1
    finally:
        gc.enable()


def test_fetched_series_are_limited_and_deleted(server, monkeypatch):
    monkeypatch.setattr(pacs_images, "MAX_FETCHED", 1)
    for uid in ("1.2.7", "1.2.8"):
        scan = server.images.find(uid)
    assert list(server.images._folder.iterdir()) == [scan.path]
    server.close()
    assert not server.images._folder.exists()
