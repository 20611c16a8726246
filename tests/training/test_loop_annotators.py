"""Any number of annotators, and missing annotators, which do not affect losses or scores."""

import json
from math import isfinite

import numpy as np
import pytest

from helpers.comparing_runs import lines
from phiseg.data.augment import AugmentConfig
from phiseg.data.loader import TrainingStream
from phiseg.data.manifest import MISSING
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset
from phiseg.evaluation.evaluation_folder import read_evaluation
from phiseg.evaluation.model_evaluation import evaluate
from phiseg.training.loop import train

MODELS = ("phiseg", "probunet", "unet")


@pytest.fixture(scope="session")
def make_raters(lesions, tmp_path_factory):
    """Return a function that creates lesions with a given number of annotators, some missing in each case."""
    source = Dataset.open(lesions)

    def make(number):
        def case(row):
            valid = np.random.default_rng(row).random(number) < 0.6
            valid[row % number] = number == 1
            valid[(row + 1) % number] = True
            labels = source.labels[row, np.arange(number) % 4]
            return Case(source.cases[row]["case"], source.cases[row]["patient"], source.images[row], labels, valid)

        return write_dataset(
            tmp_path_factory.mktemp("raters") / f"raters-{number}",
            name=f"raters-{number}",
            classes=source.info.classes,
            num_annotators=number,
            image_shape=source.images.shape[1:],
            image_dtype=source.images.dtype,
            intensity=source.info.intensity,
            cases=map(case, range(source.num_cases)),
            splits=source.splits,
        )

    return make


@pytest.mark.parametrize("augment", [AugmentConfig(), AugmentConfig(enabled=False)])
@pytest.mark.parametrize("number", [1, 2, 10])
def test_stream_uses_valid_annotations_only(number, augment, make_raters):
    dataset = make_raters(number)
    assert number == 1 or not dataset.valid.all(axis=1).any()
    stream = TrainingStream(dataset, batch_size=9, seed=0, augment=augment)
    for step in range(20):
        batch = stream.batch(step)
        assert batch.labels.max() <= 1
        if not augment.enabled:
            for row, labels in zip(batch.rows, batch.labels, strict=True):
                assert any(np.array_equal(labels, drawn) for drawn in dataset.annotations(row))


@pytest.mark.parametrize(
    ("number", "model"),
    [
        (1, "phiseg"),
        (10, "phiseg"),
        (10, "probunet"),
        (1, "unet"),
        (1, "mcdropout"),
        (10, "ensemble"),
        (10, "multihead"),
    ],
)
def test_train_evaluate_and_sample_with_any_number_of_annotators(
    number, model, make_raters, make_recipe, cli, tmp_path
):
    dataset = make_raters(number)
    train(make_recipe(model), dataset.path, tmp_path / "run", progress=False)
    assert all(isfinite(line["loss"]) for kind in ("train", "val") for line in lines(tmp_path / "run", kind))
    summary = evaluate(tmp_path / "run", dataset.path, tmp_path / "eval", num_samples=3, progress=False)
    assert isfinite(summary.dice)
    assert (summary.ged is None) == (summary.s_ncc is None) == (number == 1), "one annotator is no distribution"
    assert (summary.ged_floor is None) == (number == 1)  # undefined for a single annotator
    examples = read_evaluation(tmp_path / "eval").examples
    assert examples.annotations.shape[1] == number
    done = cli(
        "sample", tmp_path / "run", "--data", dataset.path, "--num-samples", "3", "--out", tmp_path / "samples"
    )
    assert done.code == 0
    assert np.load(tmp_path / "samples" / "labels.npy").shape == (3, 3, 16, 16)


@pytest.mark.parametrize("model", MODELS)
def test_missing_annotations_do_not_affect_losses_and_scores(
    model, make_recipe, gaps, copy, replace_arrays, tmp_path
):
    other = copy(gaps)
    labels = np.load(other / "labels.npy")
    missing = labels == MISSING
    assert missing.any(axis=(1, 2, 3)).all(), "in every row somebody is missing"
    labels[missing] = 1
    replace_arrays(other, labels=labels)
    results = []
    for name, data in (("gaps", gaps), ("scribbled", other)):
        run, scores = tmp_path / name, tmp_path / f"{name}-eval"
        train(make_recipe(model), data, run, progress=False)
        evaluate(run, data, scores, num_samples=3, dice_annotator=1, progress=False)
        table = (scores / "cases.csv").read_bytes()
        results.append(
            [(run / "metrics.jsonl").read_bytes(), (run / "model" / "model.safetensors").read_bytes(), table]
        )
    assert results[0] == results[1]


def test_valid_annotations_affect_losses_and_scores(make_recipe, gaps, copy, replace_arrays, tmp_path):
    """Control of the test above: changing valid annotations does change losses and scores."""
    other = copy(gaps)
    labels = np.load(other / "labels.npy")
    labels[labels != MISSING] = 1
    replace_arrays(other, labels=labels)
    for name, data in (("gaps", gaps), ("scribbled", other)):
        train(make_recipe("unet"), data, tmp_path / name, progress=False)
    first, second = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("gaps", "scribbled")
    )
    assert first[0]["loss"] != second[0]["loss"]
    assert first[-1]["ged"] != second[-1]["ged"]
