"""XML files with the annotations of LIDC-IDRI.

A `LidcReadMessage` contains the reading sessions of one CT series, usually four. In each session, every
`unblindedReadNodule` is outlined slice by slice by the pixels just outside it. A nodule below 3 mm has a single
point and no outline. An outline with `inclusion` FALSE excludes a region. Chest radiographs have an
`IdriReadMessage`, which is not supported.

Sessions do not name the reader: session 0 of two scans need not be the same person.
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
"""Maximum file size. The largest file of the archive has a few million bytes."""


class Outline(NamedTuple):
    """Outline drawn by a reader on one slice."""

    z_mm: float
    sop_uid: str
    """SOP instance UID of the image."""
    inclusion: bool
    """Whether the region is added to the nodule or removed from it."""
    points: NDArray[np.int64]
    """(P, 2) row and column of its pixels, which lie just outside the nodule. At least two."""


class Annotation(NamedTuple):
    """All outlines of one nodule by one reader."""

    reader: int
    """Index of the reading session."""
    nodule: str
    """Nodule ID given by the reader's software."""
    outlines: tuple[Outline, ...]


class LidcReading(NamedTuple):
    """All annotations of one series."""

    series_uid: str
    annotations: tuple[Annotation, ...]
    num_sessions: int
    """Number of readers who saw the scan, including sessions without an outline."""


def read_series_uid(path: Path) -> str | None:
    """Return the UID of the CT series of a file, or None for a chest radiograph. Reads only the start.

    Raises:
        DataError: the file is not a message of the archive.
    """
    root = None
    with _reading(path):
        for event, element in ElementTree.iterparse(path, events=("start", "end"), forbid_dtd=True):
            if root is None:
                root = _name(element)
                if root == "IdriReadMessage":
                    return None
                if root != "LidcReadMessage":
                    raise DataError(f"{path} is a <{root}>, not the <LidcReadMessage> of a CT series; exclude it")
            if event == "end" and _name(element).lower() == "seriesinstanceuid":
                return _text(element)
    raise DataError(f"{path} does not name its series (no SeriesInstanceUid); download it again")


def read_lidc_xml(path: Path) -> LidcReading:
    """Read the outlines of one CT series. Nodules below 3 mm have no outline and are skipped.

    Raises:
        DataError: the file is not an annotation of a CT series, or it is damaged.
    """
    series_uid = read_series_uid(path)
    if series_uid is None:
        raise DataError(f"{path} belongs to a chest radiograph, not to a CT series; exclude it")
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
        raise ValueError(f"an outline has z '{z_mm}' and inclusion '{inclusion}'")
    if any(abs(place) > 100_000 for point in points for place in point):
        raise ValueError("an outline lies far outside any image")
    return Outline(
        z_mm,
        _text(_child(roi, "imageSOP_UID")),
        inclusion == "TRUE",
        np.array(points, dtype=np.int64).reshape(-1, 2),
    )


def _name(element: Any) -> str:
    """Return the tag without its namespace, which differs between releases of the archive."""
    return str(element.tag).rpartition("}")[2]


def _children(element: Any, name: str) -> list[Any]:
    return [child for child in element if _name(child) == name]


def _child(element: Any, name: str) -> Any:
    for child in element:
        if _name(child) == name:
            return child
    raise ValueError(f"a <{_name(element)}> has no <{name}>")


def _text(element: Any) -> str:
    return (element.text or "").strip()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path} has more than {MAX_BYTES:,} bytes, so it is not an XML file of the archive")
        yield
    except DefusedXmlException:
        raise DataError(
            f"{path} declares a document type or entities, which files of the archive never do; it is not read"
        ) from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        reason = shorten(str(error), 100, placeholder="...")
        raise DataError(f"{path} is damaged ({reason}); download it again") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
