"""The fault tests detect failures."""

import gzip
import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from faults import fuzzing
from faults.fuzzing import judge, read_one, strays
from faults.mutations import damage_bytes, damage_tree, inside_gzip, inside_png, inside_zip
from faults.record import Part, always, counted
from faults.report import describe
from faults.trees import differences, half_written


@pytest.mark.parametrize(
    ("code", "said", "seen"),
    [
        (2, "phiseg: error: x.nii is damaged; copy it again", "rejected"),
        (0, "phiseg: skipped: case 'a': damaged\nwritten", "skipped"),
        (0, "written", "read"),
        (2, "reading: 100%|####| 3/3 [00:01<00:00, 2.9case/s]\nphiseg: error: bad", "rejected"),
        (2, 'Traceback (most recent call last):\n  File "a.py", line 3\nValueError: no', "lost"),
        (1, "phiseg: error: bad", "lost"),
        (2, "something went wrong", "lost"),
        (2, "", "lost"),
        (0, "x.py:3: RuntimeWarning: overflow", "lost"),
        (2, "phiseg: error: " + "x" * 10_000, "lost"),
    ],
)
def test_judge_uses_exit_code_and_last_line(code, said, seen):
    found, loss = judge("info", code, said)
    assert found == seen
    assert (loss is not None) == (seen == "lost")


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda bench: (bench.canary.touch(), SystemExit(0))[1], "canary was written, or run"),
        (lambda bench: ((bench.folder.parent / "evil").mkdir(), SystemExit(0))[1], "evil was written, or run"),
        (lambda bench: (_write(bench, "../../../evil"), SystemExit(0))[1], "evil was written, or run"),
        (lambda bench: (Path("evil").touch(), SystemExit(0))[1], "evil was written, or run"),
        (lambda bench: (Path("../../../evil").touch(), SystemExit(0))[1], "evil was written, or run"),
        (lambda bench: ((fuzzing.ROOT / "evil.npy").touch(), SystemExit(0))[1], "evil.npy was written, or run"),
        (lambda bench: KeyError("x"), "KeyError"),
    ],
)
def test_executed_code_and_broken_command_are_failures(act, says, monkeypatch, tmp_path):
    benches = []

    def make(bench):
        benches.append(bench)
        return ["info"]

    def main(words):
        raise act(benches[0])

    monkeypatch.setitem(fuzzing.FILES, "npz", (1, make))
    monkeypatch.setattr(fuzzing, "main", main)
    monkeypatch.setattr(fuzzing, "ROOT", tmp_path)
    base = tmp_path / "base"
    base.mkdir()
    (tmp_path / "log").touch()
    outcome = read_one("npz", 0, None, base, tmp_path / "log", seed=0, viewer=None)
    assert says in outcome.loss
    assert strays(base) == []
    assert not benches[0].folder.exists()


def _write(bench, name):
    bench.out.mkdir()
    (bench.out / name).touch()


def test_half_written_finds_truncated_visible_files(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(100))
    (tmp_path / "b.json").write_text("{}")
    (tmp_path / ".c.json.1.tmp").write_text("{")
    assert half_written(tmp_path) == []
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    (tmp_path / "b.json").write_text("{")
    assert [problem.split()[0] for problem in half_written(tmp_path)] == ["a.npy", "b.json"]


def test_differences_names_every_difference(tmp_path):
    for name, files in {
        "one": {"a": "1", "b": "2", "log": "x"},
        "two": {"a": "1", "b": "3", ".t": "", "log": "y"},
    }.items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
    found = differences(tmp_path / "one", tmp_path / "two", may_differ=("log",))
    assert found == [".t is left over", "b differs"]
    assert differences(tmp_path / "two", tmp_path / "one", may_differ=("log",)) == [".t is missing", "b differs"]


def test_mutations_depend_on_seed_and_fix_checksums():
    content = bytes(range(256)) * 8
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a", content)
    picture = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(picture, "PNG")
    different = 0
    for seed in range(40):
        first, second = (damage_bytes(content, np.random.default_rng(seed)) for _ in range(2))
        assert first == second
        different += first != content
        gzip.decompress(inside_gzip(damage_bytes)(gzip.compress(content), np.random.default_rng(seed)))
        changed = inside_zip(damage_bytes)(packed.getvalue(), np.random.default_rng(seed))
        assert zipfile.ZipFile(io.BytesIO(changed)).testzip() is None
        _check_png(inside_png(picture.getvalue(), np.random.default_rng(seed)))
    assert different > 30


def _check_png(content):
    place = 8
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        chunk = content[place + 4 : place + 8 + length]
        assert content[place + 8 + length : place + 12 + length] == struct.pack(">I", zlib.crc32(chunk))
        place += 12 + length


def test_mutated_tree_differs_in_one_place():
    tree = {"a": [1, {"b": "c"}], "d": 2.5}
    damaged = [damage_tree(tree, np.random.default_rng(seed), "canary") for seed in range(30)]
    assert tree == {"a": [1, {"b": "c"}], "d": 2.5}
    assert sum(other != tree for other in damaged) > 25


def test_report_lists_failures():
    part = Part("Bytes", "By hand.", asked=4)
    part.add("npz", 3, "2 rejected", [[], ["input 7: <a traceback>", "input 7: and a crash"]])
    use = Part("Load", "By clients.", of_faults=False)
    use.add("clicks", 50, "answered", [])
    told = {"command": "python -m faults --seed 5", "seed": 5, "where": "a day, a machine"}
    page = describe([part, use], **told, left_out=["kills", "disk"])
    assert "\npython -m faults --seed 5\n" in page
    assert "**3 faults, 1 failure**. Not run: kills, disk.\n" in page
    assert "| npz | 3 | 2 rejected | 1 |" in page
    assert "- npz: input 7: \\<a traceback>" in page
    assert "- npz: input 7: and a crash" in page
    assert page.count("Planned trials") == page.count("Planned trials: 4. Completed in the available time: 3.") == 1
    assert "**0 faults, no failures**.\n" in describe([Part("Bytes", "By hand.")], **told)


def test_counted_omits_zeros():
    assert counted({"rejected": 3000, "read": 1, "skipped": 0}) == "3,000 rejected, 1 read"
    assert counted({"read": 0}) == "nothing"


def test_always_requires_trials_without_failures():
    assert always("the same bytes", [[], []]) == "the same bytes"
    assert always("the same bytes", [[], ["a.npy differs"]]) == "see below"
    assert always("the same bytes", []) == "not tried"
