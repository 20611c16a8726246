"""One CT series with its readers' outlines, turned into crops around its nodules.

A annotation slots (4), H x W pixels of a crop. Places are (row, column) pixels of the full slice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phiseg.core.errors import ConfigError, DataError
from phiseg.imaging.dicom import Series, SliceHeader, read_values
from phiseg.imaging.frame import Frame, cut
from phiseg.imaging.lidc_xml import LidcReading, Outline
from phiseg.imaging.outlines import MAX_READERS, cluster, rasterise

AIR = -1024
"""Hounsfield units of nothing: beyond the slice's edge, and in what scanners pad their round field of view with."""

Z_TOLERANCE_MM = 0.1
"""How far an outline may lie from a slice, where the image that it names is not there."""


@dataclass(frozen=True)
class LidcOptions:
    """How crops are cut."""

    size: int = 128
    """Height and width in pixels."""
    slices: Literal["all", "largest"] = "all"
    """Every outlined slice of a nodule, or the one with the largest area summed over readers."""
    spacing_mm: float | None = None
    """Pixel spacing of the crops; none keeps the scan's pixels."""
    margin: int = 0
    """Number of slices added beyond the last outline on both sides of a nodule, with empty masks. Slices outside of
    the scan are omitted. With a margin, slices between the outlines that nobody outlined are added too."""
    readers: Literal["pylidc", "sessions"] = "pylidc"
    """Where the second annotation of a nodule by one reader goes. `pylidc`: into a free slot, as if another reader
    had drawn it, as in the datasets that pylidc made. `sessions`: to the first one, into the reader's own slot."""

    def __post_init__(self) -> None:
        if self.margin < 0:
            raise ConfigError(f"margin {self.margin} must be a number of slices, 0 or more")
        if self.margin and self.slices == "largest":
            raise ConfigError("a margin needs all slices of a nodule; pass --slices all or no --margin")


class Crop(NamedTuple):
    """A nodule on one slice."""

    image: NDArray[np.int16]
    """(H, W) Hounsfield units."""
    labels: NDArray[np.uint8]
    """(A, H, W), 1 inside of the nodule; all 0 for a reader who did not outline it here."""
    valid: NDArray[np.bool_]
    """(A,), false where the XML has no reading session, and so no reader who could have drawn."""
    columns: dict[str, str | float | int]
    """Where it comes from, for cases.csv."""


class _Drawn(NamedTuple):
    """An outline, the number of the slice that it lies on, and that of its annotation."""

    level: int
    outline: Outline
    annotation: int


@dataclass(frozen=True)
class _Nodule:
    slots: list[list[_Drawn]]
    """What is drawn in each of the A annotation slots."""
    readers: list[str]
    """The reading session behind each slot; empty for nobody."""
    valid: NDArray[np.bool_]
    """(A,), whether there is a reader for the slot, who drew or saw nothing."""
    repeated: bool
    """Whether a reader annotated it more than once."""

    @property
    def levels(self) -> list[int]:
        """Numbers of the outlined slices."""
        return sorted({drawn.level for slot in self.slots for drawn in slot})

    @property
    def box(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and last pixel of the outlines on all slices."""
        points = np.concatenate([drawn.outline.points for slot in self.slots for drawn in slot])
        return points.min(axis=0), points.max(axis=0)

    def masks(self, level: int, origin: tuple[int, int], size: tuple[int, int]) -> NDArray[np.bool_]:
        """Fill the outlines on one slice, (A, H, W); where a slot holds several annotations, it has their union."""
        masks = np.zeros((len(self.slots), *size), dtype=np.bool_)
        for mask, slot in zip(masks, self.slots, strict=True):
            for number in {drawn.annotation for drawn in slot}:
                drawn = [each.outline for each in slot if (each.level, each.annotation) == (level, number)]
                mask |= rasterise(drawn, origin, size)
        return masks

    def chosen(self, options: LidcOptions, num_levels: int) -> Sequence[int]:
        """Return the numbers of the slices to crop, of a scan with `num_levels` slices."""
        if options.slices == "largest":
            return [self.largest()]
        if not options.margin:
            return self.levels
        first, last = self.levels[0] - options.margin, self.levels[-1] + options.margin
        return range(max(first, 0), min(last, num_levels - 1) + 1)

    def largest(self) -> int:
        """Return the slice with the largest area, summed over readers."""
        low, high = self.box
        origin, size = (int(low[0]), int(low[1])), (int(high[0] - low[0]) + 1, int(high[1] - low[1]) + 1)
        return max(self.levels, key=lambda level: int(self.masks(level, origin, size).sum()))


def crop_series(series: Series, reading: LidcReading, options: LidcOptions) -> tuple[list[Crop], int, list[str]]:
    """Cut out every nodule of a series, ordered by nodule and slice.

    Args:
        series: the slices.
        reading: what the readers drew.
        options: how to cut.

    Returns:
        The crops, the number of nodules that a reader annotated more than once, and one line for every slice of a
        nodule whose image is missing or cannot be read.

    Raises:
        DataError: no slice is axial.
    """
    levels = _levels(series)
    annotations, problems = _locate(series, reading, levels)
    drawn_on = {drawn.outline.sop_uid for _, slot in annotations for drawn in slot}
    crops = {}
    found = _nodules(annotations, reading.num_sessions, options, tolerance=_thickness(levels))
    nodules = list(enumerate(found))
    wanted = [
        (level, number, nodule) for number, nodule in nodules for level in nodule.chosen(options, len(levels))
    ]
    for level, group in groupby(sorted(wanted, key=itemgetter(0, 1)), key=itemgetter(0)):
        image = next((header for header in levels[level] if header.sop_uid in drawn_on), levels[level][0])
        try:
            values = read_values(image.path)
        except DataError as error:
            outlined = any(level in nodule.levels for _, _, nodule in group)
            problems.append(f"{error} ({'an outlined slice' if outlined else 'a slice beside a nodule'})")
            continue
        for _, number, nodule in group:
            crops[number, level] = _crop(image, values, level, number, nodule, options)
    return [crops[key] for key in sorted(crops)], sum(nodule.repeated for nodule in found), problems


def _levels(series: Series) -> list[list[SliceHeader]]:
    """Group axial slices by where they lie, from one end to the other; copies of a slice share a level.

    Others, such as a scout of the same series, are passed over: an outline on one of them has no image.
    """
    axial = [header for header in series.slices if header.is_axial]
    if not axial:
        first = series.slices[0]
        raise DataError(
            f"{first.path} is not an axial slice (its rows run along {first.along_row}, its columns along "
            f"{first.along_column}) and neither are the others, but the readers drew on axial ones; fetch them"
        )
    return [list(group) for _, group in groupby(axial, key=lambda header: round(header.depth_mm, 3))]


def _thickness(levels: list[list[SliceHeader]]) -> float:
    """Return the slice thickness, or the slices' distance where the headers do not say."""
    if levels[0][0].thickness_mm:
        return levels[0][0].thickness_mm
    places = [group[0].depth_mm for group in levels]
    return float(np.median(np.diff(places))) if len(places) > 1 else 1.0


def _locate(
    series: Series, reading: LidcReading, levels: list[list[SliceHeader]]
) -> tuple[list[tuple[int, list[_Drawn]]], list[str]]:
    """Find the slice of every outline: by the image it names, or by its position.

    Returns:
        The reader of every annotation with what is drawn, and a line for every position without a slice.
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
        f"{folder} has no image of the outlined slice at z = {z} mm; fetch it" for z in sorted(lost)
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
    """Give annotations their slots: the reader's own, or a free one for a reader's second annotation.

    With `share`, all annotations of a reader go into the reader's own slot.

    More annotations than slots cannot all be of different readers; those of one reader then share a slot. A slot
    without a reading session, into which nothing was put, is a missing reader.
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


def _crop(
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
        image=cut(hu, frame, fill=AIR, interpolation="linear"),
        labels=cut(masks, frame, interpolation="nearest"),
        valid=nodule.valid,
        columns={
            "nodule": number,
            "slice": level,
            "slice_z_mm": header.position[2],
            "origin_x": int(column) if frame.copies_pixels else column,
            "origin_y": int(row) if frame.copies_pixels else row,
            "spacing_mm": wanted or rows_mm,
            "slice_thickness_mm": header.thickness_mm or "",
            "readers": " ".join(reader or "-" for reader in nodule.readers),
            "sop_uid": header.sop_uid,
            **({"outlined": int(level in nodule.levels)} if options.margin else {}),
        },
    )
