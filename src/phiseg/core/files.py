"""Atomic files and folders: other processes see the complete old content or the complete new content.

A file is written next to its destination, flushed to disk and renamed. A folder is filled under a temporary name
and renamed once it is complete. A process that is killed in between leaves a temporary file or folder, which the
next write to the same destination deletes.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from phiseg.core.errors import OutputError
from phiseg.core.formats import is_from_phiseg

AnyPath = str | PathLike[str]
"""A path as text or as an object."""
OVERWRITE = "pass --overwrite (in Python: overwrite=True)"
"""How to replace existing results, for errors."""


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open `path` for binary writing; the file appears when the block ends without an error."""
    temporary = _beside(path, "tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _recover(path)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        with suppress(OSError):  # renamed, or never created
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic_file(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN and infinity raise a ValueError: JSON has neither."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


@contextmanager
def one_process(folder: Path, task: str) -> Iterator[None]:
    """Create `folder` and lock it for the block, where the file system has locks.

    The operating system removes the lock if the process is killed.

    Raises:
        OutputError: another process has locked the folder, or it cannot be written.
    """
    lock = FileLock(folder / "lock", timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise OutputError(f"{folder}: another process is {task}; wait for it, or choose another folder") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
            raise _cannot_write(folder, error) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def atomic_folder(path: Path, *, overwrite: bool = False, marker: str | None = None) -> Iterator[Path]:
    """Yield a temporary folder; it is renamed to `path` when the block ends without an error.

    Args:
        path: the folder to create.
        overwrite: replace an existing folder.
        marker: replace only a folder that contains this file, so that only results of phiseg are ever deleted. A
            marker in JSON must state a format of phiseg, because other programs write files of the same name.

    Raises:
        OutputError: `path` may not be replaced (see `check_replaceable`), or the folder cannot be written.
    """
    check_replaceable(path, overwrite=overwrite, marker=marker)
    place = Path(os.path.realpath(path))  # keep a symbolic link and replace its target
    temporary, replaced = _beside(place, "tmp"), _beside(place, "old")
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # from a killed process with the same process ID
        temporary.mkdir(parents=True)
        yield temporary
        if place.exists():
            place.rename(replaced)
        try:
            temporary.rename(place)
        except OSError:
            with suppress(OSError):
                replaced.rename(place)
            raise
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_replaceable(path: Path, *, overwrite: bool = False, marker: str | None = None) -> None:
    """Check in advance that `atomic_folder` with the same arguments can write the folder.

    Raises:
        OutputError: `path` exists and `overwrite` is not set, it is a file or a folder without `marker`, or its
            parent directory is not writable.
    """
    place = Path(os.path.realpath(path))
    try:
        _recover(place)
        if place.exists() and not place.is_dir():
            raise OutputError(f"{path} is a file; choose another folder")
        if marker and place.exists() and any(place.iterdir()) and not _is_marked(place / marker):
            raise OutputError(
                f"{path} exists, but is not a result of phiseg (it contains no {marker} of phiseg); choose another "
                "folder"
            )
        if place.exists() and not overwrite:
            raise OutputError(f"{path} already exists; choose another folder or {OVERWRITE}")
        parent = next((parent for parent in place.parents if parent.exists()), place)
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise OutputError(f"cannot write {path}: {parent} is not a writable directory; choose another")
    except OSError as error:
        raise _cannot_write(path, error) from error


def _is_marked(marker: Path) -> bool:
    if marker.suffix != ".json":
        return marker.is_file()
    try:
        return is_from_phiseg(json.loads(marker.read_text(encoding="utf-8")))
    except OSError:
        return False
    except (ValueError, RecursionError):  # damaged, so that it can be replaced
        return True


def check_new_file(path: Path, *, overwrite: bool = False) -> None:
    """Check in advance that a file can be written.

    Raises:
        OutputError: `path` is a folder, exists and `overwrite` is not set, or its parent is not writable.
    """
    if path.is_dir():
        raise OutputError(f"{path} is a folder; pass the name of a file")
    if path.exists() and not overwrite:
        raise OutputError(f"{path} already exists; choose another name or {OVERWRITE}")
    parent = next(parent for parent in path.absolute().parents if parent.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise OutputError(f"cannot write {path}: {parent} is not a writable directory; choose another")


def _beside(path: Path, suffix: str) -> Path:
    """Return the temporary name of this process for `path`."""
    return path.parent / f".{path.name}.{os.getpid()}.{suffix}"


def _recover(path: Path) -> None:
    """Clean up after killed processes: restore a folder moved away from `path` and delete incomplete files."""
    with suppress(FileNotFoundError, NotADirectoryError):
        _beside(path, "tmp").lstat()  # fails if the name is too long
    for entry in list(path.parent.iterdir()) if path.parent.is_dir() else []:
        match = re.fullmatch(rf"\.{re.escape(path.name)}\.(\d{{1,9}})\.(tmp|old)", entry.name)
        if not match or _is_running(int(match[1])) or entry == _beside(path, "tmp"):
            continue
        if match[2] == "old" and not path.exists():
            entry.rename(path)
        elif entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    """Return whether another running process has this ID."""
    if pid == os.getpid() or os.name != "posix":  # on Windows, os.kill would end the process
        return pid != os.getpid()
    try:
        os.kill(pid, 0)  # sends no signal
    except ProcessLookupError:
        return False
    except OSError:  # the process belongs to another user
        return True
    return True


def _cannot_write(path: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write {path}: {error.strerror or error}; free space or choose another folder")
