"""metrics.jsonl: writing, reading and resuming."""

import builtins
import json

import pytest

from phiseg.core.errors import ConfigError, OutputError
from phiseg.training.tracking import Tracker, read_metrics


def write(folder, steps, *, start=0, **options):
    tracker = Tracker(folder, start=start, **options)
    for step in steps:
        tracker.write(step, "train", {"loss": 1 / step, "skipped": 0})
    return tracker.path


def test_tracker_writes_json_lines(tmp_path):
    path = write(tmp_path, [1, 2])
    Tracker(tmp_path, start=2).write(2, "val", {"loss": 0.1, "s_ncc": None})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [
        {"step": 1, "kind": "train", "loss": 1.0, "skipped": 0},
        {"step": 2, "kind": "train", "loss": 0.5, "skipped": 0},
        {"step": 2, "kind": "val", "loss": 0.1, "s_ncc": None},
    ]
    assert read_metrics(path) == lines


@pytest.mark.parametrize("start", [1, 3, 5])
def test_tracker_removes_lines_after_last_state(start, tmp_path):
    whole = write(tmp_path, range(1, 6)).read_text()
    path = write(tmp_path, range(start + 1, 6), start=start)
    assert path.read_text() == whole


def test_tracker_starts_new_run_with_empty_file(tmp_path):
    write(tmp_path, [1, 2, 3])
    assert write(tmp_path, []).read_text() == ""


@pytest.mark.parametrize("cut", range(1, 50, 7))
def test_read_metrics_skips_incomplete_last_line(cut, tmp_path):
    path = write(tmp_path, [1, 2, 3])
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert [line["step"] for line in read_metrics(path)] == ([1, 2] if cut > 1 else [1, 2, 3])
    assert write(tmp_path, [3], start=2).read_bytes() == whole


@pytest.mark.parametrize("junk", [b"\xff\xfe\x00", b"{", b"[]", b"7", b'{"kind": "train"}', b'{"step": "3"}'])
def test_read_metrics_stops_at_damaged_line(junk, tmp_path):
    path = write(tmp_path, [1, 2])
    path.write_bytes(path.read_bytes() + junk + b'\n{"step": 3, "kind": "train"}\n')
    assert [line["step"] for line in read_metrics(path)] == [1, 2]


def test_read_metrics_of_missing_file(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_tracker_reports_write_errors(tmp_path):
    tracker = Tracker(tmp_path, start=0)
    tracker.path.unlink()
    tracker.path.mkdir()
    with pytest.raises(OutputError, match=r"metrics\.jsonl.*--resume"):
        tracker.write(1, "train", {"loss": 1.0})


def test_tracker_writes_tensorboard(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write(tmp_path, [1, 2, 4], tensorboard=True)
    Tracker(tmp_path, start=4, tensorboard=True).write(4, "val", {"ged": 0.25, "dice": None})
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 1.0), (2, 0.5), (4, 0.25)]
    assert [(event.step, event.value) for event in events.Scalars("val/ged")] == [(4, 0.25)]
    assert "val/dice" not in events.Tags()["scalars"]


def test_tracker_names_missing_tensorboard_extra(tmp_path, monkeypatch):
    original = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"phiseg\[tensorboard\]"):
        Tracker(tmp_path, start=0, tensorboard=True)


def test_tracker_reports_missing_folder(tmp_path):
    run = tmp_path / "run"
    tracker = Tracker(run, start=0)
    tracker.write(1, "train", {"loss": 1.0})
    tracker.path.unlink()
    with pytest.raises(OutputError, match=r"metrics\.jsonl no longer exists; restore the folder and use --resume"):
        tracker.write(2, "train", {"loss": 1.0})
    assert not tracker.path.exists(), "half of the lines would pass for all of them"
    run.rmdir()
    with pytest.raises(OutputError, match="no longer exists"):
        tracker.write(2, "train", {"loss": 1.0})
