"""A label server of tiny models, behind a client in the same process or on a real socket."""

import gzip
import json
from contextlib import contextmanager
from threading import Thread

import nibabel
import uvicorn
from fastapi.testclient import TestClient

from helpers.small_viewer import make_model
from phiseg.cli.listening import listen
from phiseg.label_server.app import create_app
from phiseg.label_server.inference_service import LabelServer
from phiseg.label_server.served_images import FolderImages

UID = "1.2.826.0.1.99"
"""Series UID of the DICOM scan."""
POINT = [9, 12, 2]
"""A voxel of the NIfTI file."""


def make_server(folder=None, *, models=None, images=None, **options):
    """A server of models by name, by default a tiny lesion-crop model `tiny`, and of the scans in a folder."""
    images = images or (FolderImages.of(folder)[0] if folder else FolderImages())
    return LabelServer.of(list((models or {"tiny": make_model()}).items()), images=images, **options)


def client_of(server, *, token=None, origins=(), **options):
    options = {"base_url": "http://localhost", "raise_server_exceptions": False} | options
    return TestClient(create_app(server, token=token, origins=origins), **options)


def infer(client, model="tiny", files=None, path="", **query):
    """Send a request; the keyword `params` is sent as JSON."""
    fields = {"params": json.dumps(query.pop("params", {}))}
    parts = [(name, (None, value)) for name, value in fields.items()]
    return client.post(f"{path}/infer/{model}", params=query, files=[*parts, *(files or [])])


def read_nifti_bytes(content):
    return nibabel.Nifti1Image.from_bytes(gzip.decompress(content))


@contextmanager
def listening(server, **options):
    """Run a server on a free port of this machine, and return the port."""
    listener = listen("127.0.0.1", 0)
    app = create_app(server, **{"token": None, **options})
    config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    serving = uvicorn.Server(config)
    thread = Thread(target=serving.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        serving.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
