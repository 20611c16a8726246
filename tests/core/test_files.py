"""Atomic files: the old content or the new, never half of either, and never a stray temporary name."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phiseg.core import files
from phiseg.core.errors import OutputError
from phiseg.core.files import atomic_file, atomic_folder, check_replaceable, write_json, write_text


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


def test_a_file_appears_complete_when_the_block_ends(tmp_path):
    path = tmp_path / "deep" / "er" / "file"
    with atomic_file(path) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert names(path.parent) == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_block_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(error):
        write(path, "new", error=error)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path, monkeypatch, failing):
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


def test_a_device_without_space_is_an_output_error(tmp_path):
    """The operating system's own refusal: /dev/full takes no byte."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    path = tmp_path / "file"
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(OutputError, match="No space left on device"):
        write_text(path, "x")
    assert names(tmp_path) == []


@pytest.mark.parametrize("make", [write, fill])
def test_a_path_below_a_file_is_an_output_error(tmp_path, make):
    (tmp_path / "file").write_text("old")
    with pytest.raises(OutputError, match="cannot write"):
        make(tmp_path / "file" / "inner", "new")
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("make", [write, fill])
def test_a_name_that_is_too_long_is_an_output_error(tmp_path, make):
    with pytest.raises(OutputError, match="name too long"):
        make(tmp_path / ("n" * 300), "new")
    assert names(tmp_path) == []


def test_text_is_utf_8(tmp_path):
    write_text(tmp_path / "file", "größer ½")
    assert (tmp_path / "file").read_bytes() == "größer ½".encode()


def test_json_is_indented_and_ends_with_a_newline(tmp_path):
    write_json(tmp_path / "file", {"b": 1, "a": [None, 0.1]})
    text = (tmp_path / "file").read_text()
    assert json.loads(text) == {"b": 1, "a": [None, 0.1]}
    assert text.startswith('{\n  "b": 1')
    assert text.endswith("}\n")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_json_refuses_what_json_does_not_have(tmp_path, number):
    write_json(tmp_path / "file", {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "file", {"a": number})
    assert json.loads((tmp_path / "file").read_text()) == {"a": 1}
    assert names(tmp_path) == ["file"]


def test_a_folder_appears_complete_when_the_block_ends(tmp_path):
    path = tmp_path / "deep" / "folder"
    with atomic_folder(path) as folder:
        (folder / "content").write_text("new")
        assert not path.exists()
    assert (path / "content").read_text() == "new"
    assert names(path.parent) == ["folder"]


def test_a_folder_is_overwritten_only_when_asked_for(tmp_path):
    path = tmp_path / "folder"
    fill(path, "old")
    (path / "left over").write_text("")
    with pytest.raises(OutputError, match="exists already; choose another folder or pass --overwrite"):
        fill(path, "new")
    assert (path / "content").read_text() == "old"
    fill(path, "new", overwrite=True)
    assert names(path) == ["content"]
    assert (path / "content").read_text() == "new"
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_block_leaves_the_old_folder(tmp_path, error):
    path = tmp_path / "folder"
    fill(path, "old")
    with pytest.raises(error):
        fill(path, "new", overwrite=True, error=error)
    assert (path / "content").read_text() == "old"
    assert names(tmp_path) == ["folder"]


def test_a_full_disk_in_the_block_leaves_the_old_folder_and_says_so(tmp_path):
    path = tmp_path / "folder"
    fill(path, "old")
    with pytest.raises(OutputError, match="No space left"):
        fill(path, "new", overwrite=True, error=NO_SPACE)
    assert (path / "content").read_text() == "old"
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("existed", [True, False])
def test_a_rename_that_fails_brings_the_old_folder_back(tmp_path, monkeypatch, existed):
    path = tmp_path / "folder"
    if existed:
        fill(path, "old")
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda a, b: no_space() if a.suffix == ".tmp" else rename(a, b))
    with pytest.raises(OutputError, match="No space left"):
        fill(path, "new", overwrite=True)
    assert names(tmp_path) == (["folder"] if existed else [])
    assert not existed or (path / "content").read_text() == "old"


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path):
    """In a container the process number is often the same every time."""
    stale = tmp_path / f".folder.{os.getpid()}.tmp"
    stale.mkdir()
    (stale / "half").write_text("")
    fill(tmp_path / "folder", "new")
    assert names(tmp_path / "folder") == ["content"]


def test_a_file_is_never_overwritten_by_a_folder(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(OutputError, match="is a file; choose another folder"):
        fill(tmp_path / "file", "new", overwrite=True)
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]


@pytest.fixture(scope="module")
def dead():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("mine", [True, False])
def test_a_folder_lost_between_two_renames_comes_back(tmp_path, dead, mine):
    """A kill after the old folder was moved away and before the new one took its place."""
    fill(tmp_path / f".folder.{os.getpid() if mine else dead}.old", "old")
    with pytest.raises(OutputError, match="exists already"):
        fill(tmp_path / "folder", "new")
    assert names(tmp_path) == ["folder"]
    assert (tmp_path / "folder" / "content").read_text() == "old"


@pytest.mark.parametrize("make", [write, fill])
def test_what_dead_processes_left_is_deleted_and_what_living_ones_write_is_kept(tmp_path, dead, make):
    options = {"overwrite": True} if make is fill else {}
    make(tmp_path / "name", "old")
    for suffix in ("tmp", "old"):
        fill(tmp_path / f".name.{dead}.{suffix}", "half")
        fill(tmp_path / f".name.{os.getppid()}.{suffix}", "half")
        (tmp_path / f".name.{dead + 1}x.{suffix}").write_text("of somebody else")
    make(tmp_path / "name", "new", **options)
    kept = [f".name.{number}.{suffix}" for number in (os.getppid(), f"{dead + 1}x") for suffix in ("tmp", "old")]
    assert names(tmp_path) == sorted([*kept, "name"])


def test_only_a_folder_with_the_marker_is_replaced(tmp_path):
    path = tmp_path / "folder"
    fill(path, "precious")
    with pytest.raises(
        OutputError, match=r"exists, and is not a result of phiseg \(it holds no summary.json\); choose"
    ):
        fill(path, "new", overwrite=True, marker="summary.json")
    assert (path / "content").read_text() == "precious"
    fill(path, "new", overwrite=True, marker="content")
    assert (path / "content").read_text() == "new"
    (tmp_path / "empty").mkdir()
    fill(tmp_path / "empty", "new", overwrite=True, marker="content")


def test_the_current_folder_is_a_folder_like_any_other(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for path in (Path(), Path("../here"), Path("..")):
        with pytest.raises(OutputError, match="exists already"):
            fill(path, "new")
    fill(Path(), "new", overwrite=True, marker="content")
    assert (tmp_path / "here" / "content").read_text() == "new"
    assert names(tmp_path) == ["here"]


def test_a_link_stays_and_its_folder_is_replaced(tmp_path):
    fill(tmp_path / "folder", "old")
    (tmp_path / "link").symlink_to("folder")
    fill(tmp_path / "link", "new", overwrite=True)
    assert (tmp_path / "folder" / "content").read_text() == "new"
    assert names(tmp_path) == ["folder", "link"]


@pytest.mark.parametrize("name", ["n" * 250, "n" * 300, "file/inner"])
def test_what_cannot_be_written_is_refused_before_any_work(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        check_replaceable(tmp_path / name)
    assert names(tmp_path) == ["file"]
