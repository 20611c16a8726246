"""The kinds of untrusted files, how each is damaged, and the command that reads it.

Each function creates a damaged input in a folder and returns the command. Undamaged files are linked.
"""

import io
import json
import os
import pickle
import pickletools
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pydicom
import torch
import yaml

from .mutations import (
    Rng,
    aliases,
    damage_bytes,
    damage_text,
    damage_tree,
    entities,
    inside_gzip,
    inside_png,
    inside_zip,
    pick,
)
from .specimens import Specimens

Words = list[Any]


@dataclass(frozen=True)
class Bench:
    """Folder and random generator for one damaged input."""

    good: Specimens
    folder: Path
    canary: Path
    """File that is created only if code in a damaged file is executed."""
    rng: Rng

    @property
    def out(self) -> Path:
        """Folder for the output of the command."""
        return self.folder / "out"

    def copy(self, source: Path) -> Path:
        """Link a tree or a file into the folder."""
        target = self.folder / source.name
        if source.is_dir():
            shutil.copytree(source, target, copy_function=os.link)
        else:
            os.link(source, target)
        return target

    def replace(self, path: Path, content: bytes) -> Path:
        """Replace a link by a file."""
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        return path

    def one_of(self, root: Path, pattern: str) -> Path:
        """Return one of the files of a tree."""
        found: Path = pick(self.rng, sorted(root.rglob(pattern)))
        return found


class Evil:
    """An object whose pickle executes code: a function and its arguments."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.arguments


def _evil(bench: Bench) -> Evil:
    canary = str(bench.canary)
    return pick(  # type: ignore[no-any-return]
        bench.rng,
        (
            Evil(os.system, f"touch {canary}"),
            Evil(os.mkdir, canary),
            Evil(eval, f"open({canary!r}, 'w').close()"),
            Evil(open, canary, "w"),
            Evil(np.save, canary, 0),
            Evil(torch.save, 0, canary),
        ),
    )


def nifti(bench: Bench) -> Words:
    """Damage an image or the labels of an annotator."""
    source = bench.copy(bench.good.nifti)
    path = bench.one_of(source, "*.nii.gz")
    damage = damage_bytes if bench.rng.random() < 0.25 else inside_gzip(damage_bytes)
    bench.replace(path, damage(path.read_bytes(), bench.rng))
    return ["prepare", "nifti", source, bench.out, "--workers", 1]


def nifti_scan(bench: Bench) -> Words:
    """Damage a scan and predict it."""
    path = bench.copy(bench.good.scan)
    bench.replace(path, damage_bytes(path.read_bytes(), bench.rng))
    return ["predict", bench.good.model, path, *_PREDICT, "--out", bench.out]


_PREDICT = ["--num-samples", 1, "--level-draws", 0]
_DICOM_VALUES: tuple[tuple[str, Any], ...] = (
    ("Rows", 65535),
    ("Columns", 0),
    ("BitsAllocated", 7),
    ("BitsStored", 200),
    ("SamplesPerPixel", 3),
    ("PixelSpacing", [0, -1]),
    ("PixelSpacing", ["1e400", "1"]),
    ("ImageOrientationPatient", [1, 0, 0, 1, 0, 0]),
    ("ImagePositionPatient", [0, 0, "1e300"]),
    ("ImagePositionPatient", []),
    ("NumberOfFrames", 10**9),
    ("RescaleSlope", "1e308"),
    ("RescaleSlope", 0),
    ("RescaleIntercept", "nan"),
    ("PatientID", "../../../evil"),
    ("SeriesInstanceUID", "../../evil"),
    ("SOPInstanceUID", "x" * 5000),
    ("Modality", "evil"),
    ("PixelData", b""),
    ("PixelData", b"\0" * 7),
    ("SliceThickness", "-5"),
    ("InstanceNumber", "9" * 12),
)


def dicom(bench: Bench) -> Words:
    """Damage the bytes or a header value of a slice."""
    from_archive = bench.rng.random() < 0.7
    source = bench.copy(bench.good.lidc if from_archive else bench.good.dicom)
    path = bench.one_of(source, "*.dcm")
    content = path.read_bytes()
    if bench.rng.random() < 0.3:
        content = _with_value(content, *pick(bench.rng, _DICOM_VALUES))
    elif bench.rng.random() < 0.05:
        content = content[:132] + b"\x08\x00\x40\x11SQ\0\0\xff\xff\xff\xff\xfe\xff\x00\xe0\xff\xff\xff\xff" * 3000
    else:
        content = damage_bytes(content, bench.rng)
    bench.replace(path, content)
    if from_archive:
        return ["prepare", "lidc", source, bench.out, "--size", 16, "--workers", 1]
    return ["predict", bench.good.model, source, *_PREDICT, "--out", bench.out]


def _with_value(content: bytes, name: str, value: Any) -> bytes:
    data = pydicom.dcmread(io.BytesIO(content))
    kept = pydicom.config.settings.writing_validation_mode
    pydicom.config.settings.writing_validation_mode = pydicom.config.IGNORE
    try:
        element = data[name] if name in data else None  # noqa: SIM401 - get would return the value
        if element is None:
            setattr(data, name, value)
        else:
            element._value = value
        target = io.BytesIO()
        data.save_as(target)
        return target.getvalue()
    except Exception:  # pydicom cannot write this value
        return content[: len(content) // 2]
    finally:
        pydicom.config.settings.writing_validation_mode = kept


def lidc_xml(bench: Bench) -> Words:
    """Damage the outlines of the readers."""
    source = bench.copy(bench.good.lidc)
    path = bench.one_of(source, "*.xml")
    content, draw = path.read_bytes(), bench.rng.random()
    body = content.partition(b"?>")[2]
    if draw < 0.1:
        content = (entities() + "<LidcReadMessage><SeriesInstanceUid>&e11;</SeriesInstanceUid>").encode() + body
    elif draw < 0.15:
        content = b'<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/passwd">]>' + body.replace(b">0<", b">&e;<")
    elif draw < 0.25:
        content = content.replace(b"<readingSession>", b"<readingSession>" * 50000, 1)
    elif draw < 0.3:
        content = pick(bench.rng, (b"<?xml version='1.0' encoding='evil'?>", b"\xff\xfe", b"\xef\xbb\xbf")) + body
    elif draw < 0.65:
        content = damage_text(content, bench.rng)
    else:
        content = damage_bytes(content, bench.rng)
    bench.replace(path, content)
    return ["prepare", "lidc", source, bench.out, "--size", 16, "--workers", 1]


def npz(bench: Bench) -> Words:
    """Damage an archive of arrays, a member, or the header of a member."""
    path = bench.copy(bench.good.npz)
    content, draw = path.read_bytes(), bench.rng.random()
    if draw < 0.3:
        content = damage_bytes(content, bench.rng)
    elif draw < 0.4:
        packed = io.BytesIO()
        np.savez(packed, images=np.array([_evil(bench)], dtype=object), masks=np.zeros((1, 1, 2, 2)))
        content = packed.getvalue()
    else:
        content = inside_zip(_damage_npy)(content, bench.rng)
    bench.replace(path, content)
    return ["prepare", "arrays", path, bench.out]


def _damage_npy(content: bytes, rng: Rng) -> bytes:
    if rng.random() < 0.5 or content[:1] != b"\x93":
        return damage_bytes(content, rng)
    length = struct.unpack("<H", content[8:10])[0]
    header = content[10 : 10 + length]
    old, new = pick(
        rng,
        (
            (b"(8,", b"(999999999999,"),
            (b"(8,", b"(-8,"),
            (b"'<f4'", b"'|O'"),
            (b"'<f4'", b"'<c16'"),
            (b"'<f4'", b"'<M8[s]'"),
            (b"'<f4'", b"[('a', '<f4')]"),
            (b"'|u1'", b"'<f8'"),
            (b"False", b"True"),
            (b"{", b"__import__('os').abort() or {"),
            (b"{", b"{" + b"(" * 300),
        ),
    )
    header = header.replace(old, new, 1)
    return content[:8] + struct.pack("<H", len(header)) + header + content[10 + length :]


def dataset(bench: Bench) -> Words:
    """Damage a file of a prepared dataset: arrays, manifest or tables."""
    source = bench.copy(bench.good.data)
    path = bench.one_of(source, "*.*")
    if path.suffix == ".npy":
        content = pick(bench.rng, (damage_bytes, _damage_npy))(path.read_bytes(), bench.rng)
    else:
        content = _damage_table(bench, path)
    bench.replace(path, content)
    command = pick(bench.rng, ("check", "info", "sample"))
    if command == "sample":
        return ["sample", bench.good.model, "--data", source, "--out", bench.out, "--num-samples", 1]
    return ["data", "check", source] if command == "check" else ["info", source]


def _damage_table(bench: Bench, path: Path) -> bytes:
    """Damage the values of JSON, or words or bytes of any text."""
    content, draw = path.read_bytes(), bench.rng.random()
    if path.suffix == ".json" and draw < 0.6:
        tree = damage_tree(json.loads(content), bench.rng, str(bench.canary))
        return json.dumps(tree).encode()
    return damage_text(content, bench.rng) if draw < 0.8 else damage_bytes(content, bench.rng)


def hdf5(bench: Bench) -> Words:
    """Damage the bytes or the members of an HDF5 file."""
    path = bench.copy(bench.good.hdf5)
    bench.replace(path, path.read_bytes())
    draw = bench.rng.random()
    if draw < 0.4:
        with h5py.File(path, "a") as file:
            _damage_hdf5(file, bench)
    if draw > 0.3:
        path.write_bytes(damage_bytes(path.read_bytes(), bench.rng))
    return ["prepare", "legacy", path, bench.out]


def _damage_hdf5(file: Any, bench: Bench) -> None:
    group, name = file[pick(bench.rng, ("train", "val", "test"))], pick(bench.rng, ("images", "labels", "uids"))
    kept = group[name][:]
    del group[name]
    action = int(bench.rng.integers(9))
    if action == 0:
        group[name] = h5py.ExternalLink(str(bench.good.hdf5), "/train/images")
    elif action == 1:
        group[name] = h5py.SoftLink(f"/train/{name}")
    elif action == 2:
        group.create_dataset(name, shape=(10**12, 16, 16), chunks=(1, 16, 16), dtype="f4")
    elif action == 3:
        layout = h5py.VirtualLayout(shape=kept.shape, dtype=kept.dtype)
        group.create_virtual_dataset(name, layout)
    elif action == 4:
        group.create_dataset(name, data=[b"evil", b"../../evil"])
    elif action == 5:
        group.create_dataset(name, shape=kept.shape, dtype=h5py.ref_dtype)
    elif action == 6:
        group.create_dataset(name, data=kept.astype([("a", "f8")]))
    elif action == 7:
        group.create_group(name)
    else:
        group.create_dataset(name, data=kept, external=[(str(bench.canary), 0, kept.nbytes)])
        bench.canary.unlink(missing_ok=True)  # written by h5py itself


def pickles(bench: Bench) -> Words:
    """Damage a pickle, or create one that executes code."""
    path = bench.copy(bench.good.pickle)
    content, draw = path.read_bytes(), bench.rng.random()
    if draw < 0.25:
        crops = pickle.loads(content)  # noqa: S301 - our own
        crop = pick(bench.rng, sorted(crops))
        crops[crop][pick(bench.rng, sorted(crops[crop]))] = pick(
            bench.rng, (_evil(bench), [_evil(bench)], {"a": _evil(bench)}, 7, "x" * 9999, {1, 2}, 1 << 9999)
        )
        crops[pick(bench.rng, ("../../../evil", str(bench.canary), "", "\n"))] = crops.pop(crop)
        content = pickle.dumps(crops, protocol=int(bench.rng.integers(6)))
    elif draw < 0.5:
        operations = list(pickletools.genops(content))
        _, _, place = pick(bench.rng, operations)
        code = pick(bench.rng, pickletools.opcodes).code.encode("latin-1")
        content = content[:place] + code + content[place + int(bench.rng.integers(2)) :]
    elif draw < 0.55:
        content = pick(bench.rng, (b"\x80\x04" + b"(" * 200000 + b".", b"(" * 50000 + b"t" * 50000 + b"."))
    else:
        content = damage_bytes(content, bench.rng)
    bench.replace(path, content)
    return ["prepare", "legacy", path, bench.out]


def png(bench: Bench) -> Words:
    """Damage a crop or a mask, or predict a damaged PNG file."""
    to_predict = bench.rng.random() < 0.2
    source = bench.copy(bench.good.png)
    path = bench.one_of(source, "crop.png" if to_predict else "*.png")
    damage = inside_png if bench.rng.random() < 0.7 else damage_bytes
    bench.replace(path, damage(path.read_bytes(), bench.rng))
    if to_predict:
        return ["predict", bench.good.model, path, *_PREDICT, "--out", bench.out]
    return ["prepare", "legacy", source, bench.out]


def recipe(bench: Bench) -> Words:
    """Damage a recipe."""
    path = bench.copy(bench.good.recipe)
    content, draw = path.read_bytes(), bench.rng.random()
    if draw < 0.6:
        tree = yaml.safe_load(content)
        for _ in range(int(bench.rng.integers(1, 3))):
            tree = damage_tree(tree, bench.rng, str(bench.canary))
        content = yaml.safe_dump(tree).encode(errors="replace")
    elif draw < 0.65:
        place = pick(bench.rng, ("name", "model", "train", "augment"))
        content = (aliases() + f"{place}: *a11\n").encode() + content
    elif draw < 0.7:
        content = f"name: !!python/object/apply:os.mkdir ['{bench.canary}']\n".encode() + content
    else:
        content = pick(bench.rng, (damage_text, damage_bytes))(content, bench.rng)
    bench.replace(path, content)
    if bench.rng.random() < 0.7:
        return ["info", path]
    return ["train", path, "--data", bench.good.data, "--out", bench.out, "--train.steps", 1]


def safetensors(bench: Bench) -> Words:
    """Damage the bytes or the header of weights."""
    model = bench.copy(bench.good.model)
    path = model / "model.safetensors"
    content, draw = path.read_bytes(), bench.rng.random()
    if draw < 0.4:
        (length,) = struct.unpack("<Q", content[:8])
        tree = damage_tree(json.loads(content[8 : 8 + length]), bench.rng, str(bench.canary))
        header = json.dumps(tree).encode()
        content = struct.pack("<Q", len(header)) + header + content[8 + length :]
    elif draw < 0.5:
        content = pickle.dumps(_evil(bench))
    else:
        content = damage_bytes(content, bench.rng)
    bench.replace(path, content)
    return _use_model(bench, model)


def model_folder(bench: Bench) -> Words:
    """Damage the JSON files of a model."""
    model = bench.copy(bench.good.model)
    path = model / pick(bench.rng, ("config.json", "preprocessing.json"))
    bench.replace(path, _damage_table(bench, path))
    return _use_model(bench, model)


def _use_model(bench: Bench, model: Path) -> Words:
    command = pick(bench.rng, ("info", "info", "sample", "predict"))
    if command == "info":
        return ["info", model]
    if command == "sample":
        return ["sample", model, "--data", bench.good.data, "--out", bench.out, "--num-samples", 1]
    return ["predict", model, bench.good.scan, *_PREDICT, "--out", bench.out]


def checkpoint(bench: Bench) -> Words:
    """Damage the saved state of a training."""
    run = bench.copy(bench.good.run)
    path = run / "state" / "last.pt"
    content, draw = path.read_bytes(), bench.rng.random()
    if draw < 0.4:
        state = torch.load(io.BytesIO(content), weights_only=True)
        key = pick(bench.rng, sorted(state))
        state[key] = pick(
            bench.rng, (None, "evil", -1, 10**12, 1.5, [], {}, {"a": 1}, _evil(bench), torch.zeros(2))
        )
        packed = io.BytesIO()
        torch.save(state, packed)
        content = packed.getvalue()
    elif draw < 0.7:
        content = inside_zip(damage_bytes)(content, bench.rng)
    else:
        content = damage_bytes(content, bench.rng)
    bench.replace(path, content)
    return ["train", bench.good.recipe, "--data", bench.good.data, "--out", run, "--resume"]


def evaluation(bench: Bench) -> Words:
    """Damage an evaluation."""
    first, second = bench.copy(bench.good.evaluation), bench.folder / "other"
    shutil.copytree(first, second, copy_function=os.link)
    path = bench.one_of(first, "*.*")
    content = path.read_bytes()
    if path.suffix == ".npz":
        content = pick(bench.rng, (damage_bytes, inside_zip(_damage_npy)))(content, bench.rng)
    else:
        content = _damage_table(bench, path)
    bench.replace(path, content)
    return ["compare", first, second, "--out", bench.out]


def points(bench: Bench) -> Words:
    """Damage the table of points."""
    path = bench.folder / "points.csv"
    content = b"case,x,y,z,unit\nscan,9,9,1,voxel\nscan,1.5,2.5,2,mm\n"
    path.write_bytes(pick(bench.rng, (damage_text, damage_bytes))(content, bench.rng))
    scan = bench.copy(bench.good.scan)
    return ["predict", bench.good.model, scan, "--points", path, *_PREDICT, "--out", bench.out]


FILES: dict[str, tuple[int, Callable[[Bench], Words]]] = {
    "NIfTI, prepared": (9, nifti),
    "NIfTI, predicted": (2, nifti_scan),
    "DICOM": (9, dicom),
    "LIDC XML": (8, lidc_xml),
    "npz": (10, npz),
    "prepared dataset (npy, JSON, CSV)": (9, dataset),
    "HDF5": (9, hdf5),
    "pickle": (9, pickles),
    "PNG": (8, png),
    "YAML recipe": (9, recipe),
    "safetensors": (6, safetensors),
    "model folder (JSON)": (5, model_folder),
    "checkpoint": (6, checkpoint),
    "evaluation folder": (1, evaluation),
    "table of points": (2, points),
}
"""Share of the inputs of each kind of file."""
