"""Tiny datasets, recipes and runs that many tests share, and the two ways to call the command line."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from phiseg.cli.main import main
from phiseg.data.npy import hash_array
from phiseg.data.prepare.phantom import prepare_phantom
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset

# No property test may fail because the machine is slow.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: tiny networks are faster without threads

MODELS = {
    "cvae": {"name": "cvae", "channels": [4, 4, 8], "latent_dimensions": 3, "blocks_per_level": 1},
    "ensemble": {"name": "ensemble", "channels": [4, 4, 8], "members": 2, "blocks_per_level": 1},
    "hprobunet": {"name": "hprobunet", "channels": [4, 4, 8], "num_levels": 2, "blocks_per_level": 1},
    "mcdropout": {"name": "mcdropout", "channels": [4, 4, 8], "dropout_levels": 2, "blocks_per_level": 1},
    "multihead": {"name": "multihead", "channels": [4, 4, 8], "heads": 3, "blocks_per_level": 1},
    "phiseg": {"name": "phiseg", "channels": [4, 4, 8], "num_levels": 2, "blocks_per_level": 1},
    "phiseg-ensemble": {
        "name": "phiseg-ensemble",
        "channels": [4, 4, 8],
        "members": 2,
        "num_levels": 2,
        "blocks_per_level": 1,
    },
    "probunet": {"name": "probunet", "channels": [4, 4, 8], "latent_dimensions": 3, "blocks_per_level": 1},
    "ccdm": {
        "name": "ccdm",
        "channels": [4, 4, 8],
        "diffusion_steps": 4,
        "num_steps": 3,
        "blocks_per_level": 1,
    },
    "mose": {
        "name": "mose",
        "channels": [4, 4, 8],
        "experts": 3,
        "training_samples": 2,
        "blocks_per_level": 1,
    },
    "flow-ssn": {
        "name": "flow-ssn",
        "channels": [4, 4, 8],
        "rank": 3,
        "monte_carlo": 4,
        "flow_channels": [4, 6],
        "flow_blocks": 1,
        "num_steps": 3,
        "blocks_per_level": 1,
    },
    "ssn": {"name": "ssn", "channels": [4, 4, 8], "rank": 3, "monte_carlo": 4, "blocks_per_level": 1},
    "unet": {"name": "unet", "channels": [4, 4, 8], "blocks_per_level": 1},
}
TRAIN = {
    "steps": 6,
    "batch_size": 4,
    "log_every": 1,
    "validate_every": 3,
    "checkpoint_every": 2,
    "validation_samples": 4,
    "recalibration_batches": 2,
    "accelerator": "cpu",
}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """Report in one line each, below all others, how many browser and PACS tests were skipped, and why."""
    yield
    for folder, kind in (("tests/browser/", "browser"), ("tests/pacs/", "PACS")):
        skipped = [report for report in terminalreporter.stats.get("skipped", []) if folder in report.nodeid]
        reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
        for reason, number in reasons.items():
            terminalreporter.write_line(f"{number} {kind} tests skipped: {reason}", yellow=True)


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def bfloat16():
    """Return the precision bfloat16 for sampling; skip the test where the CPU cannot compute in it."""
    from phiseg.compute.devices import bf16_failure

    if reason := bf16_failure():
        pytest.skip(f"this CPU cannot compute in bf16: {reason}")
    return "bfloat16"


@pytest.fixture(scope="session")
def make_recipe():
    """Return a function that makes a recipe which trains in less than a second."""
    from phiseg.compute.devices import bf16_failure
    from phiseg.training.recipe import Recipe

    def make(model="phiseg", *, augment=None, settings=None, **changes):
        if changes.get("precision") == "bf16-mixed" and (reason := bf16_failure()):
            pytest.skip(f"this CPU cannot compute in bf16: {reason}")
        values = {
            "name": f"tiny-{model}",
            "model": MODELS[model] | (settings or {}),
            "augment": augment or {},
            "train": TRAIN | changes,
        }
        return Recipe.parse(values, where="the test")

    return make


@pytest.fixture
def recipe_file(make_recipe, tmp_path):
    """Return a function that writes such a recipe as a file for the command line."""

    def write(model="phiseg", **changes):
        path = tmp_path / f"tiny-{model}.yaml"
        path.write_text(make_recipe(model, **changes).to_yaml())
        return path

    return write


@pytest.fixture(params=["channels_first", "channels_last"])
def layout(request, monkeypatch):
    """Train in each memory layout, whichever one this CPU would choose."""
    import torch

    from phiseg.training import memory_format

    capability = "AVX2" if request.param == "channels_first" else "AVX512"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(memory_format, "MIN_WIDTH", 1)
    return request.param


@pytest.fixture(scope="session")
def lesions(tmp_path_factory):
    """15 lesions of 16 x 16 pixels with 4 annotators: 9 to train on, 3 to validate, 3 to test."""
    folder = tmp_path_factory.mktemp("data") / "lesions"
    prepare_phantom("lesion", folder, size=16, num_cases=15, progress=False)
    return folder


@pytest.fixture(scope="session")
def zones(tmp_path_factory):
    """10 glands of 16 x 16 pixels with 3 classes and 6 annotators."""
    folder = tmp_path_factory.mktemp("data") / "zones"
    prepare_phantom("zones", folder, size=16, num_cases=10, progress=False)
    return folder


@pytest.fixture(scope="session")
def gaps(lesions, tmp_path_factory):
    """The lesions, with annotator `row % 4` missing in every row and another one in every fifth."""
    source = Dataset.open(lesions)

    def case(row):
        valid = np.ones(4, dtype=bool)
        valid[row % 4] = False
        valid[(row + 1) % 4] &= row % 5 != 0
        name = source.cases[row]["case"]
        return Case(name, source.cases[row]["patient"], source.images[row], source.labels[row], valid)

    folder = tmp_path_factory.mktemp("data") / "gaps"
    write_dataset(
        folder,
        name="gaps",
        classes=source.info.classes,
        num_annotators=4,
        image_shape=source.images.shape[1:],
        image_dtype=source.images.dtype,
        intensity=source.info.intensity,
        cases=map(case, range(source.num_cases)),
        splits=source.splits,
    )
    return folder


@pytest.fixture(scope="session")
def trained(make_recipe, lesions, tmp_path_factory):
    """Return a function that gives the finished run of a model on the lesions; copy it before changing it."""
    from phiseg.training.loop import train

    folder = tmp_path_factory.mktemp("runs")

    def run(model="phiseg"):
        if not (folder / model).exists():
            train(make_recipe(model), lesions, folder / model, progress=False)
        return folder / model

    return run


@pytest.fixture(scope="session")
def shared_data():
    """Return a function that finds real data beside the project, and skips the test where there is none."""
    folder = Path(__file__).parents[2] / "shared" / "data"

    def find(name):
        if not (folder / name).exists():
            pytest.skip(f"../shared/data/{name} is not there")
        return folder / name

    return find


@pytest.fixture
def copy(tmp_path):
    """Return a function that copies a folder, so that a test may damage it."""
    return lambda folder, name="copy": Path(shutil.copytree(folder, tmp_path / name))


@pytest.fixture(scope="session")
def replace_arrays():
    """Return a function that changes arrays of a dataset, and what its manifest says of them."""

    def replace(folder, **arrays):
        info = json.loads((folder / "dataset.json").read_text())
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
            info["arrays"][name]["sha256"] = hash_array(array)
        (folder / "dataset.json").write_text(json.dumps(info))

    return replace


@pytest.fixture
def cli(capfd):
    """Return a function that runs the command line in this process."""

    def run(*words):
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit:
            main([str(word) for word in words])
        return Result(exit.value.code or 0, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def phiseg():
    """Return a function that runs the installed command in a process of its own."""

    def run(*words, **options):
        done = subprocess.run(
            phiseg_command(*words), capture_output=True, text=True, timeout=600, check=False, **options
        )
        return Result(done.returncode, done.stdout, done.stderr)

    run.command = phiseg_command
    return run


def phiseg_command(*words):
    return [str(Path(sys.executable).with_name("phiseg")), *map(str, words)]


@pytest.fixture
def default_hangup():
    """Let SIGHUP end the processes of a test: under nohup, they would inherit that it is ignored."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)
