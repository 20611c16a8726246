"""Sessions: images that clients upload. They are kept in a temporary folder until they expire."""

import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from phiseg.core.errors import DataError
from phiseg.inference.scans import ScanFile, find_scans
from phiseg.viewer.uploads import Upload, check_affordable, renamed

EXPIRY = 3600
"""Time in seconds without requests after which a session is deleted; clients may choose a shorter time."""
MAX_SESSIONS = 20
MAX_SESSION_BYTES = 8 << 30
"""Maximum size of the files of all sessions."""
_CLEAN_EVERY = 30.0


@dataclass
class Session:
    """An uploaded image."""

    id: str
    scan: ScanFile
    """The image. Its files are deleted with this object."""
    size: int
    """Size of the files in bytes."""
    expiry: int
    created: float = field(default_factory=time.time)
    used: float = field(default_factory=time.time)

    def info(self) -> dict[str, Any]:
        """Describe the session, without paths of this machine."""
        return {
            "name": self.id,
            "path": "",
            "image": self.scan.name,
            "meta": {},
            "create_ts": int(self.created),
            "last_access_ts": int(self.used),
            "expiry": self.expiry,
        }


class Sessions:
    """The sessions of a server. Expired sessions are deleted by a thread.

    Args:
        max_bytes: maximum size of the voxels of an image in bytes.
        on_delete: function that is called with the image of a deleted session.
    """

    def __init__(self, *, max_bytes: int, on_delete: Callable[[ScanFile], None]) -> None:
        self.max_bytes, self.on_delete = max_bytes, on_delete
        self.folder = Path(tempfile.mkdtemp(prefix="phiseg-sessions-"))
        self._sessions: dict[str, Session] = {}
        self._lock = Lock()
        ended = Event()
        Thread(target=_clean, args=(weakref.ref(self), ended), name="phiseg-sessions", daemon=True).start()
        self._finalizer = weakref.finalize(self, _end, self.folder, ended)

    def new_folder(self) -> Path:
        """Return a new empty folder for uploaded files. `close` deletes it, if nothing does before."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def add(self, uploads: Sequence[Upload], folder: Path, *, expiry: int = 0) -> Session:
        """Add an uploaded image: a NIfTI, .mha, .nrrd or PNG file, or the files of a DICOM series.

        Args:
            uploads: files of the image, the only ones in their folder.
            folder: folder from `new_folder`, which belongs to the session from now on.
            expiry: time in seconds until the session expires, up to `EXPIRY`; 0 for that.

        Raises:
            DataError: the files are not one scan, or the storage limit is reached.
        """
        scan = uploaded_scan(uploads, max_bytes=self.max_bytes)
        size = sum(upload.path.stat().st_size for upload in uploads)
        longest = min(expiry, EXPIRY) if expiry > 0 else EXPIRY
        session = Session(secrets.token_urlsafe(16), scan, size, longest)
        self.clean()
        with self._lock:
            total = size + sum(other.size for other in self._sessions.values())
            if len(self._sessions) >= MAX_SESSIONS or total > MAX_SESSION_BYTES:
                raise DataError("there are too many sessions; delete one, or try again later")
            self._sessions[session.id] = session
        weakref.finalize(scan, shutil.rmtree, folder, ignore_errors=True)  # after the last request that uses it
        return session

    def get(self, session_id: str, *, use: bool = True) -> Session | None:
        """Return a session, or None if it does not exist or has expired.

        Args:
            session_id: id of the session.
            use: whether the request postpones the expiry.
        """
        self.clean()
        with self._lock:
            session = self._sessions.get(session_id)
            if session is not None and use:
                session.used = time.time()
            return session

    def remove(self, session_id: str) -> Session | None:
        """Delete a session. Return it, or None if it does not exist. Its files are deleted when nothing uses it."""
        with self._lock:
            session = self._sessions.pop(session_id, None)
        if session is not None:
            self.on_delete(session.scan)
        return session

    def clean(self) -> None:
        """Delete expired sessions."""
        now = time.time()
        with self._lock:
            expired = [session.id for session in self._sessions.values() if session.used + session.expiry < now]
        for session_id in expired:
            self.remove(session_id)

    def close(self) -> None:
        """Delete all files."""
        self._finalizer()


def uploaded_scan(uploads: Sequence[Upload], *, max_bytes: int) -> ScanFile:
    """Return the scan that uploaded files contain, with the name given by the client.

    Args:
        uploads: the only files in their folder.
        max_bytes: maximum size of the voxels in bytes.

    Raises:
        DataError: the files are not one scan, or exceed the limit.
    """
    if not uploads:
        raise DataError("the upload contains no files; send an image in the form field 'files'")
    title = uploads[0].name if len(uploads) == 1 else f"{len(uploads)} files"
    try:
        check_affordable(uploads, max_bytes=max_bytes)
        scans, _ = find_scans([uploads[0].path.parent])
    except DataError as error:
        raise DataError(renamed(str(error), uploads)) from None
    if len(scans) > 1:
        raise DataError(f"the upload contains {len(scans)} scans; upload one scan")
    return replace(scans[0], name=title)


def _clean(sessions: "weakref.ref[Sessions]", ended: Event) -> None:
    while not ended.wait(_CLEAN_EVERY):
        owner = sessions()
        if owner is None:
            return
        owner.clean()
        del owner


def _end(folder: Path, ended: Event) -> None:
    ended.set()
    shutil.rmtree(folder, ignore_errors=True)
