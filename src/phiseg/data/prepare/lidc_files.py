"""Find the files of LIDC-IDRI: DICOM files by folder, and the XML file of each series."""

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from phiseg.core.errors import DataError
from phiseg.data.prepare.skipped import SkippedCases
from phiseg.imaging.lidc_xml import read_series_uid


class LidcFiles(NamedTuple):
    """Files of the source."""

    folders: list[list[Path]]
    """Files that may be DICOM, by folder."""
    readings: dict[str, Path]
    """XML file of each CT series that has one."""
    counts: Counter[str]


def find_lidc_files(src: Path, skipped: SkippedCases) -> LidcFiles:
    """List the files of the source. Only the beginning of XML files is read."""
    if not src.is_dir():
        raise DataError(f"{src} is not a folder; give the folder with the patients of LIDC-IDRI")
    found = LidcFiles([], {}, Counter())
    walked = set()
    for folder, subfolders, names in os.walk(src, followlinks=True):
        if (place := os.path.realpath(folder)) in walked:  # a link to a parent folder
            subfolders.clear()
            continue
        walked.add(place)
        subfolders.sort()
        paths = [Path(folder, name) for name in sorted(names) if not name.startswith(".") and name != "DICOMDIR"]
        images = [path for path in paths if path.suffix.lower() != ".xml"]
        if images:
            found.folders.append(images)
        for path in (path for path in paths if path.suffix.lower() == ".xml"):
            _find_reading(path, found, skipped)
    return found


def _find_reading(path: Path, found: LidcFiles, skipped: SkippedCases) -> None:
    try:
        uid = read_series_uid(path)
    except DataError as error:
        found.counts["broken XML files"] += 1
        skipped.note(str(error))
        return
    if uid is None:
        found.counts["chest radiograph XML files"] += 1
    elif uid in found.readings:
        found.counts["further XML files about a series"] += 1
        skipped.note(f"{path} and {found.readings[uid]} describe the same series {uid}; remove one of them")
    else:
        found.readings[uid] = path
