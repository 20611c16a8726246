"""Datasets larger than memory: random access and training with limited memory."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory as Linux does")

LIMITED = """
import json, resource, sys
from pathlib import Path

import numpy as np
import torch

from phiseg.data.augment import AugmentConfig
from phiseg.data.loader import TrainingStream
from phiseg.data.store import Dataset

status = Path("/proc/self/status").read_text().split()
limit = 1024 * int(status[status.index("VmData:") + 1]) + 400 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

dataset = Dataset.open(Path(sys.argv[1]))
try:
    np.array(dataset.images)
except MemoryError:
    print("does not fit")
"""

READ = """
stream = TrainingStream(dataset, batch_size=4, seed=0, augment=AugmentConfig())
rows = np.concatenate([stream.batch(step * 1000).rows for step in range(8)])
print(np.ptp(rows) > len(stream.rows) / 2)
"""

TRAIN = """
from phiseg.training.loop import train
from phiseg.training.recipe import Recipe

recipe = Recipe.parse(json.loads(sys.argv[3]), where="the test")
train(recipe, dataset.path, Path(sys.argv[2]), progress=False)
print((Path(sys.argv[2]) / "model" / "model.safetensors").is_file())
"""


def write_sparse(folder, *, num_cases, size, hashes):
    """Write a dataset of empty images that takes hardly any space on the disk."""
    folder.mkdir()
    arrays = {}
    for name, shape, dtype in (
        ("images", (num_cases, 1, size, size), np.dtype(np.float32)),
        ("labels", (num_cases, 1, size, size), np.dtype(np.uint8)),
    ):
        with (folder / f"{name}.npy").open("wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + int(np.prod(shape)) * dtype.itemsize)
        digest = hashlib.sha256()
        for _ in range(num_cases if hashes else 0):
            digest.update(bytes(size * size * dtype.itemsize))
        arrays[name] = {"sha256": digest.hexdigest(), "shape": shape, "dtype": str(dtype)}
    valid = np.ones((num_cases, 1), dtype=bool)
    np.save(folder / "valid.npy", valid)
    arrays["valid"] = {"sha256": hashlib.sha256(valid.tobytes()).hexdigest(), "shape": valid.shape, "dtype": "bool"}
    names = [f"p{row}" for row in range(num_cases)]
    (folder / "cases.csv").write_text("case,patient\n" + "".join(f"{name},{name}\n" for name in names))
    (folder / "splits.json").write_text(json.dumps({"train": names[2:], "val": names[:2]}))
    info = {
        "format": "phiseg-dataset",
        "version": 1,
        "name": "sparse",
        "classes": ["background", "lesion"],
        "num_annotators": 1,
        "image_channels": 1,
        "size": [size, size],
        "intensity": {"kind": "zscore"},
        "arrays": arrays,
    }
    (folder / "dataset.json").write_text(json.dumps(info))


def run_limited(script, *arguments):
    words = [sys.executable, "-c", LIMITED + script, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def test_batches_are_read_from_many_gigabytes(tmp_path):
    write_sparse(tmp_path / "data", num_cases=8192, size=512, hashes=False)
    assert (tmp_path / "data" / "images.npy").stat().st_size > 8e9
    assert run_limited(READ, tmp_path / "data") == ["does not fit", "True"]


@pytest.mark.slow
def test_dataset_larger_than_memory_trains(tmp_path, make_recipe):
    write_sparse(tmp_path / "data", num_cases=8192, size=128, hashes=True)
    recipe = make_recipe("unet", steps=2).model_dump(mode="json")
    assert run_limited(TRAIN, tmp_path / "data", tmp_path / "run", json.dumps(recipe)) == ["does not fit", "True"]
