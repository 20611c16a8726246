"""Evaluating a model: every case of the split, scored as by hand, and the same results written again."""

import csv
import hashlib
import json

import numpy as np
import pytest
import torch

from helpers.synthetic_evaluations import forget_further_scores, forget_patients
from phiseg.core.errors import ConfigError, DataError, ModelError, OutputError
from phiseg.data.intensity import Intensity
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset
from phiseg.evaluation.evaluation_folder import read_evaluation
from phiseg.evaluation.model_evaluation import evaluate
from phiseg.evaluation.summary import defined
from phiseg.inference.sampling import sample_cases
from phiseg.metrics import consensus, error_maps, expected_calibration_error, gamma_map, reliability
from phiseg.metrics.case import score_case
from phiseg.metrics.score import CaseScore
from phiseg.metrics.score_registry import summary_scores
from phiseg.models import load_model
from phiseg.training.loop import train
from phiseg.training.tracking import read_metrics


@pytest.fixture
def run(trained, lesions, tmp_path):
    """Return a function that evaluates a model and reads the folder."""

    def run(name="eval", *, model="phiseg", data=lesions, num_samples=5, **options):
        folder = model if hasattr(model, "joinpath") else trained(model)
        summary = evaluate(folder, data, tmp_path / name, num_samples=num_samples, progress=False, **options)
        evaluation = read_evaluation(tmp_path / name)
        assert evaluation.summary == summary
        return evaluation

    return run


@pytest.mark.parametrize("model", ["phiseg", "probunet", "unet"])
@pytest.mark.parametrize("split", ["test", "val"])
def test_evaluate_matches_direct_computation(model, split, run, trained, lesions):
    evaluation = run(model=model, split=split, seed=3)
    dataset = Dataset.open(lesions)
    rows = dataset.rows(split).tolist()
    assert evaluation.cases["case"] == [dataset.cases[row]["case"] for row in rows]
    for index, case in enumerate(
        sample_cases(load_model(trained(model)), dataset, rows, num_samples=5, seed=3, batch_size=1)
    ):
        annotations = torch.from_numpy(dataset.annotations(case.row))
        scores = score_case(*case.summary, annotations, spacing_mm=dataset.axis_spacing_mm(case.row))
        found = {name: evaluation.cases[name][index] for name in scores}
        undefined = {name for name, value in scores.items() if value is None}
        assert undefined == {name for name, value in found.items() if value is None}
        assert undefined <= {"surface_distance"}  # of empty masks
        expected = {name: value for name, value in scores.items() if name not in undefined}
        assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    for score in summary_scores(2):
        if isinstance(score, CaseScore) and (values := defined(evaluation.cases[score.name])):
            assert evaluation.summary.scores[score.name] == pytest.approx(np.mean(values))


def test_cases_csv_has_patient_nodule_and_slice(run, lesions, copy, tmp_path):
    data = copy(lesions)
    table = data / "cases.csv"
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        row |= {"nodule": f"{number % 2}", "slice": f"{number}", "note": "x"}
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    expected = {row["case"]: [row["patient"], row["nodule"], row["slice"]] for row in rows}
    cases = run("numbered", data=data).cases
    with (tmp_path / "numbered" / "cases.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert len(written) == 3
    for index, row in enumerate(written):
        assert [row["patient"], row["nodule"], row["slice"]] == expected[row["case"]]
        assert [cases[name][index] for name in ("patient", "nodule", "slice")] == expected[row["case"]]
    assert list(written[0])[:4] == ["case", "patient", "nodule", "slice"]
    assert "note" not in written[0]
    plain = run("plain").cases
    assert plain["patient"] == cases["patient"]
    assert not {"nodule", "slice"} & plain.keys()


def test_summary_states_provenance(run, trained, lesions):
    summary = run(seed=4, split="val").summary
    dataset = Dataset.open(lesions)
    weights = (trained() / "model" / "model.safetensors").read_bytes()
    assert summary.method == "tiny-phiseg"
    assert (summary.num_cases, summary.num_samples, summary.seed, summary.split) == (3, 5, 4, "val")
    assert summary.dataset.fingerprint == dataset.fingerprint
    assert summary.model.sha256 == hashlib.sha256(weights).hexdigest()
    assert (summary.model.recipe, summary.model.annotator) == ("tiny-phiseg", "random")
    assert summary.num_parameters == sum(p.numel() for p in load_model(trained()).parameters())
    assert run("named", method="ours").summary.method == "ours"


def test_model_and_run_folder_are_equivalent(run, trained):
    assert run("a", model=trained() / "model").cases == run("b", model=trained()).cases


def test_batches_and_chunks_change_nothing(run):
    first, second = run("a", batch_size=1, chunk_size=2), run("b", batch_size=9, chunk_size=99)
    assert first.summary.residual_correlation == pytest.approx(second.summary.residual_correlation, abs=1e-4)
    for name, column in first.cases.items():
        assert second.cases[name] == (column if name in ("case", "patient") else pytest.approx(column, rel=1e-5))


# Calibration


def test_calibration_uses_all_pixels_of_the_split(run, trained, gaps):
    evaluation = run(data=gaps)
    dataset = Dataset.open(gaps)
    rows = dataset.rows("test").tolist()
    samples = sample_cases(load_model(trained()), dataset, rows, num_samples=5, seed=0)
    tables = [reliability(case.summary.mean_probs, torch.tensor(dataset.annotations(case.row))) for case in samples]
    np.testing.assert_allclose(evaluation.reliability, sum(tables), rtol=1e-5)
    assert evaluation.reliability[:, :, 0].sum() == len(rows) * 16 * 16
    assert evaluation.summary.ece == pytest.approx(expected_calibration_error(sum(tables)), rel=1e-4)


def test_reliability_has_bins_per_foreground_class(make_recipe, zones, run, tmp_path):
    train(make_recipe("unet", steps=2), zones, tmp_path / "run", progress=False)
    evaluation = run(model=tmp_path / "run", data=zones, num_samples=2)
    assert evaluation.reliability.shape == (2, 10, 3)
    with (tmp_path / "eval" / "reliability.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    first, second = Dataset.open(zones).info.classes[1:]
    assert [row["class"] for row in rows] == [first] * 10 + [second] * 10
    assert all(row["mean_prob"] == row["frequency"] == "" for row in rows if row["pixels"] == "0")
    for row in rows:
        assert row["pixels"] == "0" or float(row["lower"]) <= float(row["mean_prob"]) <= float(row["upper"])


# Dice references


def test_dice_with_one_annotator(run, trained, gaps):
    dataset = Dataset.open(gaps)
    rows = dataset.rows("test").tolist()
    everybody = run("all", data=gaps, dice_annotator="all")
    for annotator in range(4):
        found = run(f"one-{annotator}", data=gaps, dice_annotator=annotator)
        seen = dataset.valid[rows, annotator]
        assert [value is not None for value in found.cases["dice"]] == seen.tolist()
        for index in np.flatnonzero(seen):
            (case,) = sample_cases(load_model(trained()), dataset, [rows[index]], num_samples=5, seed=0)
            annotation = torch.tensor(dataset.labels[rows[index], annotator])[None]
            scores = score_case(*case.summary, annotation)
            assert found.cases["dice"][index] == pytest.approx(scores["dice"])
        assert found.cases["ged"] == pytest.approx(everybody.cases["ged"])


@pytest.mark.parametrize("how", ["majority", "staple"])
def test_dice_with_consensus(how, run, trained, gaps):
    dataset = Dataset.open(gaps)
    found = run(data=gaps, dice_annotator=how)
    assert found.summary.dice_annotator == how
    samples = sample_cases(load_model(trained()), dataset, dataset.rows("test").tolist(), num_samples=5, seed=0)
    for value, case in zip(found.cases["dice"], samples, strict=True):
        agreed = consensus(torch.from_numpy(dataset.annotations(case.row)), how, num_classes=2)
        assert value == pytest.approx(score_case(*case.summary, agreed[None])["dice"])


def test_dice_uses_annotator_of_training(run, make_recipe, lesions, tmp_path):
    train(make_recipe("unet", annotator=2, steps=2), lesions, tmp_path / "run", progress=False)
    own = run("own", model=tmp_path / "run")
    assert own.summary.model.annotator == own.summary.dice_annotator == 2
    assert own.cases["dice"] == run("two", model=tmp_path / "run", dice_annotator=2).cases["dice"]
    assert own.cases["dice"] != run("all", model=tmp_path / "run", dice_annotator="all").cases["dice"]


# Examples for the figures


def test_examples_are_the_most_disputed_cases(run, lesions):
    first, second = run("a", num_examples=2), run("b", model="unet", num_examples=2)
    assert first.examples.cases.tolist() == second.examples.cases.tolist()
    floors = dict(zip(first.cases["case"], first.cases["ged_floor"], strict=True))
    assert first.examples.cases[0] == max(floors, key=floors.get)


def test_examples_have_maps_of_their_samples(run, trained, lesions):
    examples = run(num_samples=9, seed=2).examples
    dataset, model = Dataset.open(lesions), load_model(trained())
    row_of = {case["case"]: row for row, case in enumerate(dataset.cases)}
    assert examples.annotators.tolist() == dataset.annotator_names
    assert examples.classes.tolist() == list(dataset.info.classes)
    for index, name in enumerate(examples.cases):
        row = row_of[str(name)]
        (case,) = sample_cases(model, dataset, [row], num_samples=9, seed=2, keep_probs=True)
        annotations = torch.from_numpy(dataset.annotations(row))
        np.testing.assert_array_equal(examples.image[index], dataset.image(row)[0])
        np.testing.assert_array_equal(examples.annotations[index], dataset.labels[row])
        np.testing.assert_array_equal(examples.samples[index], case.summary.labels[:8])
        np.testing.assert_allclose(examples.gamma[index], gamma_map(case.probs), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(
            examples.error[index], error_maps(case.probs, annotations).mean(0), rtol=1e-3, atol=1e-5
        )
        np.testing.assert_allclose(examples.mean_probs[index], case.probs.mean(0), rtol=1e-3, atol=1e-5)
        # the finest level is the first sample itself
        assert examples.level_probs[index].shape == (2, 2, 16, 16)
        np.testing.assert_allclose(examples.level_probs[index][0], case.probs[0], atol=2e-3)
        rebuilt = torch.from_numpy(examples.level_residuals[index].astype(np.float32)).sum(0).softmax(0)
        np.testing.assert_allclose(rebuilt, case.probs[0], atol=2e-2)


def test_model_without_hierarchy_has_no_levels(run):
    assert run(model="probunet").examples.level_probs is None
    assert run("unet", model="unet").examples.level_probs is None


def test_surplus_examples_are_all_cases(run):
    assert len(run(num_examples=50).examples.cases) == 3


# Training curves, reuse, refusals


def test_training_metrics_are_copied(run, trained, copy):
    assert run("run").training == read_metrics(trained() / "metrics.jsonl")
    alone = copy(trained() / "model")
    assert run("alone", model=alone).training == []


def test_run_with_skipped_step_is_evaluated(run, trained, copy):
    folder = copy(trained())
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text() + json.dumps({"step": 7, "kind": "train", "loss": None, "skipped": 1}) + "\n")
    assert run(model=folder).training[-1] == {"step": 7, "kind": "train", "skipped": 1}


def test_identical_evaluation_is_reused(run, tmp_path):
    first = run(reuse=True)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "eval").iterdir()}
    again = run(reuse=True)
    assert again.cases == first.cases
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "eval").iterdir()} == times


def test_different_evaluation_is_recomputed(run, trained, lesions, copy):
    before = run(reuse=True)
    for changes in (
        *({"num_samples": 6}, {"seed": 1}, {"split": "val"}, {"model": "unet"}, {"method": "other"}),
        *({"dice_annotator": 1}, {"dice_annotator": 2}),
    ):
        found = run(reuse=True, **changes)
        assert found.summary != before.summary, changes
        before = found
    moved = copy(lesions, "moved")
    splits = json.loads((moved / "splits.json").read_text())
    splits["train"], splits["test"] = splits["train"][3:], splits["train"][:3]
    run(reuse=True)
    (moved / "splits.json").write_text(json.dumps(splits))
    assert run(reuse=True, data=moved).cases["case"] == sorted(splits["test"]), "the same pixels, other test cases"


def test_evaluation_without_further_scores_is_recomputed(run, tmp_path):
    first = run(reuse=True)
    forget_further_scores(tmp_path / "eval")
    assert read_evaluation(tmp_path / "eval").cases["hm_iou"] == [None] * 3
    assert run(reuse=True).cases == first.cases


def test_evaluation_without_patients_is_recomputed(run, tmp_path):
    first = run(reuse=True)
    forget_patients(tmp_path / "eval")
    assert "patient" not in read_evaluation(tmp_path / "eval").cases
    assert run(reuse=True).cases == first.cases


def test_damaged_evaluation_is_recomputed(run, tmp_path):
    first = run(reuse=True)
    (tmp_path / "eval" / "summary.json").write_text("{")
    assert run(reuse=True).cases == first.cases


def test_existing_folder_is_rejected_before_computation(run, trained, lesions, tmp_path, monkeypatch):
    run()
    monkeypatch.setattr(
        "phiseg.evaluation.model_evaluation.load_model", lambda *_, **__: pytest.fail("it computes")
    )
    with pytest.raises(OutputError, match="already exists"):
        evaluate(trained(), lesions, tmp_path / "eval", num_samples=2, progress=False)


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"split": "tset"}, DataError, "did you mean 'test'"),
        ({"num_samples": 0}, ConfigError, "num_samples is 0"),
        ({"num_examples": 0}, ConfigError, "num_examples is 0"),
        ({"batch_size": 0}, ConfigError, "batch_size is 0"),
        ({"method": "m" * 201}, ConfigError, "'method' = 'mmm"),
        ({"method": "two\nlines"}, ConfigError, r"'method' = 'two\\nlines'"),
        ({"dice_annotator": 4}, ConfigError, "annotator 4 does not exist; use 0 to 3, all, majority or staple"),
        ({"dice_annotator": -1}, ConfigError, "annotator -1 does not exist"),
        ({"device": "banana"}, ConfigError, "device 'banana'"),
    ],
)
def test_invalid_input_writes_nothing(options, error, problem, run, tmp_path):
    with pytest.raises(error, match=problem):
        run(**options)
    assert not list(tmp_path.iterdir())


def test_incompatible_dataset_is_rejected(run, zones, tmp_path):
    with pytest.raises(ModelError, match="2 classes"):
        run(data=zones)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({"step": "six"}, "'step' = 'six'"), ({"recipe": "a\tb"}, "'recipe'"), ({"recipe": 5}, "5")],
)
def test_invalid_provenance_is_rejected_before_sampling(changes, problem, run, trained, copy):
    folder = copy(trained() / "model")
    rewrite_provenance(folder, **changes)
    with pytest.raises(ModelError, match=f"config.json, provenance: .*{problem}"):
        run(model=folder)


def test_unnamed_recipe_has_name_of_model(run, trained, copy):
    folder = copy(trained() / "model")
    rewrite_provenance(folder, recipe="")
    assert run(model=folder).summary.method == "phiseg"


def rewrite_provenance(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config["provenance"] |= changes
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.slow
def test_two_processes_write_the_same_results(phiseg, trained, lesions, tmp_path):
    words = ("evaluate", trained("phiseg"), "--data", lesions, "--num-samples", 3, "--device", "cpu")
    for name, number in (("one", 1), ("two", 2)):
        done = phiseg(*words, "--out", tmp_path / name, "--devices", number)
        assert done.code == 0, done.err
        assert done.out.count("samples each") == 1, "only one process speaks"
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two
    assert len(one) >= 4


@pytest.mark.slow
def test_error_in_one_process_stops_both(phiseg, trained, lesions, copy, tmp_path):
    """The last case belongs to the second process; its pixels are not numbers."""
    data = copy(lesions, "data")
    row = Dataset.open(data).rows("test")[-1]
    images = np.load(data / "images.npy", mmap_mode="r+")
    images[row] = np.nan
    images.flush()
    words = ("--data", data, "--num-samples", 2, "--device", "cpu", "--devices", 2, "--out", tmp_path / "out")
    done = phiseg("evaluate", trained("phiseg"), *words, "--batch-size", 1)
    assert done.code == 2, done
    assert "Traceback" not in done.err
    assert not (tmp_path / "out").exists()


def test_evaluation_counts_cases_with_neighbours(tmp_path, make_recipe):
    """A tiny model with context on stacks of three slices: only the middle one has both neighbours."""
    rng = np.random.default_rng(0)
    stacks = [
        Case(
            f"p{patient}-{number}",
            f"p{patient}",
            rng.normal(size=(1, 16, 16)).astype(np.float32),
            rng.integers(0, 2, (2, 16, 16)),
            np.array([True, True]),
            {"nodule": 0, "slice": number},
        )
        for patient in range(6)
        for number in range(3)
    ]
    write_dataset(
        tmp_path / "data",
        name="stacks",
        classes=("background", "lesion"),
        num_annotators=2,
        image_shape=(1, 16, 16),
        image_dtype=np.float32,
        intensity=Intensity(kind="zscore"),
        cases=stacks,
        splits={"train": ["p0", "p1", "p2"], "val": ["p3"], "test": ["p4", "p5"]},
    )
    recipe = make_recipe(settings={"context": 1}, steps=2, validate_every=2)
    model = train(recipe, tmp_path / "data", tmp_path / "run", progress=False)
    options = {"num_samples": 2, "num_examples": 6, "progress": False}
    shown = evaluate(model, tmp_path / "data", tmp_path / "shown", **options)
    hidden = evaluate(model, tmp_path / "data", tmp_path / "hidden", hide_neighbours=True, **options)
    assert (shown.num_cases, shown.num_with_neighbours, hidden.num_with_neighbours) == (6, 2, None)
    assert read_evaluation(tmp_path / "shown").cases["has_neighbours"] == [0, 1, 0, 0, 1, 0]
    assert (shown.hide_neighbours, hidden.hide_neighbours) == (False, True)
    assert shown.s_ncc != hidden.s_ncc
    dataset = Dataset.open(tmp_path / "data")
    row_of = {case["case"]: row for row, case in enumerate(dataset.cases)}
    for name, hide in (("shown", False), ("hidden", True)):  # the levels of the examples are those of their samples
        examples = read_evaluation(tmp_path / name).examples
        rows = [row_of[str(case)] for case in examples.cases]
        drawn = sample_cases(
            load_model(model), dataset, rows, num_samples=1, seed=0, keep_probs=True, hide_neighbours=hide
        )
        for levels, case in zip(examples.level_probs, drawn, strict=True):
            np.testing.assert_allclose(levels[0], case.probs[0], atol=1e-3)
