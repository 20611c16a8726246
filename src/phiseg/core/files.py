"""Atomic files: a reader sees the old content or the new content, never half of either.

A file is written beside its destination, flushed to the disk and renamed into place. A folder is filled under
a temporary name and renamed once it is complete. A kill in between leaves a temporary name that nobody reads and
that the next writer of the same destination clears away.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from phiseg.core.errors import OutputError


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open `path` for binary writing; it appears, complete, when the block ends without an error."""
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
        with suppress(OSError):  # it was renamed, or could not even be made
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic_file(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN and infinity are refused: JSON has neither."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


@contextmanager
def atomic_folder(path: Path, *, overwrite: bool = False, marker: str | None = None) -> Iterator[Path]:
    """Yield a temporary folder to fill; it becomes `path` when the block ends without an error.

    Args:
        path: the folder to make.
        overwrite: replace the folder that is there.
        marker: a file that a folder must hold to be replaced, so that nothing but our own results is ever deleted.

    Raises:
        OutputError: `path` may not be replaced (see `check_replaceable`), or the folder cannot be written.
    """
    check_replaceable(path, overwrite=overwrite, marker=marker)
    place = Path(os.path.realpath(path))  # a link stays, the folder that it leads to is replaced
    temporary, replaced = _beside(place, "tmp"), _beside(place, "old")
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # of a killed process that had our number
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
    """Refuse what `atomic_folder` with the same arguments could not write, before any work is done.

    Raises:
        OutputError: `path` exists and `overwrite` is not set, it is a file or a folder without `marker`, or there
            is no place where it could be written.
    """
    place = Path(os.path.realpath(path))
    try:
        _recover(place)
        if place.exists() and not place.is_dir():
            raise OutputError(f"{path} is a file; choose another folder")
        if marker and place.exists() and any(place.iterdir()) and not (place / marker).is_file():
            raise OutputError(
                f"{path} exists, and is not a result of phiseg (it holds no {marker}); choose another folder"
            )
        if place.exists() and not overwrite:
            raise OutputError(f"{path} exists already; choose another folder or pass --overwrite")
        parent = next((parent for parent in place.parents if parent.exists()), place)
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise OutputError(f"cannot write {path}: {parent} is no folder that can be written to; choose another")
    except OSError as error:
        raise _cannot_write(path, error) from error


def check_new_file(path: Path, *, overwrite: bool = False) -> None:
    """Refuse a file that may not be written, before any work is done.

    Raises:
        OutputError: `path` is a folder, it exists and `overwrite` is not set, or nothing can be written there.
    """
    if path.is_dir():
        raise OutputError(f"{path} is a folder; give the name of a file")
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists already; choose another name or pass --overwrite")
    parent = next(parent for parent in path.absolute().parents if parent.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise OutputError(f"cannot write {path}: {parent} is no folder that can be written to; choose another")


def _beside(path: Path, suffix: str) -> Path:
    """Return this process's own name for what it writes, or keeps, in the place of `path`."""
    return path.parent / f".{path.name}.{os.getpid()}.{suffix}"


def _recover(path: Path) -> None:
    """Bring back what a killed process moved away from `path`, and delete what it left half-written."""
    with suppress(FileNotFoundError, NotADirectoryError):
        _beside(path, "tmp").lstat()  # a name that is too long fails here
    for entry in list(path.parent.iterdir()) if path.parent.is_dir() else []:
        match = re.fullmatch(rf"\.{re.escape(path.name)}\.(\d{{1,9}})\.(tmp|old)", entry.name)
        if not match or _lives(int(match[1])) or entry == _beside(path, "tmp"):
            continue
        if match[2] == "old" and not path.exists():
            entry.rename(path)
        elif entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    """Return whether another process has this number."""
    if process == os.getpid() or os.name != "posix":  # on Windows the test itself would end the process
        return process != os.getpid()
    try:
        os.kill(process, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True


def _cannot_write(path: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write {path}: {error.strerror or error}; free space or choose another folder")
