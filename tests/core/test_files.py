"""Atomic files and folders: old or new content, never a mixture, and no temporary files left behind."""

import errno
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from phiseg.core import files
from phiseg.core.errors import OutputError
from phiseg.core.files import atomic_file, atomic_folder, check_replaceable, one_process, write_json, write_text


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_space(*_args, **_kwargs):
    raise NO_SPACE


def fill(path, text, *, error=None, **options):
    with atomic_folder(path, **options) as folder:
        (folder / "content").write_text(text)
        if error:
            raise error


def write(path, text, *, error=None):
    with atomic_file(path) as file:
        file.write(text.encode())
        if error:
            raise error


def test_atomic_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "deep" / "er" / "file"
    with atomic_file(path) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert names(path.parent) == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_atomic_file_keeps_old_content_on_error(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(error):
        write(path, "new", error=error)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_atomic_file_keeps_old_content_on_full_disk(tmp_path, monkeypatch, failing):
    path = tmp_path / "file"
    path.write_text("old")
    if failing == "fsync":
        monkeypatch.setattr(files.os, "fsync", no_space)
    if failing == "replace":
        monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(OutputError, match=r"cannot write .*file: No space left on device; free space"):
        write(path, "new", error=NO_SPACE if failing == "write" else None)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_write_text_reports_full_device(tmp_path):
    """/dev/full fails every write."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    path = tmp_path / "file"
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(OutputError, match="No space left on device"):
        write_text(path, "x")
    assert names(tmp_path) == []


@pytest.mark.parametrize("make", [write, fill])
def test_write_below_a_file_is_an_output_error(tmp_path, make):
    (tmp_path / "file").write_text("old")
    with pytest.raises(OutputError, match="cannot write"):
        make(tmp_path / "file" / "inner", "new")
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("make", [write, fill])
def test_write_with_too_long_name_is_an_output_error(tmp_path, make):
    with pytest.raises(OutputError, match="name too long"):
        make(tmp_path / ("n" * 300), "new")
    assert names(tmp_path) == []


def test_write_text_uses_utf_8(tmp_path):
    write_text(tmp_path / "file", "größer ½")
    assert (tmp_path / "file").read_bytes() == "größer ½".encode()


def test_write_json_is_indented_and_ends_with_newline(tmp_path):
    write_json(tmp_path / "file", {"b": 1, "a": [None, 0.1]})
    text = (tmp_path / "file").read_text()
    assert json.loads(text) == {"b": 1, "a": [None, 0.1]}
    assert text.startswith('{\n  "b": 1')
    assert text.endswith("}\n")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_write_json_rejects_nan_and_infinity(tmp_path, number):
    write_json(tmp_path / "file", {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "file", {"a": number})
    assert json.loads((tmp_path / "file").read_text()) == {"a": 1}
    assert names(tmp_path) == ["file"]


def test_atomic_folder_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "deep" / "folder"
    with atomic_folder(path) as folder:
        (folder / "content").write_text("new")
        assert not path.exists()
    assert (path / "content").read_text() == "new"
    assert names(path.parent) == ["folder"]


def test_atomic_folder_needs_overwrite_to_replace(tmp_path):
    path = tmp_path / "folder"
    fill(path, "old")
    (path / "left over").write_text("")
    with pytest.raises(OutputError, match="already exists; choose another folder or pass --overwrite"):
        fill(path, "new")
    assert (path / "content").read_text() == "old"
    fill(path, "new", overwrite=True)
    assert names(path) == ["content"]
    assert (path / "content").read_text() == "new"
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_atomic_folder_keeps_old_content_on_error(tmp_path, error):
    path = tmp_path / "folder"
    fill(path, "old")
    with pytest.raises(error):
        fill(path, "new", overwrite=True, error=error)
    assert (path / "content").read_text() == "old"
    assert names(tmp_path) == ["folder"]


def test_atomic_folder_keeps_old_content_on_full_disk(tmp_path):
    path = tmp_path / "folder"
    fill(path, "old")
    with pytest.raises(OutputError, match="No space left"):
        fill(path, "new", overwrite=True, error=NO_SPACE)
    assert (path / "content").read_text() == "old"
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("existed", [True, False])
def test_atomic_folder_restores_old_folder_if_rename_fails(tmp_path, monkeypatch, existed):
    path = tmp_path / "folder"
    if existed:
        fill(path, "old")
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda a, b: no_space() if a.suffix == ".tmp" else rename(a, b))
    with pytest.raises(OutputError, match="No space left"):
        fill(path, "new", overwrite=True)
    assert names(tmp_path) == (["folder"] if existed else [])
    assert not existed or (path / "content").read_text() == "old"


def test_atomic_folder_replaces_stale_folder_with_own_pid(tmp_path):
    """In a container, the process ID is often the same every time."""
    stale = tmp_path / f".folder.{os.getpid()}.tmp"
    stale.mkdir()
    (stale / "half").write_text("")
    fill(tmp_path / "folder", "new")
    assert names(tmp_path / "folder") == ["content"]


def test_atomic_folder_never_replaces_a_file(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(OutputError, match="is a file; choose another folder"):
        fill(tmp_path / "file", "new", overwrite=True)
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]


@pytest.fixture(scope="module")
def dead_pid():
    """ID of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("own", [True, False])
def test_atomic_folder_recovers_folder_lost_between_renames(tmp_path, dead_pid, own):
    """The process was killed after moving the old folder away and before renaming the new one."""
    fill(tmp_path / f".folder.{os.getpid() if own else dead_pid}.old", "old")
    with pytest.raises(OutputError, match="already exists"):
        fill(tmp_path / "folder", "new")
    assert names(tmp_path) == ["folder"]
    assert (tmp_path / "folder" / "content").read_text() == "old"


@pytest.mark.parametrize("make", [write, fill])
def test_recovery_deletes_files_of_dead_processes_only(tmp_path, dead_pid, make):
    options = {"overwrite": True} if make is fill else {}
    make(tmp_path / "name", "old")
    for suffix in ("tmp", "old"):
        fill(tmp_path / f".name.{dead_pid}.{suffix}", "half")
        fill(tmp_path / f".name.{os.getppid()}.{suffix}", "half")
        (tmp_path / f".name.{dead_pid + 1}x.{suffix}").write_text("unrelated")
    make(tmp_path / "name", "new", **options)
    kept = [f".name.{pid}.{suffix}" for pid in (os.getppid(), f"{dead_pid + 1}x") for suffix in ("tmp", "old")]
    assert names(tmp_path) == sorted([*kept, "name"])


def test_atomic_folder_replaces_only_folder_with_marker(tmp_path):
    path = tmp_path / "folder"
    fill(path, "precious")
    with pytest.raises(
        OutputError,
        match=r"exists, but is not a result of phiseg \(it contains no summary.json of phiseg\); choose",
    ):
        fill(path, "new", overwrite=True, marker="summary.json")
    assert (path / "content").read_text() == "precious"
    fill(path, "new", overwrite=True, marker="content")
    assert (path / "content").read_text() == "new"
    (tmp_path / "empty").mkdir()
    fill(tmp_path / "empty", "new", overwrite=True, marker="content")


@pytest.mark.parametrize("marker", ["{}", '{"format": "nnU-Net"}', "[]"])
def test_atomic_folder_keeps_results_of_other_programs(marker, tmp_path):
    """nnU-Net also writes dataset.json and summary.json."""
    path = tmp_path / "raw"
    fill(path, "precious")
    (path / "dataset.json").write_text(marker)
    with pytest.raises(OutputError, match="not a result of phiseg"):
        fill(path, "new", overwrite=True, marker="dataset.json")
    assert (path / "content").read_text() == "precious"
    (path / "dataset.json").write_text('{"format": "phiseg-dataset", "version": 1}')
    fill(path, "new", overwrite=True, marker="dataset.json")
    assert (path / "content").read_text() == "new"


def test_atomic_folder_handles_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for path in (Path(), Path("../here"), Path("..")):
        with pytest.raises(OutputError, match="already exists"):
            fill(path, "new")
    fill(Path(), "new", overwrite=True, marker="content")
    assert (tmp_path / "here" / "content").read_text() == "new"
    assert names(tmp_path) == ["here"]


def test_atomic_folder_follows_symbolic_links(tmp_path):
    fill(tmp_path / "folder", "old")
    (tmp_path / "link").symlink_to("folder")
    fill(tmp_path / "link", "new", overwrite=True)
    assert (tmp_path / "folder" / "content").read_text() == "new"
    assert names(tmp_path) == ["folder", "link"]


@pytest.mark.parametrize("name", ["n" * 250, "n" * 300, "file/inner"])
def test_check_replaceable_rejects_unwritable_paths(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        check_replaceable(tmp_path / name)
    assert names(tmp_path) == ["file"]


HOLD = """
import sys
from pathlib import Path
from phiseg.core.files import one_process
with one_process(Path(sys.argv[1]), "at work"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_folder_is_locked_until_its_process_is_killed(tmp_path):
    folder = tmp_path / "new" / "folder"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(OutputError, match="another process is at work"), one_process(folder, "at work"):
            pytest.fail("both processes have the lock")
        holder.kill()
        holder.wait()
        for _ in range(2):  # the lock is free again, also after a block that failed
            with pytest.raises(KeyError), one_process(folder, "at work"):
                raise KeyError


@pytest.mark.parametrize(("number", "written"), [(errno.ENOLCK, True), (errno.EACCES, False)])
def test_folder_is_used_without_a_lock_where_the_file_system_has_none(number, written, monkeypatch, tmp_path):
    def acquire(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.FileLock, "acquire", acquire)
    with (
        nullcontext() if written else pytest.raises(OutputError, match="cannot write"),
        one_process(tmp_path, "at work"),
    ):
        (tmp_path / "file").touch()
    assert (tmp_path / "file").exists() == written


def test_lock_in_place_of_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"), one_process(tmp_path / "file", "at work"):
        pytest.fail("a file was used as a folder")
