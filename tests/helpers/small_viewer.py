"""Tiny untrained models behind a viewer, and clients that talk to it as the page does."""

import base64
import io
import json
import zlib
from typing import NamedTuple

import nibabel
import numpy as np
import torch
from fastapi.testclient import TestClient

from phiseg.imaging.volume import Volume
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.phiseg_ensemble import PHiSegEnsembleConfig
from phiseg.models.registry import build_model
from phiseg.viewer.server import Viewer

SIZE = 16
AFFINE = np.array([[-0.8, 0, 0, 10], [0, 0.9, 0, -20], [0, 0, 2.0, 5], [0, 0, 0, 1]])


def make_model(
    *,
    members=None,
    presence=False,
    centred_on="lesion",
    classes=("background", "lesion"),
    low=0,
    high=1,
    dims=2,
    channels=1,
    **preprocessing,
):
    """An untrained PHiSeg, or an ensemble of them, whose samples differ."""
    settings = {
        "channels": (4, 4, 8),
        "num_levels": 2,
        "blocks_per_level": 1,
        "num_classes": len(classes),
        "head_init": 1.0,
        "presence": presence,
        "dims": dims,
        "image_channels": channels,
    }
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = build_model(
            PHiSegEnsembleConfig(members=members, **settings) if members else PHiSegConfig(**settings)
        )
    model.preprocessing = {
        "classes": list(classes),
        "image_channels": channels,
        "size": [SIZE, SIZE],
        "intensity": {"kind": "window", "low": low, "high": high},
        "centred_on": centred_on,
        **preprocessing,
    }
    return model.eval()


def random_volume(shape=(20, 22, 5), affine=AFFINE, seed=0):
    return Volume(np.random.default_rng(seed).random(shape).astype(np.float32), affine)


def nifti_bytes(volume):
    image = nibabel.Nifti1Image(volume.values, volume.affine)
    image.set_sform(volume.affine, code=1)
    return image.to_bytes()


class Served(NamedTuple):
    """A viewer and a client of it."""

    viewer: Viewer
    client: TestClient

    def click(self, scan="example", point=None, **settings):
        """Return the messages of a click, by type; labels of all samples messages joined, with their counts."""
        point = point or self.client.get(f"/api/scans/{scan}").json()["start"]
        return self.messages(self.client.post("/api/predictions", json={"scan": scan, "point": point, **settings}))

    def messages(self, response):
        assert response.status_code == 200, response.text
        return [json.loads(line) for line in response.text.splitlines()]

    def drop(self, *files, **options):
        """Upload files, (name, bytes) each."""
        parts = [("files", (name, io.BytesIO(content))) for name, content in files]
        return self.client.post("/api/scans", files=parts, **options)


def of_type(messages, kind):
    found = [message for message in messages if message["type"] == kind]
    assert found, [message["type"] for message in messages] + [m.get("message") for m in messages]
    return found


def unpacked(text, *shape, dtype=np.uint8):
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype).reshape(shape)


def samples_of(messages):
    """Return the labels (S, h, w) that samples messages brought, in order and without a gap."""
    parts = []
    for message in of_type(messages, "samples"):
        assert message["first"] == sum(map(len, parts))
        parts.append(unpacked(message["labels"], message["number"], *box_shape(message)))
    return np.concatenate(parts)


def box_shape(message):
    return message["box"]["height"], message["box"]["width"]


def box_slices(message):
    box = message["box"]
    return slice(box["row"], box["row"] + box["height"]), slice(box["column"], box["column"] + box["width"])
