"""Atomic files: a reader sees the old content or the new content, never half of either.

A file is written beside its destination, flushed to the disk and renamed into place. A folder is filled under
a temporary name and renamed once it is complete. A kill in between leaves a temporary name that nobody reads.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from phiseg.core.errors import OutputError


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open `path` for binary writing; it appears, complete, when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
def atomic_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder to fill; it becomes `path` when the block ends without an error.

    Raises:
        OutputError: `path` exists and `overwrite` is not set, it is a file, or the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    replaced = path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        if path.exists() and not overwrite:
            raise OutputError(f"{path} exists already; choose another folder or pass --overwrite")
        if path.exists() and not path.is_dir():
            raise OutputError(f"{path} is a file; choose another folder")
        shutil.rmtree(temporary, ignore_errors=True)  # of a killed process that had our number
        temporary.mkdir(parents=True)
        yield temporary
        if path.exists():
            path.rename(replaced)
        try:
            temporary.rename(path)
        except OSError:
            with suppress(OSError):
                replaced.rename(path)
            raise
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _cannot_write(path: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write {path}: {error.strerror or error}; free space or choose another folder")
