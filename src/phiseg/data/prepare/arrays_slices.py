"""Images of an .npz file: the rows of `images` and `masks`."""

from collections.abc import Iterator

import numpy as np

from phiseg.data.prepare.arrays_npz import Npz
from phiseg.data.prepare.arrays_tables import Tables, check_shape
from phiseg.data.prepare.fixed_size_source import Item
from phiseg.data.writer import Case


class ArraysSource:
    """Rows of an .npz file. `images` and `masks` are read from disk row by row, all other arrays are in memory."""

    def __init__(self, npz: Npz) -> None:
        self.path = npz.path
        self._npz = npz
        images, masks = npz.header("images"), npz.header("masks")
        check_shape(
            npz, "images", len(images.shape) in (3, 4) and 0 not in images.shape, "(N, H, W) or (N, H, W, C)"
        )
        self._num_rows, *size = images.shape[:3]
        check_shape(
            npz,
            "masks",
            len(masks.shape) in (3, 4) and masks.shape[0] == self._num_rows and [*masks.shape[-2:]] == size,
            f"({self._num_rows}, A, {size[0]}, {size[1]}) to match images {images.shape}",
        )
        num_annotators = masks.shape[1] if len(masks.shape) == 4 else 1
        check_shape(npz, "masks", num_annotators > 0, "at least one annotator")
        self.tables = Tables(
            npz, num_rows=self._num_rows, num_annotators=num_annotators, pixels={"images", "masks"}
        )
        self.spacing_mm = self.tables.spacing_mm
        self._cases = self._case_names()

    def __len__(self) -> int:
        return self._num_rows

    def __iter__(self) -> Iterator[Item]:
        tables = self.tables
        pairs = zip(self._npz.rows("images"), self._npz.rows("masks"), strict=True)
        for row, (image, masks) in enumerate(pairs):
            case = Case(
                case=self._cases[row],
                patient=tables.patients[row] if tables.patients else self._cases[row],
                image=np.moveaxis(image, -1, 0) if image.ndim == 3 else image[None],  # (C, H, W)
                labels=masks if masks.ndim == 3 else masks[None],  # (A, H, W)
                valid=tables.valid[row],
                columns=tables.row(row),
            )
            yield Item(case, tables.splits[row] if tables.splits else None)

    def _case_names(self) -> list[str]:
        """Name each case by patient, nodule and slice if that is unique, otherwise by patient and row."""
        patients, columns = self.tables.patients, self.tables.columns
        if not patients:
            return [f"row-{row:05d}" for row in range(self._num_rows)]
        if {"nodule", "slice"} <= columns.keys():
            places = zip(patients, columns["nodule"], columns["slice"], strict=True)
            names = [f"{patient}-nodule-{nodule}-slice-{number}" for patient, nodule, number in places]
            if len({*names}) == len(names):
                return names
        return [f"{patient}-{row:05d}" for row, patient in enumerate(patients)]
