"""Evaluation of volumes of different depth, compared with plain loops over cases, and figures in three planes."""

import csv
import json

import numpy as np
import pytest

from helpers import naive_metrics as naive
from helpers.figure_checks import assert_readable, pictures
from helpers.small_volumes import CHANNELS, DEPTHS, SIZE, SPACING_MM, write_volumes
from helpers.tiny_models import tiny_phiseg, trained
from phiseg.comparison.compare import compare
from phiseg.comparison.figures import sample_panel
from phiseg.core.errors import DataError, ModelError
from phiseg.core.shard import Shard
from phiseg.data.store import Dataset
from phiseg.evaluation import model_evaluation
from phiseg.evaluation.calibrate import fit_calibration
from phiseg.evaluation.evaluation_folder import read_evaluation
from phiseg.evaluation.model_evaluation import draw_examples, evaluate
from phiseg.evaluation.score_samples import score
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sample_writer import write_samples
from phiseg.inference.sampling import sample_cases
from phiseg.metrics.score_registry import SCORES
from phiseg.models import load_model, save_model
from phiseg.models.phiseg import PHiSegConfig

VOXEL_ML = np.prod(SPACING_MM) / 1000
PATIENTS = [f"patient-{index}" for index in range(5)]
NUM_SAMPLES = 6
OPTIONS = {"num_samples": NUM_SAMPLES, "num_examples": 3, "progress": False}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Five volumes of different depth, all in the test split."""
    folder = tmp_path_factory.mktemp("data") / "volumes"
    write_volumes(folder, splits={"train": [], "val": [], "test": PATIENTS})
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two 3-D models with different weights."""
    settings = {"channels": (4, 5), "num_levels": 2, "blocks_per_level": 1, "image_channels": CHANNELS, "dims": 3}
    folders = []
    for seed in range(2):
        model = trained(PHiSegConfig(**settings), steps=2, size=(3, *SIZE), seed=seed)
        folders.append(tmp_path_factory.mktemp("models") / f"model-{seed}")
        save_model(folders[-1], model, preprocessing={}, provenance={}, card="")
    return folders


@pytest.fixture(scope="module")
def evaluations(data, models, tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluations")
    for number, model in enumerate(models):
        evaluate(model, data, out / f"{number}", method=f"method {number}", **OPTIONS)
    return [out / "0", out / "1"]


def as_picture(masks):
    """Return volumes as pictures with their slices below each other, as nested lists."""
    return masks.reshape(len(masks), -1, SIZE[1]).tolist()


def test_scores_are_those_of_whole_volumes(evaluations, data, models):
    dataset, model = Dataset.open(data), load_model(models[0])
    with (evaluations[0] / "cases.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["case"] for row in rows] == [f"volume-{index}" for index in range(5)]
    assert not any(name.startswith("area") for name in rows[0])
    drawn = sample_cases(model, dataset, range(5), num_samples=NUM_SAMPLES, seed=0, keep_probs=True)
    for row, case in zip(rows, drawn, strict=True):
        samples = as_picture(case.summary.labels.numpy())
        experts = as_picture(dataset.annotations(case.row))
        probs = case.probs.flatten(2, 3)
        gamma = naive.gamma(probs.tolist())
        prediction = probs.mean(0).argmax(0).tolist()
        coverage, width = naive.area_interval(samples, experts, 2)
        expected = {
            "ged": naive.ged(samples, experts, 2),
            "ged_unbiased": naive.ged(samples, experts, 2, distinct=True),
            "s_ncc": np.mean([naive.pearson(gamma, naive.error(probs.tolist(), y)) for y in experts]),
            "dice": np.mean([naive.dice(prediction, y, 2) for y in experts]),
            "best_dice": naive.best_dice(samples, experts, 2),
            "volume_crps": naive.area_crps(samples, experts, 2) * VOXEL_ML,
            "volume_coverage": coverage,
            "volume_width": width / np.mean([naive.area(y, 1) for y in experts]),
        }
        found = {name: float(row[name]) for name in expected}
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_summary_has_the_means_of_volume_scores(evaluations):
    summary = json.loads((evaluations[0] / "summary.json").read_text())
    read = read_evaluation(evaluations[0])
    assert summary["dataset"]["dims"] == 3
    for name in ("volume_crps", "volume_coverage", "volume_width", "ged", "hm_iou"):
        assert summary[name] == pytest.approx(np.mean(read.cases[name]))
    images = {score.name for score in SCORES.values() if score.dims == 2}
    assert not images & summary.keys()
    assert not images & read.cases.keys()


def test_examples_are_views_in_three_planes(evaluations, data):
    dataset = Dataset.open(data)
    examples = read_evaluation(evaluations[0]).examples
    assert [str(view.plane) for view in examples.views] == ["axial", "coronal", "sagittal"]
    names = [case["case"] for case in dataset.cases]
    rows = [names.index(case) for case in examples.cases]
    assert len({DEPTHS[row] for row in rows}) > 1, "padding must be tested"
    for place, row in enumerate(rows):
        masks = (dataset.annotations(row) > 0).sum(0)
        for axis, view in enumerate(examples.views):
            counts = np.moveaxis(masks, axis, 0).reshape(masks.shape[axis], -1).sum(1)
            position = int(counts.argmax())
            image = np.moveaxis(dataset.image(row)[0], axis, 0)[position]
            np.testing.assert_array_equal(view.picture("image", place), image)
            labels = np.moveaxis(dataset.case_labels(row), axis + 1, 0)[position]
            np.testing.assert_array_equal(view.picture("annotations", place), labels)
            spacing = [mm for other, mm in enumerate(SPACING_MM) if other != axis]
            np.testing.assert_allclose(view.spacing_mm[place], spacing)
            assert view.picture("level_probs", place).shape[-2:] == image.shape


def test_levels_of_a_volume_shallower_than_a_patch_are_those_of_its_sample(models, data, copy, tmp_path):
    folder, dataset = copy(models[0]), Dataset.open(data)
    write_volumes(tmp_path / "training", splits={"train": PATIENTS, "val": [], "test": []})
    patch = [max(DEPTHS) + 2, *SIZE]
    learned = Preprocessing.of_dataset(Dataset.open(tmp_path / "training"), patch_size=patch)
    (folder / "preprocessing.json").write_text(json.dumps(learned.to_json()))
    model = load_model(folder)
    rows = range(len(DEPTHS))
    examples = draw_examples(folder, dataset, rows, num_samples=1, seed=0)
    drawn = sample_cases(model, dataset, rows, num_samples=1, seed=0, keep_probs=True)
    for place, case in enumerate(drawn):
        masks = (dataset.annotations(case.row) > 0).sum(0)
        position = int(masks.reshape(len(masks), -1).sum(1).argmax())
        shown = examples.views[0].picture("level_probs", place)[0]
        np.testing.assert_allclose(shown, case.probs[0, :, position], atol=2e-3)


def test_damaged_views_are_reported(evaluations, copy):
    folder = copy(evaluations[0])
    (folder / "examples-2.npz").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"cannot read .*examples-2\.npz"):
        read_evaluation(folder)


def test_sample_panel_has_a_row_for_every_plane(evaluations):
    read = [read_evaluation(folder) for folder in evaluations]
    case = str(read[0].examples.cases[0])
    num_annotators = int(read[0].examples.valid[0].sum())
    figure = sample_panel(read, case)
    assert len(pictures(figure)) == 3 * (1 + num_annotators) + 2 * 3 * (1 + NUM_SAMPLES + 1)
    labels = [text.get_text() for text in figure.texts]
    assert [sum(plane in label for label in labels) for plane in ("axial", "coronal", "sagittal")] == [3, 3, 3]
    vertical, horizontal = SPACING_MM[0], SPACING_MM[2]
    coronal = pictures(figure)[1 + num_annotators]
    assert coronal.get_aspect() == pytest.approx(vertical / horizontal)
    assert_readable(figure)


def test_compare_shows_volume_scores_in_place_of_areas(evaluations, tmp_path):
    table = compare(evaluations, tmp_path / "report")
    markdown = (tmp_path / "report" / "table.md").read_text()
    assert "volume CRPS / ml ↓ | volume coverage | interval width" in markdown
    assert "area" not in markdown
    with (tmp_path / "report" / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["volume_crps"]) for row in rows] == [row.volume_crps for row in table.rows]
    assert "area_crps" not in rows[0]
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Share of annotators whose volume lies within" in page
    assert {"samples.png", "samples-2.png", "samples-3.png", "levels.png"} <= {
        path.name for path in (tmp_path / "report").iterdir()
    }


def test_only_shown_samples_are_kept(data, models, tmp_path, monkeypatch):
    kept, original = [], model_evaluation._gather_scored

    def watched(scored):
        found = original(scored)
        kept.extend(case.shown.labels for case in found if case.shown is not None)
        return found

    monkeypatch.setattr(model_evaluation, "_gather_scored", watched)
    evaluate(models[0], data, tmp_path / "eval", num_samples=20, num_examples=2, progress=False)
    assert [len(labels) for labels in kept] == [8, 8]
    sizes = [labels.untyped_storage().nbytes() for labels in kept]
    assert sizes == [labels.numel() for labels in kept]


def test_reuse_keeps_an_evaluation_of_volumes(data, models, evaluations):
    before = (evaluations[0] / "summary.json").stat().st_mtime_ns
    evaluate(models[0], data, evaluations[0], method="method 0", reuse=True, **OPTIONS)
    assert (evaluations[0] / "summary.json").stat().st_mtime_ns == before


def test_merged_shards_of_volumes_equal_a_single_run(evaluations, data, models, tmp_path):
    options = {"method": "method 0", **OPTIONS}
    folders = [tmp_path / str(number) for number in (1, 2, 3)]
    for number, folder in enumerate(folders, start=1):
        evaluate(models[0], data, folder, shard=Shard(number, 3), **options)
    evaluate(models[0], data, tmp_path / "merged", merge=folders, **options)
    for name in ("cases.csv", "summary.json", "reliability.csv"):
        assert (tmp_path / "merged" / name).read_bytes() == (evaluations[0] / name).read_bytes()
    merged, single = (read_evaluation(folder).examples for folder in (tmp_path / "merged", evaluations[0]))
    for one, two in zip(merged.views, single.views, strict=True):
        assert one.cases.tolist() == two.cases.tolist()
        np.testing.assert_array_equal(one.samples, two.samples)
        np.testing.assert_array_equal(one.mean_probs, two.mean_probs)


def test_score_of_written_samples_equals_evaluation(evaluations, data, models, tmp_path):
    dataset = Dataset.open(data)
    drawn = sample_cases(load_model(models[0]), dataset, range(5), num_samples=NUM_SAMPLES, seed=0)
    write_samples(tmp_path / "samples", drawn, dataset, range(5), num_samples=NUM_SAMPLES)
    score(tmp_path / "samples", data, tmp_path / "eval", num_examples=3, progress=False)
    first, second = read_evaluation(evaluations[0]), read_evaluation(tmp_path / "eval")
    assert first.cases == second.cases
    for one, two in zip(first.examples.views, second.examples.views, strict=True):
        np.testing.assert_array_equal(one.samples, two.samples)


def test_calibration_of_volumes_reports_coverage(data, models):
    found = fit_calibration(load_model(models[0]), Dataset.open(data), split="test", num_samples=3, seed=0)
    assert found.num_cases == 5
    assert 0 <= found.before["volume_coverage"] <= 1
    assert "area_coverage" not in found.before


def test_calibration_rejects_volumes_for_a_model_of_images(data):
    model = tiny_phiseg(image_channels=CHANNELS, steps=0)
    with pytest.raises(ModelError, match=r"the model has images as input, but .* has volumes"):
        fit_calibration(model, Dataset.open(data), split="test", num_samples=3, seed=0)
