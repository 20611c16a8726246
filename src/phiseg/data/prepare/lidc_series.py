"""Crop the nodules of one CT series with the outlines of its readers.

A annotation slots (4), H x W pixels of a crop. Positions are (row, column) pixels of the full slice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phiseg.core.errors import ConfigError, DataError
from phiseg.data.spacing import SLICES, SQUARE
from phiseg.imaging.dicom import Series, SliceHeader, read_values
from phiseg.imaging.frame import Frame, crop
from phiseg.imaging.lidc_xml import LidcReading, Outline
from phiseg.imaging.outlines import MAX_READERS, cluster, rasterise

AIR = -1024
"""Hounsfield units outside the slice, and in the padding around the round field of view of scanners."""

Z_TOLERANCE_MM = 0.1
"""Maximum distance between an outline and a slice, if the image that the outline refers to is missing."""


@dataclass(frozen=True)
class LidcOptions:
    """Cropping options."""

    size: int = 128
    """Height and width in pixels."""
    slices: Literal["all", "largest"] = "all"
    """All outlined slices of a nodule, or the one with the largest area summed over readers."""
    spacing_mm: float | None = None
    """Pixel spacing of the crops; None keeps the spacing of the scan."""
    margin: int = 0
    """Number of slices added beyond the last outline on both sides of a nodule, with empty masks. Slices outside
    the scan are omitted. With a margin, slices between the outlines that nobody outlined are added too."""
    readers: Literal["pylidc", "sessions"] = "pylidc"
    """Handling of a second annotation of a nodule by the same reader. `pylidc`: stored in a free slot, as in
    datasets made with pylidc. `sessions`: merged with the first one in the slot of the reader; a series with more
    than 4 reading sessions is skipped."""
    volumes: bool = False
    """Each nodule is a volume of all slices from its first to its last one, not a crop on each slice."""

    def __post_init__(self) -> None:
        if self.margin < 0:
            raise ConfigError(f"margin {self.margin} is negative; use 0 or more slices")
        for option in ("margin", "volumes"):
            if getattr(self, option) and self.slices == "largest":
                raise ConfigError(
                    f"--{option} requires all slices of a nodule; use --slices all or omit --{option}"
                )


class Crop(NamedTuple):
    """A nodule on one slice."""

    image: NDArray[np.int16]
    """(H, W) Hounsfield units."""
    labels: NDArray[np.uint8]
    """(A, H, W) 1 inside the nodule; all 0 for a reader who did not outline it on this slice."""
    valid: NDArray[np.bool_]
    """(A,) false where the XML file has no reading session."""
    columns: dict[str, str | float | int]
    """Origin of the crop, for cases.csv."""


class _Drawn(NamedTuple):
    """An outline with the number of its slice and of its annotation."""

    level: int
    outline: Outline
    annotation: int


@dataclass(frozen=True)
class _Nodule:
    slots: list[list[_Drawn]]
    """Outlines in each of the A annotation slots."""
    readers: list[str]
    """Reading session of each slot; empty if there is none."""
    valid: NDArray[np.bool_]
    """(A,) whether the slot has a reader, who may not have outlined the nodule."""
    repeated: bool
    """Whether a reader annotated the nodule more than once."""

    @property
    def levels(self) -> list[int]:
        """Numbers of the outlined slices."""
        return sorted({drawn.level for slot in self.slots for drawn in slot})

    @property
    def box(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and last pixel of the outlines over all slices."""
        points = np.concatenate([drawn.outline.points for slot in self.slots for drawn in slot])
        return points.min(axis=0), points.max(axis=0)

    def masks(self, level: int, origin: tuple[int, int], size: tuple[int, int]) -> NDArray[np.bool_]:
        """Return the filled outlines on one slice, (A, H, W); several annotations in a slot are united."""
        masks = np.zeros((len(self.slots), *size), dtype=np.bool_)
        for mask, slot in zip(masks, self.slots, strict=True):
            for number in {drawn.annotation for drawn in slot}:
                drawn = [each.outline for each in slot if (each.level, each.annotation) == (level, number)]
                mask |= rasterise(drawn, origin, size)
        return masks

    def chosen(self, options: LidcOptions, num_levels: int) -> Sequence[int]:
        """Return the numbers of the slices to crop in a scan with `num_levels` slices."""
        if options.slices == "largest":
            return [self.largest()]
        if not options.margin and not options.volumes:
            return self.levels
        first, last = self.levels[0] - options.margin, self.levels[-1] + options.margin
        return range(max(first, 0), min(last, num_levels - 1) + 1)

    def largest(self) -> int:
        """Return the slice with the largest area, summed over readers."""
        low, high = self.box
        origin, size = (int(low[0]), int(low[1])), (int(high[0] - low[0]) + 1, int(high[1] - low[1]) + 1)
        return max(self.levels, key=lambda level: int(self.masks(level, origin, size).sum()))


def crop_series(series: Series, reading: LidcReading, options: LidcOptions) -> tuple[list[Crop], int, list[str]]:
    """Crop every nodule of a series, ordered by nodule and slice.

    Args:
        series: slices of the series.
        reading: outlines of the readers.
        options: cropping options.

    Returns:
        The crops, the number of nodules that a reader annotated more than once, and one line for each slice of a
        nodule whose image is missing or unreadable.

    Raises:
        DataError: no slice is axial.
    """
    levels = _levels(series)
    annotations, problems = _locate(series, reading, levels)
    drawn_on = {drawn.outline.sop_uid for _, slot in annotations for drawn in slot}
    crops = {}
    found = _nodules(annotations, reading.num_sessions, options, tolerance=_thickness(levels))
    nodules = list(enumerate(found))
    chosen = [
        (level, number, nodule) for number, nodule in nodules for level in nodule.chosen(options, len(levels))
    ]
    for level, group in groupby(sorted(chosen, key=itemgetter(0, 1)), key=itemgetter(0)):
        image = next((header for header in levels[level] if header.sop_uid in drawn_on), levels[level][0])
        try:
            values = read_values(image.path)
        except DataError as error:
            outlined = any(level in nodule.levels for _, _, nodule in group)
            problems.append(f"{error} ({'an outlined slice' if outlined else 'a slice next to a nodule'})")
            continue
        for _, number, nodule in group:
            crops[number, level] = _crop_nodule(image, values, level, number, nodule, options)
            if options.volumes:
                crops[number, level].columns[SLICES] = round(_distance(levels) or _thickness(levels), 6)
    return [crops[key] for key in sorted(crops)], sum(nodule.repeated for nodule in found), problems


def _levels(series: Series) -> list[list[SliceHeader]]:
    """Group axial slices by position, from one end to the other; copies of a slice share a level.

    Other slices, such as a scout of the same series, are ignored: an outline on one of them has no image.
    """
    axial = [header for header in series.slices if header.is_axial]
    if not axial:
        first = series.slices[0]
        raise DataError(
            f"{first.path.parent} has no axial slices (in {first.path.name} rows run along {first.along_row}, "
            f"columns along {first.along_column}), but the outlines are on axial slices; download the series again"
        )
    return [list(group) for _, group in groupby(axial, key=lambda header: round(header.depth_mm, 3))]


def _thickness(levels: list[list[SliceHeader]]) -> float:
    """Return the slice thickness, or the distance of the slices if the headers do not state it."""
    return levels[0][0].thickness_mm or _distance(levels) or 1.0


def _distance(levels: list[list[SliceHeader]]) -> float | None:
    """Return the distance of adjacent slices, or None if there is only one slice."""
    positions = [group[0].depth_mm for group in levels]
    return float(np.median(np.diff(positions))) if len(positions) > 1 else None


def _locate(
    series: Series, reading: LidcReading, levels: list[list[SliceHeader]]
) -> tuple[list[tuple[int, list[_Drawn]]], list[str]]:
    """Find the slice of each outline by the UID of its image, or by its position.

    Returns:
        The reader and the outlines of each annotation, and one line for each position without a slice.
    """
    by_uid = {header.sop_uid: level for level, group in enumerate(levels) for header in group}
    places = np.array([group[0].position[2] for group in levels])
    annotations, lost = [], set()
    for number, annotation in enumerate(reading.annotations):
        slot = []
        for outline in annotation.outlines:
            distance = np.abs(places - outline.z_mm)
            if outline.sop_uid in by_uid:
                slot.append(_Drawn(by_uid[outline.sop_uid], outline, number))
            elif distance.min() <= Z_TOLERANCE_MM:
                slot.append(_Drawn(int(distance.argmin()), outline, number))
            else:
                lost.add(outline.z_mm)
        if slot:
            annotations.append((annotation.reader, slot))
    folder = series.slices[0].path.parent
    return annotations, [
        f"{folder} has no image of the outlined slice at z = {z} mm; download it again" for z in sorted(lost)
    ]


def _nodules(
    annotations: list[tuple[int, list[_Drawn]]], num_sessions: int, options: LidcOptions, *, tolerance: float
) -> list[_Nodule]:
    """Group annotations into nodules, from one end of the scan to the other."""
    points = [
        np.concatenate([np.insert(drawn.outline.points, 2, drawn.level, axis=1) for drawn in slot])
        for _, slot in annotations
    ]
    groups = cluster(points, tolerance)
    groups.sort(key=lambda members: np.mean([points[member][:, 2].mean() for member in members]))
    share = options.readers == "sessions"
    return [_nodule([annotations[member] for member in members], num_sessions, share=share) for members in groups]


def _nodule(annotations: list[tuple[int, list[_Drawn]]], num_sessions: int, *, share: bool) -> _Nodule:
    """Assign annotations to slots: the slot of the reader, or a free one for a second annotation of the reader.

    With `share`, all annotations of a reader go into the slot of the reader. This also applies if there are more
    annotations than slots. An empty slot without a reading session is a missing reader.
    """
    slots: list[list[_Drawn]] = [[] for _ in range(MAX_READERS)]
    readers = [""] * MAX_READERS
    share = share or len(annotations) > MAX_READERS
    later = []
    for reader, drawn in annotations:
        slot = reader % MAX_READERS
        if slots[slot] and not share:
            later.append((reader, drawn))
        else:
            slots[slot] += drawn
            readers[slot] = str(reader)
    for reader, drawn in later:
        slot = readers.index("")
        slots[slot], readers[slot] = drawn, str(reader)
    valid = np.array([slot < num_sessions or bool(drawn) for slot, drawn in enumerate(slots)])
    return _Nodule(slots, readers, valid, len({reader for reader, _ in annotations}) < len(annotations))


def _crop_nodule(
    header: SliceHeader,
    values: NDArray[np.float64],
    level: int,
    number: int,
    nodule: _Nodule,
    options: LidcOptions,
) -> Crop:
    low, high = nodule.box
    centre = (low + high) // 2
    rows_mm, columns_mm = header.spacing_mm
    wanted = options.spacing_mm
    step = (wanted / rows_mm, wanted / columns_mm) if wanted else (1.0, 1.0)
    frame = Frame.centred((int(centre[0]), int(centre[1])), (options.size, options.size), step)
    hu = np.clip(np.rint(values), AIR, 2**15 - 1).astype(np.int16)
    masks = nodule.masks(level, (0, 0), hu.shape).astype(np.uint8)
    row, column = frame.origin
    return Crop(
        image=crop(hu, frame, fill=AIR, interpolation="linear"),
        labels=crop(masks, frame, interpolation="nearest"),
        valid=nodule.valid,
        columns={
            "nodule": number,
            "slice": level,
            "slice_z_mm": header.position[2],
            "origin_x": int(column) if frame.copies_pixels else column,
            "origin_y": int(row) if frame.copies_pixels else row,
            SQUARE: wanted or rows_mm,
            "slice_thickness_mm": header.thickness_mm or "",
            "readers": " ".join(reader or "-" for reader in nodule.readers),
            "sop_uid": header.sop_uid,
            **({"outlined": int(level in nodule.levels)} if options.margin else {}),
        },
    )
