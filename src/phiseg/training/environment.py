"""Records of a run: its environment and its dataset."""

import hashlib
import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

import phiseg
from phiseg.data.store import Dataset


def dataset_identity(dataset: Dataset) -> str:
    """Return a hash of the data of a run: the pixels, and the cases of the training and validation splits."""
    seen = [[dataset.cases[row]["case"] for row in dataset.rows(split)] for split in ("train", "val")]
    return hashlib.sha256(json.dumps([dataset.fingerprint, seen]).encode()).hexdigest()


def describe_environment(fabric: Fabric, dataset: Dataset) -> dict[str, Any]:
    """Return a description of the environment for reproducing the run, without times and paths."""
    return {
        **describe_software(),
        "device": fabric.device.type,
        "processes": fabric.world_size,
        "threads": torch.get_num_threads(),
        "dataset": {"name": dataset.info.name, "fingerprint": dataset.fingerprint},
    }


def describe_software() -> dict[str, Any]:
    """Return the versions of the software, and the commit if phiseg runs from its repository."""
    packages = ("phiseg", "torch", "lightning-fabric", "numpy")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in packages},
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Return the commit of the repository of phiseg, marked if files were changed; None outside a repository."""
    package = Path(phiseg.__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(  # noqa: S603
            ["git", *words],  # noqa: S607
            cwd=package,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) / "src" / "phiseg" != package.resolve():
            return None
        return git("rev-parse", "HEAD") + (" (changed)" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None
