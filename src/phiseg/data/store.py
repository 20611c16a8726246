"""The prepared dataset: a folder with memory-mapped arrays, a table of cases, splits and a manifest.

    DATA/  dataset.json  images.npy  labels.npy  valid.npy  cases.csv  splits.json

`writer.write_dataset` writes the folder, `Dataset.open` opens it. A case is an image, or a volume in a dataset of
volumes, whose slices are stored one after the other.

N cases, M images or slices (M = N for images), A annotators, C image channels, D slices of a volume, H x W pixels.
*size is (H, W) for images and (D, H, W) for volumes.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from phiseg.core.errors import ConfigError, DataError, nearest
from phiseg.core.files import AnyPath
from phiseg.data.classes import check_classes
from phiseg.data.intensity import normalise
from phiseg.data.manifest import DatasetInfo
from phiseg.data.neighbours import MISSING_ROW, find_neighbours
from phiseg.data.npy import hash_array
from phiseg.data.reading import PREPARE_AGAIN, read_array, read_info, read_splits, read_table
from phiseg.data.spacing import SLICES, THICKNESS, case_spacing, positive_number
from phiseg.data.splits import split_patients, write_splits


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A prepared dataset, memory-mapped and read-only."""

    path: Path
    info: DatasetInfo
    images: NDArray[Any]
    """(M, C, H, W) stored values; `stored_image` returns those of a case, `image` the network's input."""
    labels: NDArray[np.uint8]
    """(M, A, H, W) class indices, `MISSING` where the annotation is missing; `case_labels` returns those of a
    case."""
    valid: NDArray[np.bool_]
    """(N, A) false where the annotation is missing."""
    cases: list[dict[str, str]]
    """Rows of cases.csv; all values are strings."""
    splits: dict[str, list[str]]
    """Patients of each split."""
    split_name: str | None = None
    """Name of the split file that the splits were read from, if any."""
    split_source: str = ""
    """Source of the split file."""
    _found_neighbours: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False)
    """Neighbours by context, computed on first use."""

    def __fspath__(self) -> str:
        """Return the folder, so that a dataset can be passed wherever a path is expected."""
        return str(self.path)

    def __repr__(self) -> str:
        info = self.info
        return (
            f"Dataset('{self.path}': {self.num_cases} cases of {self.describe_size()}, "
            f"{info.num_annotators} annotators, classes {', '.join(info.classes)})"
        )

    @classmethod
    def open(cls, path: AnyPath) -> Self:
        """Open a dataset and check everything except the pixels.

        Raises:
            DataError: a file is missing, damaged or of another format version.
        """
        path = Path(path)
        if not path.is_dir():
            raise DataError(f"{path} is not a folder; give a folder written by 'phiseg prepare'")
        info = read_info(path / "dataset.json")
        images, labels, valid = (read_array(path, key, info) for key in ("images", "labels", "valid"))
        cases = read_table(path / "cases.csv", info)
        stored = read_splits(path / "splits.json", [case["patient"] for case in cases])
        for row in np.flatnonzero(~valid.any(axis=1)):
            name = cases[row]["case"]
            raise DataError(f"{path / 'valid.npy'}: case '{name}' has no annotator; {PREPARE_AGAIN}")
        return cls(path, info, images, labels, valid, cases, *stored)

    def resplit(self, *, seed: int, fractions: Sequence[float], hold_out: str | None = None) -> Self:
        """Assign the patients to new splits, replace splits.json, and return the dataset with the new splits.

        Args:
            seed: seed of the splits.
            fractions: shares of train, val and test, or percentages.
            hold_out: existing split whose patients become test; the fractions then apply to the other patients.

        Raises:
            ConfigError: the fractions are invalid, or there would be no training patient.
            DataError: the split `hold_out` does not exist.
            OutputError: splits.json cannot be written.
        """
        patients = {case["patient"] for case in self.cases}
        held_out = {self.cases[row]["patient"] for row in self.rows(hold_out)} if hold_out else set[str]()
        if held_out and fractions[-1] != 0:
            raise ConfigError(
                f"split '{hold_out}' becomes test, so the share of test must be 0; use fractions such as 80,20,0"
            )
        splits = split_patients(patients - held_out, seed=seed, fractions=fractions)
        splits["test"] += sorted(held_out)
        if not splits["train"]:
            raise ConfigError(
                f"train would contain no patient of {self.path}, which has {len(patients)}; use a larger share"
            )
        write_splits(self.path / "splits.json", splits, seed=seed)
        return type(self).open(self.path)

    @property
    def num_cases(self) -> int:
        """Number of cases, N."""
        return len(self.valid)

    @property
    def dims(self) -> Literal[2, 3]:
        """2 if the cases are images, 3 if they are volumes."""
        return self.info.dims

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First image or slice of each case, and M, (N + 1,)."""
        depths = [int(case["depth"]) for case in self.cases] if self.dims == 3 else [1] * self.num_cases
        return np.cumsum([0, *depths])

    def depth(self, row: int) -> int:
        """Return the number of slices of a case, which is 1 for an image."""
        return int(self.starts[row + 1] - self.starts[row])

    def size(self, row: int) -> tuple[int, ...]:
        """Return the size of a case: (H, W), or (D, H, W) for a volume."""
        return (self.depth(row), *self.info.size) if self.dims == 3 else self.info.size

    def describe_size(self) -> str:
        """Return the size of the cases as text, such as "9 to 20 slices of 64 x 64 pixels"."""
        plane = f"{self.info.size[0]} x {self.info.size[1]} pixels"
        if self.dims == 2:
            return plane
        depths = np.diff(self.starts)
        low, high = int(depths.min()), int(depths.max())
        return f"{low if low == high else f'{low} to {high}'} slices of {plane}"

    @property
    def has_colours(self) -> bool:
        """Whether the three channels are red, green and blue."""
        info = self.info
        return info.image_channels == 3 and info.source.get("kind") == "images" and info.intensity.kind == "window"

    @property
    def is_resized(self) -> bool:
        """Whether pictures were resized to the size of the dataset, whatever their size was."""
        return self.dims == 2 and any(float(case.get("scale") or 1) != 1 for case in self.cases)

    @property
    def annotator_names(self) -> list[str]:
        """Names of the annotators in the source, or numbers."""
        names = self.info.source.get("raters")
        if isinstance(names, list) and len(names) == self.info.num_annotators:
            return [str(name) for name in names]
        return [f"annotator {number}" for number in range(self.info.num_annotators)]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the hashes of the arrays, the intensity rule, the classes and the depths of volumes.

        Datasets with the same fingerprint are identical for a model, even if their manifests differ otherwise.
        """
        hashes = {key: self.info.arrays[key].sha256 for key in ("images", "labels", "valid")}
        meaning = self.info.model_dump(mode="json", include={"intensity", "classes"})
        if self.dims == 3:
            meaning["starts"] = self.starts.tolist()
        return hashlib.sha256(json.dumps({**hashes, **meaning}, sort_keys=True).encode()).hexdigest()

    def rows(self, split: str) -> NDArray[np.int64]:
        """Return the rows of a split in ascending order.

        Raises:
            DataError: the split does not exist or has no case.
        """
        if split not in self.splits:
            valid = nearest(split, self.splits)
            raise DataError(
                f"{self.path} has no split '{split}' ({valid}); choose another split or run phiseg data split"
            )
        members = set(self.splits[split])
        rows = np.flatnonzero([case["patient"] in members for case in self.cases])
        if not rows.size:
            raise DataError(f"{self.path / 'splits.json'}: split '{split}' has no cases; run phiseg data split")
        return rows

    def stored_image(self, row: int, *, slices: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Return the stored values of one row, (C, *size).

        Args:
            row: row of the dataset.
            slices: numbers of the slices of a volume to return; None returns all.
        """
        return self._case(self.images, row, slices)

    def _case(
        self, array: NDArray[Any], row: int, slices: NDArray[np.int64] | None, channel: Any = slice(None)
    ) -> NDArray[Any]:
        """Return the part of an array (M, channels, H, W) that belongs to one row, channels first."""
        if self.dims == 2:
            image: NDArray[Any] = array[row, channel]
            return image
        start, stop = self.starts[row : row + 2]
        part: NDArray[Any] = array[slice(start, stop) if slices is None else start + slices][:, channel]
        return part.swapaxes(0, 1) if part.ndim == 4 else part  # (channels, D, H, W)

    def image(
        self,
        row: int,
        *,
        context: int = 0,
        hide_neighbours: bool = False,
        slices: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float32]:
        """Return the network's input of one row: the image with its neighbours as additional channels, or a volume.

        If a neighbour is missing or hidden, all neighbours are replaced by the slice itself. A network that sees
        some neighbours but not others would learn where a stack ends, which is not known for a new scan.

        Args:
            row: row of the dataset.
            context: c, the number of neighbours on each side.
            hide_neighbours: replace the neighbours even if the dataset has them.
            slices: numbers of the slices of a volume to return; None returns all.

        Returns:
            (C * (1 + 2c), *size), in the order of `neighbour_offsets`.

        Raises:
            DataError: a pixel is NaN or infinite.
        """
        assert not (context and self.dims == 3), "volumes have no neighbours"
        rows = np.full(1 + 2 * context, row)
        if context and not hide_neighbours and self.has_neighbours(context)[row]:
            rows = self._neighbours(context)[row]
        stored = np.concatenate([self.stored_image(number, slices=slices) for number in rows])
        image = normalise(stored, self.info.intensity)
        if not np.isfinite(image).all():
            names = ", ".join(dict.fromkeys(self.cases[number]["case"] for number in rows))
            raise DataError(
                f"{self.path / 'images.npy'}: case '{names}' has NaN or infinite pixels; {PREPARE_AGAIN}"
            )
        return image

    def has_neighbours(self, context: int) -> NDArray[np.bool_]:
        """Return for each row whether the dataset has all neighbours up to this distance, (N,)."""
        complete: NDArray[np.bool_] = (self._neighbours(context) != MISSING_ROW).all(1)
        return complete

    def _neighbours(self, context: int) -> NDArray[np.int64]:
        if context not in self._found_neighbours:
            self._found_neighbours[context] = find_neighbours(self.cases, context)
        return self._found_neighbours[context]

    def spacing_mm(self, row: int) -> tuple[float, float] | None:
        """Return the pixel spacing (vertical, horizontal) of a case in mm, or None if it is unknown."""
        if self.info.spacing_mm is not None:
            return self.info.spacing_mm
        return case_spacing(self.cases[row])

    def voxel_spacing_mm(self, row: int) -> tuple[float, float, float] | None:
        """Return the spacing (between slices, vertical, horizontal) of a volume in mm, or None if it is unknown."""
        in_plane, between = self.spacing_mm(row), positive_number(self.cases[row], SLICES)
        return None if in_plane is None or between is None else (between, *in_plane)

    def axis_spacing_mm(self, row: int) -> tuple[float, ...] | None:
        """Return the spacing of a case along its axes (H, W) or (D, H, W) in mm, or None if it is unknown."""
        return self.voxel_spacing_mm(row) if self.dims == 3 else self.spacing_mm(row)

    def thickness_mm(self, row: int) -> float | None:
        """Return the slice thickness of a case in mm, or None if it is unknown."""
        return positive_number(self.cases[row], THICKNESS)

    def case_labels(self, row: int) -> NDArray[np.uint8]:
        """Return the labels of all annotators of one row, (A, *size), `MISSING` for missing annotators."""
        return self._case(self.labels, row, None)

    def annotations(self, row: int) -> NDArray[np.uint8]:
        """Return the labels of the valid annotators of one row, (A_valid, *size)."""
        return self._case(self.labels, row, None, self.valid[row])

    def annotation(
        self, row: int, annotator: int | NDArray[np.int64], *, slices: NDArray[np.int64] | None = None
    ) -> NDArray[np.uint8]:
        """Return the labels of one annotator, (*size), or of several, (A, *size).

        Args:
            row: row of the dataset.
            annotator: number of the annotator, or several numbers (A,).
            slices: numbers of the slices of a volume to return; None returns all.
        """
        return self._case(self.labels, row, slices, annotator)

    def check_labels(self, rows: Iterable[int]) -> None:
        """Check that all valid annotations contain only classes of the dataset.

        Raises:
            DataError: an annotation contains another label.
        """
        for row in rows:
            for annotator in np.flatnonzero(self.valid[row]).tolist():
                where = f"{self.path / 'labels.npy'}: case '{self.cases[row]['case']}', annotator {annotator}"
                check_classes(self.annotation(row, annotator), self.info.classes, where=where)

    def verify(self, *, progress: bool = False) -> None:
        """Read all arrays and compare them with the hashes in the manifest.

        Args:
            progress: show a progress bar.

        Raises:
            DataError: one or more arrays were modified.
        """
        arrays: dict[Literal["images", "labels", "valid"], NDArray[Any]] = {
            "images": self.images,
            "labels": self.labels,
            "valid": self.valid,
        }
        changed = []
        for key, array in arrays.items():
            rows = tqdm(array, f"hashing {key}", unit="row", disable=not progress, leave=False)
            if hash_array(rows) != self.info.arrays[key].sha256:
                changed.append(str(self.path / f"{key}.npy"))
        if changed:
            raise DataError(f"{' and '.join(changed)} changed after preparation; {PREPARE_AGAIN}")
