"""The images of a PACS, which are fetched by DICOMweb when they are used."""

import re
import shutil
import tempfile
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from phiseg.imaging.dicomweb import DicomWeb
from phiseg.inference.scans import NO_SCAN, ScanFile

MAX_LISTED = 1000
"""Maximum number of series that are listed. Others can still be used by their UID."""
MAX_FETCHED = 8
"""Maximum number of series that are kept on disk without being used."""
LISTED_S = 30.0
"""Time in seconds after which the list is requested again."""


class PacsImages:
    """The series of a PACS, by their UID.

    Args:
        pacs: the PACS.
    """

    def __init__(self, pacs: DicomWeb) -> None:
        self.pacs = pacs
        self._ids: list[str] = []
        self._listed_until = -1.0
        self._fetched: OrderedDict[str, ScanFile] = OrderedDict()
        self._lock = Lock()
        self._folder = Path(tempfile.mkdtemp(prefix="phiseg-pacs-"))
        self._finalizer = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def ids(self) -> Sequence[str]:
        """Return the UIDs of the series that are scans.

        Raises:
            DataError: the PACS cannot be reached.
        """
        with self._lock:
            if time.monotonic() > self._listed_until:
                found = self.pacs.list_series(limit=MAX_LISTED)
                self._ids = sorted(uid for uid, modality in found.items() if modality not in {*NO_SCAN, "OT"})
                self._listed_until = time.monotonic() + LISTED_S
            return self._ids

    def file_name(self, image_id: str) -> str:
        """Return the name under which a series is sent."""
        return f"{image_id}.nii.gz"

    def find(self, image_id: str) -> ScanFile | None:
        """Return a series on disk, fetching it if necessary, or None if the id is not a UID.

        Its files are kept at least as long as the returned object.

        Raises:
            DataError: the PACS has no such series, or cannot be reached.
        """
        if not re.fullmatch(r"[0-9.]{1,64}", image_id):
            return None
        with self._lock:
            if image_id not in self._fetched:
                folder = Path(tempfile.mkdtemp(dir=self._folder))
                try:
                    self.pacs.fetch_series(image_id, folder)
                except BaseException:
                    shutil.rmtree(folder, ignore_errors=True)
                    raise
                scan = self._fetched[image_id] = ScanFile(image_id, folder, "dicom", image_id)
                weakref.finalize(scan, shutil.rmtree, folder, ignore_errors=True)
            self._fetched.move_to_end(image_id)
            while len(self._fetched) > MAX_FETCHED:
                self._fetched.popitem(last=False)
            return self._fetched[image_id]

    def close(self) -> None:
        """Delete all fetched series."""
        self._finalizer()
