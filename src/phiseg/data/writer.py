"""Write a prepared dataset from a stream of cases in bounded memory.

The folder appears when it is complete. An error or a kill before that leaves nothing that opens as a dataset.

N cases, A annotators, C image channels, D slices of a volume, H x W pixels. *size is (H, W) for images and
(D, H, W) for volumes.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray
from pydantic import JsonValue

from phiseg.core.errors import DataError
from phiseg.core.files import atomic_folder, write_json, write_text
from phiseg.data.classes import check_classes
from phiseg.data.intensity import Intensity
from phiseg.data.manifest import MISSING, ArrayInfo, DatasetInfo, SlicePlane
from phiseg.data.npy import NpyStream
from phiseg.data.splits import check_splits, split_patients, write_splits
from phiseg.data.store import Dataset


class Case(NamedTuple):
    """One image or volume with its annotations."""

    case: str
    """Unique name of the case."""
    patient: str
    """Identifier of the patient, the unit of the splits."""
    image: NDArray[Any]
    """(C, *size) stored values."""
    labels: NDArray[Any]
    """(A, *size) class indices; values of missing annotators are ignored."""
    valid: NDArray[np.bool_]
    """(A,) false where the annotation is missing."""
    columns: Mapping[str, str | float | int] = {}
    """Additional columns of cases.csv, which may differ between cases."""


def write_dataset(
    out: Path,
    *,
    name: str,
    classes: Sequence[str],
    num_annotators: int,
    image_shape: tuple[int, int, int],
    image_dtype: DTypeLike,
    intensity: Intensity,
    cases: Iterable[Case],
    dims: Literal[2, 3] = 2,
    splits: Mapping[str, Sequence[str]] | None = None,
    seed: int = 0,
    fractions: Sequence[float] = (0.6, 0.2, 0.2),
    spacing_mm: tuple[float, float] | None = None,
    plane: SlicePlane | None = None,
    centred_on: str | None = None,
    modality: str | None = None,
    source: Mapping[str, JsonValue] | None = None,
    command: str = "",
    overwrite: bool = False,
) -> "Dataset":
    """Write a dataset from a stream of cases, holding one image or volume at a time in memory.

    Args:
        out: folder to write. It appears when it is complete.
        name: name of the dataset.
        classes: class names, background first.
        num_annotators: A.
        image_shape: (C, H, W) of every image or slice.
        image_dtype: integer or floating type of the stored images.
        intensity: rule that maps stored values to the network's input.
        cases: at least one case.
        dims: 2 if the cases are images, 3 if they are volumes, whose depths may differ.
        splits: patients of each split; None draws them from `seed` and `fractions`.
        seed: seed of the splits and of generated data.
        fractions: shares of train, val and test.
        spacing_mm: pixel spacing (vertical, horizontal), if all cases have the same.
        plane: plane of the slices, if known.
        centred_on: object at the centre of every image; None for whole slices.
        modality: DICOM modality of the images (CT, MR, PT), if known.
        source: description of the source files.
        command: command line that created the dataset.
        overwrite: replace an existing dataset.

    Returns:
        The open dataset.

    Raises:
        DataError: a case does not match the other arguments.
        OutputError: `out` exists and `overwrite` is false, or it cannot be written.
    """
    image_type, label_type, flag = np.dtype(image_dtype), np.dtype(np.uint8), np.dtype(np.bool_)
    assert image_type.kind in "iuf", f"{image_type} is not a numeric type"
    assert dims in (2, 3), dims
    channels, height, width = image_shape
    table: dict[str, dict[str, Any]] = {}
    with atomic_folder(out, overwrite=overwrite, marker="dataset.json") as folder:
        with ExitStack() as stack:
            images, labels, valid = (
                stack.enter_context(NpyStream(folder / f"{key}.npy", shape, dtype))
                for key, shape, dtype in (
                    ("images", (channels, height, width), image_type),
                    ("labels", (num_annotators, height, width), label_type),
                    ("valid", (num_annotators,), flag),
                )
            )
            for case in _reading(cases):
                if case.case in table:
                    raise DataError(f"case '{case.case}' occurs twice; use a unique name for each case")
                case = case._replace(image=case.image.astype(image_type))
                _check(case, images.row_shape, labels.row_shape, classes, dims)
                present = np.asarray(case.valid, dtype=flag)
                slices = [...] if dims == 2 else [(slice(None), number) for number in range(case.image.shape[1])]
                for part in slices:
                    images.append(case.image[part])
                    drawn = np.where(present[:, None, None], case.labels[part], MISSING)
                    labels.append(drawn.astype(label_type))
                valid.append(present)
                depth = {"depth": len(slices)} if dims == 3 else {}
                table[case.case] = {"case": case.case, "patient": case.patient, **depth, **case.columns, **depth}
        if not table:
            raise DataError(f"the source has no usable case, so {out} was not written; see the messages above")
        patients = [str(row["patient"]) for row in table.values()]
        if splits is None:
            splits = split_patients(patients, seed=seed, fractions=fractions)
        check_splits(splits, patients, where=str(out / "splits.json"))
        _write_table(folder / "cases.csv", list(table.values()))
        write_splits(folder / "splits.json", splits, seed=seed)
        info = DatasetInfo(
            name=name,
            dims=dims,
            classes=tuple(classes),
            num_annotators=num_annotators,
            image_channels=channels,
            size=(height, width),
            spacing_mm=spacing_mm,
            intensity=intensity,
            plane=plane,
            centred_on=centred_on,
            modality=modality,
            seed=seed,
            source=dict(source or {}),
            command=command,
            arrays={"images": _describe(images), "labels": _describe(labels), "valid": _describe(valid)},
        )
        write_json(folder / "dataset.json", info.model_dump(mode="json"))
    return Dataset.open(out)


def _reading(cases: Iterable[Case]) -> Iterator[Case]:
    """Yield the cases, and raise read errors of the source as DataError instead of OutputError."""
    try:
        yield from cases
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror or error}") from error


def _check(
    case: Case, image_shape: tuple[int, ...], labels_shape: tuple[int, ...], classes: Sequence[str], dims: int
) -> None:
    where = f"case '{case.case}'"
    if dims == 3:
        if np.ndim(case.image) != 4 or not np.shape(case.image)[1]:
            raise DataError(f"{where}: the volume has shape {np.shape(case.image)}, not (channels, D, H, W)")
        depth = np.shape(case.image)[1]
        image_shape, labels_shape = ((shape[0], depth, *shape[1:]) for shape in (image_shape, labels_shape))
    for what, array, shape in (
        ("image", case.image, image_shape),
        ("labels", case.labels, labels_shape),
        ("valid", case.valid, labels_shape[:1]),
    ):
        if np.shape(array) != shape:
            raise DataError(f"{where}: {what} has shape {np.shape(array)}, but the dataset has {shape}")
    if not case.case or not case.patient:
        raise DataError(f"{where}: a case needs a name and a patient")
    if not np.isfinite(case.image).all():
        raise DataError(
            f"{where}: the image has NaN or infinite pixels as {case.image.dtype}; fix or remove the image"
        )
    if not np.any(case.valid):
        raise DataError(f"{where}: all annotations are missing; remove the case")
    for annotator in np.flatnonzero(case.valid):
        check_classes(case.labels[annotator], classes, where=f"{where}, annotator {annotator}")


def _describe(stream: NpyStream) -> ArrayInfo:
    return ArrayInfo(sha256=stream.sha256, shape=stream.shape, dtype=str(stream.dtype))


def _write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the union of the columns of all cases in order of first occurrence."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
