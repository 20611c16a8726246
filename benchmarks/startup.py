"""Startup time of the command line, and the parts of the time of `phiseg predict`."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.measuring import ROOT, Scale, Section, in_turns, in_words
from benchmarks.tasks import build, small_model
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume
from phiseg.models import save_model


def run(scale: Scale) -> list[Section]:
    """Time `phiseg --help` and the parts of a prediction."""
    (help_time,) = in_turns([lambda: _python("-m", "phiseg", "--help")], scale.repeats + 2)
    table = Section("Start-up", ("what", "time", "target"))
    table.rows.append(["`phiseg --help`", str(help_time), "under 0.5 s"])

    parts = Section(
        f"Where `phiseg predict` spends its time (phiseg-small, {scale.predict_slices} slices of {scale.size} x "
        f"{scale.size}, 32 samples)",
        ("part", "time", "share"),
    )
    with tempfile.TemporaryDirectory() as folder:
        shares = _prediction(Path(folder), scale)
    whole = shares["total"]
    shares["other"] = max(0.0, 2 * whole - sum(shares.values()))
    parts.rows = [[name, in_words(seconds), f"{seconds / whole:.0%}"] for name, seconds in shares.items()]
    parts.notes.append(
        "The total is that of the first of three predictions in one process. Import and warm-up is the difference "
        "between the first and the second. The other parts come from the third, measured with Python's profiler, "
        "which slows down Python code but not the network."
    )
    return [table, parts]


def _prediction(folder: Path, scale: Scale) -> dict[str, float]:
    """Predict a scan of noise in a separate process and return the time of each part in seconds."""
    preprocessing = {
        "classes": ["background", "lesion"],
        "image_channels": 1,
        "size": [scale.size, scale.size],
        "intensity": {"kind": "window", "low": -1000, "high": 400},
        "plane": "axial",
    }
    save_model(folder / "model", build(small_model()).eval(), preprocessing=preprocessing, provenance={}, card="")
    shape = (scale.size, scale.size, scale.predict_slices)
    values = np.random.default_rng(0).integers(-1000, 400, shape).astype(np.int16)
    write_nifti(folder / "scan.nii.gz", Volume(values, np.diag([-0.7, -0.7, 2.5, 1.0])))
    words = ["predict", folder / "model", folder / "scan.nii.gz", "--device", "cpu"]
    return dict(json.loads(_python("-m", "benchmarks.profiled", *map(str, words)).splitlines()[-1]))


def _python(*words: str) -> str:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(  # noqa: S603
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    if done.returncode:
        raise RuntimeError(f"{words} failed:\n{done.stderr}")
    return done.stdout
