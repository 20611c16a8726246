"""Rows of the public benchmark: added from `phiseg score`, checked for equal cases, made into tables and plots."""

import csv
import gzip
import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from phiseg.core.errors import DataError
from phiseg.data.split_files import apply_split_file, read_split_file, write_split_file
from phiseg.data.store import Dataset
from phiseg.evaluation.evaluation_folder import read_evaluation
from phiseg.evaluation.score_samples import score

FOLDER = Path(__file__).parents[2] / "experiments" / "benchmark"
VALUES = {
    "track": "tiny",
    "seed": 0,
    "code": "https://example.org/code",
    "commit": "0123abc",
    "minutes": 1.5,
    "hardware": "CPU",
}


@pytest.fixture(scope="module")
def rows():
    """The script, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("benchmark_rows", FOLDER / "rows.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path, rows):
    """An empty benchmark with one track of 3 samples."""
    place = tmp_path / "benchmark"
    place.mkdir()
    track = {"title": "Tiny lesions", "split": "train", "num_samples": 3, "dice_annotator": "all"}
    (place / "tracks.json").write_text(json.dumps({"tiny": track}))
    rows.write_rows(place, [])
    return place


@pytest.fixture
def synthetic(lesions, tmp_path):
    """Return a function that scores samples which copy annotators, with a share of wrong pixels."""

    def make(name, *, noise=0.0, data=lesions, num_samples=3, split="train"):
        dataset, rng = Dataset.open(data), np.random.default_rng(0)
        labels = np.stack(
            [dataset.annotations(row)[rng.integers(4, size=num_samples)] for row in dataset.rows(split)]
        )
        labels = np.where(rng.random(labels.shape) < noise, 1 - labels, labels)
        (written,) = score(labels, data, tmp_path / name, split=split, method=name, progress=False)
        return written.path

    return make


def test_row_from_outside_reaches_table_and_plot(rows, folder, synthetic):
    good, bad = synthetic("good"), synthetic("bad", noise=0.4)
    rows.main(
        [
            *(
                "add",
                str(good),
                "--track",
                "tiny",
                "--method",
                "good",
                "--code",
                "https://example.org",
                "--commit",
                "1a",
            ),
            *("--seed", "0", "--minutes", "60.0", "--hardware", "CPU", "--seconds", "2.5", "--folder", str(folder)),
        ]
    )
    rows.add_row(bad, VALUES | {"method": "bad", "minutes": 60.0}, folder)
    (first, second) = rows.read_rows(folder)
    assert (first["method"], second["method"], first["num_samples"]) == ("bad", "good", "3")
    assert second["samples_sha256"] == read_evaluation(good).summary.samples.sha256
    rows.main(["table", "--folder", str(folder)])
    with (folder / "results" / "table.csv").open(newline="") as file:
        table = {line["method"]: line for line in csv.DictReader(file)}
    assert list(table) == ["good", "bad"]  # the better one comes first
    for name, path in (("good", good), ("bad", bad)):
        summary = read_evaluation(path).summary
        assert float(table[name]["ged_unbiased"]) == pytest.approx(summary.ged_unbiased, abs=1e-6)
        assert float(table[name]["hm_iou"]) == pytest.approx(summary.hm_iou, abs=1e-6)
        low, high = summary.intervals["ged_unbiased"]
        assert float(table[name]["ged_unbiased_low"]) == pytest.approx(low, abs=1e-6)
        assert float(table[name]["ged_unbiased_high"]) == pytest.approx(high, abs=1e-6)
    text = (folder / "results" / "table.md").read_text()
    assert f"**{read_evaluation(good).summary.ged_unbiased:.4f}**" in text
    assert "| 60 min |" in text
    assert (folder / "results" / "tiny.png").read_bytes().startswith(b"\x89PNG")


def test_methods_are_compared_only_at_equal_budget(rows, folder, synthetic):
    good, bad = synthetic("good"), synthetic("bad", noise=0.4)
    rows.add_row(good, VALUES | {"method": "long", "minutes": 60.0}, folder)
    rows.add_row(bad, VALUES | {"method": "short"}, folder)
    assert [line["best"] for line in rows.make_tables(folder)["tiny"]] == ["", ""]
    rows.add_row(good, VALUES | {"method": "better"}, folder)
    best = {line["method"]: line["best"] for line in rows.make_tables(folder)["tiny"]}
    assert "ged_unbiased" in best["better"]
    assert best["long"] == best["short"] == ""


def test_set_aside_row_is_marked_and_not_compared(rows, folder, synthetic):
    good, bad = synthetic("good"), synthetic("bad", noise=0.4)
    rows.add_row(good, VALUES | {"method": "good"}, folder)
    rows.add_row(bad, VALUES | {"method": "bad", "set_aside": "learning rate too high", "note": "10 steps"}, folder)
    assert [line["best"] for line in rows.make_tables(folder)["tiny"]] == ["", ""]  # nothing to compare with
    text = (folder / "results" / "table.md").read_text()
    assert "| bad † |" in text
    assert "- bad: † learning rate too high; 10 steps" in text
    rows.add_row(bad, VALUES | {"method": "worse"}, folder)
    best = {line["method"]: line["best"] for line in rows.make_tables(folder)["tiny"]}
    assert "ged_unbiased" in best["good"]
    assert best["bad"] == ""


def test_plot_shows_quality_against_sampling_time(rows, folder, synthetic):
    """Only rows with a sampling time are in the right panel; seeds of a method are averaged."""
    for name, noise, seconds in (("fast", 0.2, (1.0, 3.0)), ("slow", 0.0, (40.0,)), ("untimed", 0.1, (None,))):
        for seed, time in enumerate(seconds):
            path = synthetic(f"{name}-{seed}", noise=noise)
            rows.add_row(path, VALUES | {"method": name, "seed": seed, "seconds_per_100_samples": time}, folder)
    lines = {line["method"]: line for line in rows.make_tables(folder)["tiny"]}
    _, scatter = rows._plot([*lines.values()]).axes
    points = {(float(mark.get_xdata()[0]), float(mark.get_ydata()[0])) for mark in scatter.lines}
    assert points == {(2.0, lines["fast"]["ged_unbiased"]), (40.0, lines["slow"]["ged_unbiased"])}
    assert {text.get_text() for text in scatter.texts} == {"fast", "slow"}
    assert (scatter.get_xscale(), scatter.get_xlabel()) == ("log", "seconds per 100 samples")
    text = (folder / "results" / "table.md").read_text()
    assert [row.split(" | ")[-1] for row in text.splitlines() if row.startswith("| untimed")] == ["- |"]
    undefined = [line | {"ged_unbiased": None} for line in lines.values()]
    assert not rows._plot(undefined).axes[1].lines


def test_several_seeds_make_one_line(rows, folder, synthetic):
    paths = [synthetic(f"seed-{seed}", noise=0.1 * seed) for seed in (0, 1)]
    for seed, path in enumerate(paths):
        rows.add_row(path, VALUES | {"method": "one", "seed": seed}, folder)
    (line,) = rows.make_tables(folder)["tiny"]
    assert line["trainings"] == 2
    expected = np.mean([read_evaluation(path).summary.ged for path in paths])
    assert line["ged"] == pytest.approx(expected, abs=1e-6)


def test_stored_cases_are_those_of_the_evaluation(rows, folder, synthetic):
    path = synthetic("one")
    row = rows.add_row(path, VALUES | {"method": "Größe & 1"}, folder)
    assert row["cases"] == "cases/tiny-gr-e-1-seed-0.csv.gz"
    text = gzip.decompress((folder / row["cases"]).read_bytes()).decode()
    assert text == (path / "cases.csv").read_text()
    assert rows.read_cases(folder / row["cases"])["ged"] == read_evaluation(path).cases["ged"]


def test_rows_that_do_not_follow_the_protocol_are_refused(rows, folder, synthetic, lesions, copy, replace_arrays):
    good = synthetic("good")
    rows.add_row(good, VALUES | {"method": "good"}, folder)
    with pytest.raises(DataError, match="already has"):
        rows.add_row(good, VALUES | {"method": "good"}, folder)
    with pytest.raises(DataError, match="no track 'x'"):
        rows.add_row(good, VALUES | {"method": "y", "track": "x"}, folder)
    with pytest.raises(DataError, match="num_samples 2, but track tiny needs 3"):
        rows.add_row(synthetic("few", num_samples=2), VALUES | {"method": "y"}, folder)
    with pytest.raises(DataError, match="split test, but track tiny needs train"):
        rows.add_row(synthetic("test", split="test"), VALUES | {"method": "y"}, folder)
    tracks = json.loads((folder / "tracks.json").read_text())
    tracks["expert"] = tracks["tiny"] | {"dice_annotator": 0}
    (folder / "tracks.json").write_text(json.dumps(tracks))
    with pytest.raises(DataError, match="dice_annotator all, but track expert needs 0"):
        rows.add_row(good, VALUES | {"method": "y", "track": "expert"}, folder)
    resplit = copy(lesions, "resplit")
    Dataset.open(resplit).resplit(seed=7, fractions=(60, 20, 20))
    with pytest.raises(DataError, match="has other cases than the track"):
        rows.add_row(synthetic("resplit-eval", data=resplit), VALUES | {"method": "y"}, folder)
    changed = copy(lesions, "changed")
    labels = np.load(changed / "labels.npy")
    labels[:, 0, :8] = 1
    replace_arrays(changed, labels=labels)
    with pytest.raises(DataError, match="has other annotations than in the track"):
        rows.add_row(synthetic("changed-eval", data=changed), VALUES | {"method": "y"}, folder)
    assert len(rows.read_rows(folder)) == 1


def test_first_row_of_a_track_must_use_its_split_file(rows, folder, synthetic, lesions, copy):
    tracks = json.loads((folder / "tracks.json").read_text())
    tracks["tiny"]["split_file"] = "split.json"
    (folder / "tracks.json").write_text(json.dumps(tracks))
    write_split_file(Dataset.open(lesions), folder / "split.json", name="tiny-split")
    with pytest.raises(DataError, match="scored on an unnamed split, but track tiny needs 'tiny-split'"):
        rows.add_row(synthetic("other"), VALUES | {"method": "other"}, folder)
    named = copy(lesions, "named")
    apply_split_file(Dataset.open(named), folder / "split.json")
    rows.add_row(synthetic("named-eval", data=named), VALUES | {"method": "good"}, folder)
    assert [row["method"] for row in rows.read_rows(folder)] == ["good"]


@pytest.mark.parametrize("value", [{"method": "a|b"}, {"note": "two\nlines"}])
def test_values_that_break_a_table_are_refused(rows, folder, synthetic, value):
    with pytest.raises(DataError, match=rf"{next(iter(value))} contains '\|' or a line break"):
        rows.add_row(synthetic("good"), VALUES | {"method": "good"} | value, folder)
    assert rows.read_rows(folder) == []


def test_published_results_follow_from_the_rows(rows, tmp_path):
    copied = Path(shutil.copytree(FOLDER, tmp_path / "copy"))
    before = {name: (copied / "results" / name).read_text() for name in ("table.md", "table.csv")}
    rows.make_tables(copied)
    assert {name: (copied / "results" / name).read_text() for name in before} == before


def test_split_files_of_the_tracks_are_valid():
    tracks = json.loads((FOLDER / "tracks.json").read_text())
    for track in tracks.values():
        found = read_split_file(FOLDER / track["split_file"])
        assert track["split"] in found.splits
        assert found.source
