"""The XML in which LIDC-IDRI ships what its readers drew.

A `LidcReadMessage` holds the reading sessions of one CT series, usually four. In each, every `unblindedReadNodule`
is outlined slice by slice by the pixels just outside of it; a nodule below 3 mm has a single point and no outline.
An outline with `inclusion` FALSE takes a part out again. Chest radiographs have an `IdriReadMessage`, which is not
ours.

Sessions have no reader's name: session 0 of one scan and of another need not be the same person.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
from defusedxml import ElementTree
from defusedxml.common import DefusedXmlException
from numpy.typing import NDArray

from phiseg.core.errors import DataError

MAX_BYTES = 100_000_000
"""The archive's largest file has a few million; more is not one of them, and is not read."""


class Outline(NamedTuple):
    """What a reader drew on one slice."""

    z_mm: float
    sop_uid: str
    """Of the image it was drawn on."""
    inclusion: bool
    """Whether it adds to the nodule or takes a part out of it."""
    points: NDArray[np.int64]
    """(P, 2) row and column of its pixels, which lie outside of the nodule. At least two."""


class Annotation(NamedTuple):
    """What one reader drew of one nodule, on all slices."""

    reader: int
    """Number of the reading session."""
    nodule: str
    """Name that this reader's software gave."""
    outlines: tuple[Outline, ...]


class LidcReading(NamedTuple):
    """All that the readers of one series drew."""

    series_uid: str
    annotations: tuple[Annotation, ...]
    num_sessions: int
    """How many reading sessions there are, also those without an outline: the readers who saw the scan."""


def read_series_uid(path: Path) -> str | None:
    """Return which CT series a file is about, reading no more of it than needed; none for a chest radiograph's.

    Raises:
        DataError: it is not a message of the archive.
    """
    root = None
    with _reading(path):
        for event, element in ElementTree.iterparse(path, events=("start", "end"), forbid_dtd=True):
            if root is None:
                root = _name(element)
                if root == "IdriReadMessage":
                    return None
                if root != "LidcReadMessage":
                    raise DataError(f"{path} is a <{root}>, not the <LidcReadMessage> of a CT series; leave it out")
            if event == "end" and _name(element).lower() == "seriesinstanceuid":
                return _text(element)
    raise DataError(f"{path} does not say which series it is about (no SeriesInstanceUid); fetch it again")


def read_lidc_xml(path: Path) -> LidcReading:
    """Read the outlines of one CT series. Nodules below 3 mm have none, and are left out.

    Raises:
        DataError: it is not such a file, or it is damaged.
    """
    series_uid = read_series_uid(path)
    if series_uid is None:
        raise DataError(f"{path} is about a chest radiograph, not about a CT series; leave it out")
    annotations = []
    with _reading(path):
        root = ElementTree.parse(path, forbid_dtd=True).getroot()
        sessions = _children(root, "readingSession")
        for reader, session in enumerate(sessions):
            for nodule in _children(session, "unblindedReadNodule"):
                drawn = [_outline(roi) for roi in _children(nodule, "roi")]
                outlines = tuple(outline for outline in drawn if len(outline.points) > 1)
                if outlines:
                    annotations.append(Annotation(reader, _text(_child(nodule, "noduleID")), outlines))
    return LidcReading(series_uid, tuple(annotations), len(sessions))


def _outline(roi: Any) -> Outline:
    points = [
        (int(_text(_child(edge, "yCoord"))), int(_text(_child(edge, "xCoord"))))
        for edge in _children(roi, "edgeMap")
    ]
    z_mm = float(_text(_child(roi, "imageZposition")))
    inclusion = _text(_child(roi, "inclusion")).upper()
    if not np.isfinite(z_mm) or inclusion not in {"TRUE", "FALSE"}:
        raise ValueError(f"an outline at z '{z_mm}' with inclusion '{inclusion}'")
    if any(abs(place) > 100_000 for point in points for place in point):
        raise ValueError("an outline far outside of any image")
    return Outline(
        z_mm,
        _text(_child(roi, "imageSOP_UID")),
        inclusion == "TRUE",
        np.array(points, dtype=np.int64).reshape(-1, 2),
    )


def _name(element: Any) -> str:
    """Return a tag without its namespace, which changed between releases of the archive."""
    return str(element.tag).rpartition("}")[2]


def _children(element: Any, name: str) -> list[Any]:
    return [child for child in element if _name(child) == name]


def _child(element: Any, name: str) -> Any:
    for child in element:
        if _name(child) == name:
            return child
    raise ValueError(f"a <{_name(element)}> without <{name}>")


def _text(element: Any) -> str:
    return (element.text or "").strip()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path} has more than {MAX_BYTES:,} bytes, so it is none of the archive's XML files")
        yield
    except DefusedXmlException:
        raise DataError(
            f"{path} declares a document type or entities, which the archive's XML never does; refused"
        ) from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        reason = shorten(str(error), 100, placeholder="...")
        raise DataError(f"{path} is damaged ({reason}); fetch it again") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
