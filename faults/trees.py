"""Checks of result folders: complete files, and equality of two folders."""

import csv
import gzip
import io
import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import load as parse_tensors


def visible_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the relative names and paths of the files of a folder, except hidden ones."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            yield str(name), path


def half_written(folder: Path) -> list[str]:
    """Return the visible files that are incomplete, each with the reason."""
    found = []
    for name, path in visible_files(folder):
        try:
            _read(path)
        except Exception as error:
            found.append(f"{name} is not whole ({type(error).__name__}: {error})")
    return found


def _read(path: Path) -> None:
    """Read a file completely. Files that grow line by line (.jsonl, logs) may end after any line."""
    content = path.read_bytes()
    if path.suffix == ".json":
        json.loads(content)
    elif path.suffix == ".yaml":
        yaml.safe_load(content)
    elif path.suffix in {".npy", ".npz"}:
        arrays = np.load(io.BytesIO(content))
        for name in getattr(arrays, "files", []):
            arrays[name]
    elif path.suffix == ".pt":
        torch.load(io.BytesIO(content), weights_only=True)
    elif path.suffix == ".safetensors":
        parse_tensors(content)
    elif path.suffix == ".gz":
        gzip.decompress(content)
    elif path.suffix == ".png":
        Image.open(io.BytesIO(content)).load()
    elif path.suffix == ".csv":
        rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
        if not content.endswith(b"\n") or len({len(row) for row in rows}) != 1:
            raise ValueError("a line is cut short")
    elif path.suffix == ".html" and not content.rstrip().endswith(b"</html>"):
        raise ValueError("it has no end")


def differences(expected: Path, found: Path, *, may_differ: tuple[str, ...] = ()) -> list[str]:
    """Compare two folders byte by byte, including hidden files; return the differences by file."""

    def contents(folder: Path) -> dict[str, Path]:
        files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        return {
            name: path
            for name, path in files.items()
            if not any(fnmatchcase(name, pattern) for pattern in may_differ)
        }

    ours, theirs = contents(expected), contents(found)
    return [
        f"{name} is missing"
        if name not in theirs
        else f"{name} is left over"
        if name not in ours
        else f"{name} differs"
        for name in sorted(ours.keys() | theirs.keys())
        if name not in ours or name not in theirs or ours[name].read_bytes() != theirs[name].read_bytes()
    ]
