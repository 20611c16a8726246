"""Registry of scores: one entry is enough to store, compare and select by a new metric."""

import csv
import json
import re

import numpy as np
import pytest
import torch

from phiseg.comparison.compare import compare
from phiseg.core.errors import ConfigError
from phiseg.data.store import Dataset
from phiseg.evaluation.evaluation_folder import read_evaluation
from phiseg.evaluation.model_evaluation import evaluate
from phiseg.inference.sampling import sample_cases
from phiseg.metrics.score import CaseScore, PixelScore
from phiseg.metrics.score_registry import SCORES, table_scores
from phiseg.models import load_model
from phiseg.training.loop import train
from phiseg.training.recipe import load_recipe
from phiseg.training.tracking import read_metrics


def mean_area(labels):
    """Return the mean foreground area of the samples (S, H, W)."""
    return float((labels > 0).sum() / len(labels))


AREA = CaseScore(
    name="sample_area",
    group="main",
    heading="sample_area",
    better="higher",
    decimals=2,
    of=lambda case: mean_area(case.labels),
    description="Mean foreground area of the samples.",
)
DRAWN = PixelScore(
    name="drawn",
    group="further",
    heading="drawn",
    table=lambda case: torch.tensor([(case.annotations > 0).sum(), case.annotations.numel()]),
    of=lambda table: float(table[0] / table[1]),
    description="Share of pixels that annotators marked.",
)


@pytest.fixture
def register(monkeypatch):
    """Return a function that adds entries to the table for the time of the test."""

    def add(*scores):
        for score in scores:
            monkeypatch.setitem(SCORES, score.name, score)

    return add


def score(model, data, out):
    evaluate(model, data, out, num_samples=4, num_examples=1, progress=False)
    return out


def test_new_scores_reach_the_files_of_an_evaluation(register, trained, lesions, tmp_path):
    register(AREA, DRAWN)
    folder = score(trained(), lesions, tmp_path / "eval")
    dataset = Dataset.open(lesions)
    rows = dataset.rows("test").tolist()
    drawn = sample_cases(load_model(trained()), dataset, rows, num_samples=4, seed=0)
    expected = [mean_area(case.summary.labels) for case in drawn]
    with (folder / "cases.csv").open(newline="") as file:
        assert [float(row["sample_area"]) for row in csv.DictReader(file)] == expected
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["sample_area"] == pytest.approx(np.mean(expected))
    assert "sample_area" in summary["intervals"]
    marked = np.concatenate([dataset.annotations(row) for row in rows]) > 0
    assert summary["drawn"] == pytest.approx(marked.mean())
    read = read_evaluation(folder)
    assert (read.cases["sample_area"], read.summary.drawn) == (expected, summary["drawn"])


def test_reuse_computes_scores_that_an_evaluation_lacks(register, trained, lesions, tmp_path):
    options = {"num_samples": 4, "num_examples": 1, "progress": False, "reuse": True}
    first = evaluate(trained(), lesions, tmp_path / "eval", **options)
    written = (tmp_path / "eval" / "summary.json").stat().st_mtime_ns
    evaluate(trained(), lesions, tmp_path / "eval", **options)
    assert (tmp_path / "eval" / "summary.json").stat().st_mtime_ns == written
    register(AREA)
    assert first.sample_area is None
    assert evaluate(trained(), lesions, tmp_path / "eval", **options).sample_area > 0


def test_new_scores_reach_the_tables_and_the_report(register, trained, lesions, tmp_path):
    before = score(trained("unet"), lesions, tmp_path / "before")
    register(AREA, DRAWN)
    after = score(trained("phiseg"), lesions, tmp_path / "after")
    out = tmp_path / "report"
    table = compare([before, after], out)
    assert [row.sample_area is None for row in table.rows] == [True, False]
    with (out / "table.csv").open(newline="") as file:
        older, newer = csv.DictReader(file)
    value = table.rows[1].sample_area
    assert (older["sample_area"], float(newer["sample_area"])) == ("", value)
    assert float(newer["sample_area_low"]) < value < float(newer["sample_area_high"])
    assert {"sample_area_spread", "sample_area_marked", "drawn_spread"} <= newer.keys()
    assert float(newer["drawn"]) == table.rows[1].drawn
    markdown, latex, page = ((out / name).read_text() for name in ("table.md", "table.tex", "report.html"))
    assert r"| Dice ↑ | sample\_area ↑ |" in markdown
    assert f"| {value:.2f} |" in markdown
    assert r"& sample\_area $\uparrow$ &" in latex
    assert "Drawn: Share of pixels that annotators marked." in markdown
    assert re.search(r"<dt>Sample_area</dt><dd>Mean foreground area of the samples.", page)


def test_a_new_score_selects_the_model(register, make_recipe, lesions, tmp_path):
    with pytest.raises(ConfigError, match="select_by"):
        load_recipe("phiseg-small", ["--train.select_by=sample_area"])
    register(AREA)
    assert load_recipe("phiseg-small", ["--train.select_by=sample_area"]).train.select_by == "sample_area"
    recipe = make_recipe("unet", select_by="sample_area", steps=6, validate_every=1)
    train(recipe, lesions, tmp_path / "run", progress=False)
    found = {
        row["step"]: row["sample_area"]
        for row in read_metrics(tmp_path / "run" / "metrics.jsonl")
        if row["kind"] == "val"
    }
    assert len(found) == 6
    assert load_model(tmp_path / "run").provenance["step"] == max(found, key=found.get)


def test_further_score_is_validated_only_if_it_selects(make_recipe, lesions, tmp_path):
    for name, select_by in (("plain", "loss"), ("chosen", "hm_iou")):
        train(make_recipe("unet", select_by=select_by, steps=1), lesions, tmp_path / name, progress=False)
    plain, chosen = (read_metrics(tmp_path / name / "metrics.jsonl")[-1] for name in ("plain", "chosen"))
    assert chosen.keys() - plain.keys() == {"hm_iou"}
    assert "| hm_iou |" in (tmp_path / "chosen" / "model" / "README.md").read_text()


def test_columns_follow_the_scores_they_are_read_beside():
    names = [score.name for score in table_scores("main")]
    assert names[:4] == ["ged", "ged_floor", "ged_excess", "ged_unbiased"]
    assert sorted(names) == sorted(score.name for score in SCORES.values() if score.group == "main")


def test_every_entry_is_complete():
    for name, entry in SCORES.items():
        assert entry.name == name
        assert re.fullmatch("[a-z][a-z0-9_]*", name)
        assert entry.heading
        assert re.fullmatch(r"[A-Zδ][^\n]*[.?]", entry.description), name
        assert not entry.beside or entry.beside in SCORES
