"""Volumes in an .npz file, for `phiseg prepare arrays --volumes`.

There are two layouts:

- one array for each volume: `image_000` (D, H, W) or (D, H, W, C), `masks_000` (A, D, H, W), and so on;
- slices: `images` and `masks` as for images, with `slice` (N,), the number of each slice within its volume. Slices
  of one volume have the same patient (`case_ids`), `nodule` and `series_uid`, as far as the file has these arrays.
  They follow each other in the file, in the order of `slice` and without gaps.

All volumes have the same H and W. The file also has `pixel_spacing_mm`, and `slice_spacing_mm` (N,), the distance
of the slices. Without `slice_spacing_mm`, `slice_thickness_mm` (N,) is used instead.

N volumes, or slices in the second layout; A annotators, D slices.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from phiseg.core.errors import DataError
from phiseg.data.neighbours import STACK_COLUMNS
from phiseg.data.prepare.arrays_npz import MAX_ROW_BYTES, Npz
from phiseg.data.prepare.arrays_slices import ArraysSource
from phiseg.data.prepare.arrays_tables import Tables, check_shape
from phiseg.data.prepare.fixed_size_source import Item, Source, print_note
from phiseg.data.spacing import SLICES, THICKNESS, positive_number
from phiseg.data.writer import Case


def volumes_in(npz: Npz) -> Source:
    """Return the volumes of a file, in either layout.

    Raises:
        DataError: the file has neither layout, or its arrays do not match.
    """
    if numbers := listed_numbers(npz):
        return ListedVolumes(npz, numbers)
    if "images" not in npz.headers:
        raise DataError(
            f"{npz.path} has no volumes; save arrays image_000, masks_000, image_001 and so on, or 'images' and "
            "'masks' with 'slice', the number of each slice within its volume"
        )
    return StackedVolumes(ArraysSource(npz))


def listed_numbers(npz: Npz) -> list[str]:
    """Return the numbers of the arrays `image_000`, `image_001` and so on, in order; empty if there are none."""
    numbers = [match[1] for key in npz.headers if (match := re.fullmatch(r"image_(\d+)", key))]
    return sorted(numbers, key=lambda number: (int(number), number))


class ListedVolumes:
    """Volumes with an array each, read one at a time."""

    def __init__(self, npz: Npz, numbers: Sequence[str]) -> None:
        self.path = npz.path
        self._npz, self._numbers = npz, numbers
        annotators = [self._check(number) for number in numbers]
        if len({*annotators}) > 1:
            other = next(place for place, number in enumerate(annotators) if number != annotators[0])
            raise DataError(
                f"{self.path}: 'masks_{numbers[0]}' has {annotators[0]} annotators, but 'masks_{numbers[other]}' "
                f"has {annotators[other]}; use the same number, and mark missing annotations in 'valid'"
            )
        self._check_order()
        pixels = {f"{kind}_{number}" for kind in ("image", "masks") for number in numbers}
        self._tables = Tables(npz, num_rows=len(numbers), num_annotators=annotators[0], pixels=pixels)
        self._slice_spacing = _slice_spacing(self._tables, len(numbers))
        self._cases = _case_names([self._patient(row) for row in range(len(self))], self._nodules())
        self.spacing_mm = self._tables.spacing_mm

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Item]:
        tables = self._tables
        for row, number in enumerate(self._numbers):
            image = self._npz.read(f"image_{number}", max_bytes=MAX_ROW_BYTES)
            masks = self._npz.read(f"masks_{number}", max_bytes=MAX_ROW_BYTES)
            case = Case(
                case=self._cases[row],
                patient=self._patient(row) or self._cases[row],
                image=np.moveaxis(image, -1, 0) if image.ndim == 4 else image[None],  # (C, D, H, W)
                labels=masks if masks.ndim == 4 else masks[None],  # (A, D, H, W)
                valid=tables.valid[row],
                columns={**tables.row(row), SLICES: self._slice_spacing[row]},
            )
            yield Item(case, tables.splits[row] if tables.splits else None)

    def _check(self, number: str) -> int:
        """Check the shapes of a volume, and return the number of annotators."""
        image, masks = (self._npz.header(f"{kind}_{number}").shape for kind in ("image", "masks"))
        check_shape(
            self._npz,
            f"image_{number}",
            len(image) in (3, 4) and 0 not in image,
            "(slices, height, width) or (slices, height, width, channels)",
        )
        check_shape(
            self._npz,
            f"masks_{number}",
            len(masks) in (3, 4) and masks[-3:] == image[:3] and 0 not in masks,
            f"(annotators, {image[0]}, {image[1]}, {image[2]}) to match image_{number} {image}, with the axes of "
            "both in the order slices, height, width",
        )
        return masks[0] if len(masks) == 4 else 1

    def _check_order(self) -> None:
        """Reject volumes (height, width, slices) of square slices, which look like oblong slices."""
        shapes = {number: self._npz.header(f"image_{number}").shape[:3] for number in self._numbers}
        oblong = [number for number, (_, height, width) in shapes.items() if height != width]
        if oblong and all(depth == height for depth, height, _ in shapes.values()):
            depth, height, width = shapes[oblong[0]]
            raise DataError(
                f"{self.path}: 'image_{oblong[0]}' would have {depth} slices of {height} x {width} pixels; "
                "put the axes of all volumes in the order slices, height, width (numpy.moveaxis)"
            )

    def _patient(self, row: int) -> str:
        return self._tables.patients[row] if self._tables.patients else ""

    def _nodules(self) -> list[str]:
        return self._tables.columns.get("nodule", [""] * len(self))


class StackedVolumes:
    """Volumes made of successive rows of a file, held in memory one at a time."""

    def __init__(self, slices: ArraysSource) -> None:
        self.path, self._slices, self.spacing_mm = slices.path, slices, slices.spacing_mm
        tables = slices.tables
        self._stacks = self._find_stacks(tables)
        """Number of the volume of each row."""
        first = np.unique(self._stacks, return_index=True)[1]
        self._starts = [*first.tolist(), len(slices)]
        own = [first[stack] for stack in self._stacks]  # first row of the volume of each row
        spacing = _slice_spacing(tables, len(slices))
        self._columns = {
            name: [column[row] for row in first]
            for name, column in {**tables.columns, SLICES: spacing}.items()
            if name != "slice" and all(value == column[row] for value, row in zip(column, own, strict=True))
        }
        """Columns that are equal for all slices of a volume."""
        if SLICES not in self._columns:
            raise DataError(
                f"{self.path}: '{SLICES}' or '{THICKNESS}' differs between slices of one volume; fix it"
            )
        patients = [tables.patients[row] if tables.patients else "" for row in first]
        self._cases = _case_names(patients, self._columns.get("nodule", [""] * len(first)))

    def __len__(self) -> int:
        return len(self._cases)

    def __iter__(self) -> Iterator[Item]:
        rows = iter(self._stacks)
        for volume, items in groupby(self._slices, key=lambda _: next(rows)):
            yield self._join(int(volume), list(items))

    def _join(self, volume: int, slices: list[Item]) -> Item:
        cases, split = [item.case for item in slices], slices[0].split
        if any(item.split != split for item in slices):
            raise DataError(f"{self.path}: slices of {self._cases[volume]} are in different splits; fix 'split'")
        patient = cases[0].patient if self._slices.tables.patients else self._cases[volume]
        case = Case(
            case=self._cases[volume],
            patient=patient,
            image=np.stack([case.image for case in cases], axis=1),  # (C, D, H, W)
            labels=np.stack([case.labels for case in cases], axis=1),  # (A, D, H, W)
            valid=np.all([case.valid for case in cases], axis=0),
            columns={name: column[volume] for name, column in self._columns.items()},
        )
        return Item(case, split)

    def _find_stacks(self, tables: Tables) -> list[int]:
        """Return the number of the volume of each row.

        Raises:
            DataError: the rows of a volume do not follow each other.
        """
        try:
            numbers = [int(number) for number in tables.columns["slice"]]
        except (KeyError, ValueError):
            raise DataError(
                f"{self.path}: --volumes needs 'slice' (N,), the integer number of each slice within its volume"
            ) from None
        columns = {**tables.columns, "patient": tables.patients} if tables.patients else tables.columns
        named = [columns[name] for name in STACK_COLUMNS if name in columns]
        if not named:
            raise DataError(f"{self.path}: --volumes needs 'case_ids' (N,), the patient of each slice; add it")
        keys = [*zip(*named, strict=True)]
        stacks: list[int] = []
        seen: dict[tuple[str, ...], int] = {}
        for row, (key, number) in enumerate(zip(keys, numbers, strict=True)):
            if row and key == keys[row - 1] and number == numbers[row - 1] + 1:
                stacks.append(stacks[-1])
            elif key in seen:
                raise DataError(
                    f"{self.path}: row {row} (slice {number}) does not follow row {seen[key]} of the same volume "
                    f"({', '.join(key)}); sort the rows by volume and slice, without gaps"
                )
            else:
                stacks.append(stacks[-1] + 1 if stacks else 0)
            seen[key] = row
        return stacks


def _slice_spacing(tables: Tables, num_rows: int) -> list[str]:
    """Return the distance between slices for each row as text.

    Raises:
        DataError: the file has no spacing, or an invalid one.
    """
    if not tables.has_spacing:
        raise DataError(f"{tables.path}: volumes need 'pixel_spacing_mm'; add it: one number, (N,) or (N, 2)")
    name = next((name for name in (SLICES, THICKNESS) if name in tables.columns), None)
    if name is None:
        raise DataError(
            f"{tables.path}: volumes need '{SLICES}' ({num_rows},), the distance of the slices in mm; add it"
        )
    if any(positive_number(tables.row(row), name) is None for row in range(num_rows)):
        raise DataError(f"{tables.path}: '{name}' must contain finite positive numbers; fix it")
    if name == THICKNESS:
        print_note(f"{tables.path}: no '{SLICES}', so '{THICKNESS}' is used as the distance of the slices")
    return tables.columns[name]


def _case_names(patients: Sequence[str], nodules: Sequence[str]) -> list[str]:
    """Name each volume by patient and nodule if that is unique, otherwise by patient and number."""
    if all(patients) and all(nodules):
        names = [f"{patient}-nodule-{nodule}" for patient, nodule in zip(patients, nodules, strict=True)]
        if len({*names}) == len(names):
            return names
    return [f"{patient or 'volume'}-{row:05d}" for row, patient in enumerate(patients)]
