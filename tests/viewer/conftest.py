"""A viewer behind a client, and a small DICOM series."""

import pytest
from fastapi.testclient import TestClient

from helpers.dicom_slices import write_scan
from helpers.small_viewer import Served, make_model
from phiseg.viewer.server import Viewer, create_app


@pytest.fixture(scope="session")
def serve():
    """Return a function that puts a viewer of a model, and of some paths, behind a client."""

    def serve(model=None, *paths, token=None, strict=None, **options):
        viewer = Viewer.of(model or make_model(), "tiny", **{f"strict_{strict}": True} if strict else {})
        viewer.add(paths)
        options = {"base_url": "http://localhost", "raise_server_exceptions": False} | options
        return Served(viewer, TestClient(create_app(viewer, token=token), **options))

    return serve


@pytest.fixture(scope="session")
def served(serve):
    """One viewer for all tests that leave it as it is."""
    return serve()


@pytest.fixture
def dicom_files(tmp_path):
    """The files of a small CT series, (name, bytes) each."""
    write_scan(tmp_path / "series")
    return [(path.name, path.read_bytes()) for path in sorted((tmp_path / "series").iterdir())]
