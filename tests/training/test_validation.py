"""Validation of all cases and annotations, compared with plain loops."""

import json

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from phiseg.data.store import Dataset
from phiseg.inference.sampling import sample_cases
from phiseg.metrics import dice, energy_distance, error_maps, gamma_map, s_ncc
from phiseg.models import load_model
from phiseg.models.noise import seeded_generator
from phiseg.training.loop import train
from phiseg.training.tracking import read_metrics
from phiseg.training.validation import validate

TERMS = {
    "phiseg": {"cross_entropy/0", "cross_entropy/1", "kl/0", "kl/1", "elbo"},
    "probunet": {"cross_entropy/0", "kl/0", "elbo"},
    "unet": {"cross_entropy/0", "elbo"},
}
SCORES = {"ged", "ged_unbiased", "ged_floor", "s_ncc", "dice"}


@pytest.fixture
def fabric():
    return Fabric(accelerator="cpu", devices=1)


@pytest.fixture(params=["lesions", "gaps"])
def dataset(request):
    return Dataset.open(request.getfixturevalue(request.param))


def naive_losses(model, dataset, *, seed, annotators=range(99), split="val"):
    """Return loss and terms of each annotation of the split, one image and annotation at a time."""
    losses = []
    for row in dataset.rows(split):
        for annotator in range(dataset.info.num_annotators):
            if dataset.valid[row, annotator] and annotator in annotators:
                image = torch.from_numpy(dataset.image(row))[None]
                labels = torch.from_numpy(dataset.labels[row, annotator].astype(np.int64))[None]
                generators = [seeded_generator(seed, "validation", dataset.cases[row]["case"], annotator)]
                with torch.no_grad():
                    loss = model(image, labels, generator=generators)
                losses.append({"loss": float(loss.total)} | {k: float(v) for k, v in loss.terms.items()})
    return losses


def means(rows):
    return {name: np.mean([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("name", TERMS)
def test_validate_loss_is_mean_over_all_annotations(name, dataset, trained, make_recipe, fabric):
    model = load_model(trained(name))
    values = validate(model, dataset, make_recipe(name).train, fabric)
    losses = naive_losses(model, dataset, seed=0)
    valid = dataset.valid[dataset.rows("val")]
    assert len(losses) == valid.sum()
    assert valid.all() or len(set(valid.sum(1).tolist())) > 1, "cases with more annotators must weigh more"
    assert values.keys() == {"loss"} | TERMS[name] | SCORES
    for term, mean in means(losses).items():
        assert values[term] == pytest.approx(mean, rel=1e-5), term


def test_validate_loss_of_sets_compares_all_annotations_of_a_case(dataset, trained, make_recipe, fabric):
    model = load_model(trained("mose"))
    values = validate(model, dataset, make_recipe("mose", annotations_per_image=2).train, fabric)
    total, weight = 0.0, 0
    for row in dataset.rows("val"):
        valid = np.flatnonzero(dataset.valid[row])
        generators = [seeded_generator(0, "validation", dataset.cases[row]["case"], int(valid[0]))]
        labels = torch.from_numpy(dataset.labels[row][valid].astype(np.int64))[None]
        with torch.no_grad():
            loss = model(torch.from_numpy(dataset.image(row))[None], labels, generator=generators)
        total, weight = total + len(valid) * float(loss.total), weight + len(valid)
    assert values["loss"] == pytest.approx(total / weight, rel=1e-5)
    assert {"transport", "kl/0"} <= values.keys()


@pytest.mark.parametrize("annotator", [0, 2])
def test_validate_loss_uses_fixed_annotator_only(annotator, dataset, trained, make_recipe, fabric):
    model = load_model(trained())
    values = validate(model, dataset, make_recipe(annotator=annotator).train, fabric)
    expected = means(naive_losses(model, dataset, seed=0, annotators=[annotator]))
    assert {name: values[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    everybody = means(naive_losses(model, dataset, seed=0))
    assert values["loss"] != pytest.approx(everybody["loss"], rel=1e-4)


def test_validate_scores_use_all_valid_annotators(dataset, trained, make_recipe, fabric):
    model = load_model(trained())
    settings = make_recipe(validation_samples=5, seed=3, annotator=1).train
    values = validate(model, dataset, settings, fabric)
    rows = dataset.rows("val")
    scores = []
    for row, _, probs in sample_cases(model, dataset, rows.tolist(), num_samples=5, seed=3, keep_probs=True):
        labels = probs.argmax(1)
        annotations = torch.from_numpy(dataset.labels[row][dataset.valid[row]].astype(np.int64))
        distance = energy_distance(labels, annotations, num_classes=2)
        scores.append(
            {
                "ged": distance.ged,
                "ged_unbiased": distance.ged_unbiased,
                "ged_floor": distance.ged_floor,
                "s_ncc": s_ncc(gamma_map(probs), error_maps(probs, annotations)).value,
                "dice": float(dice(probs.mean(0).argmax(0), annotations, num_classes=2).mean()),
            }
        )
    assert len(scores) == len(rows) == 3
    assert {name: values[name] for name in SCORES} == pytest.approx(means(scores), rel=1e-4)


def test_validate_uses_given_split(trained, make_recipe, lesions, fabric):
    model, dataset, settings = load_model(trained()), Dataset.open(lesions), make_recipe().train
    values = validate(model, dataset, settings, fabric, split="test")
    expected = means(naive_losses(model, dataset, seed=0, split="test"))
    assert values["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert values["loss"] != validate(model, dataset, settings, fabric)["loss"]


def test_validate_is_deterministic(trained, make_recipe, lesions, fabric):
    model, dataset, settings = load_model(trained()), Dataset.open(lesions), make_recipe().train
    first = validate(model, dataset, settings, fabric)
    torch.manual_seed(99)
    assert validate(model.train(), dataset, settings, fabric) == first
    assert not model.training


def test_validate_returns_none_for_non_finite_scores(trained, make_recipe, lesions, fabric):
    model = load_model(trained("unet"))
    forward = model.forward
    model.forward = lambda *a, **k: forward(*a, **k)._replace(total=torch.tensor(float("nan")))
    values = validate(model, Dataset.open(lesions), make_recipe("unet").train, fabric)
    assert values["loss"] is None
    assert values["cross_entropy/0"] is not None
    json.dumps(values, allow_nan=False)


def test_train_logs_validation_of_saved_model(lesions, make_recipe, tmp_path, fabric):
    recipe = make_recipe(steps=2, validate_every=2)
    model = load_model(train(recipe, lesions, tmp_path / "run", progress=False))
    (line,) = [line for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if line["kind"] == "val"]
    expected = validate(model, Dataset.open(lesions), recipe.train, fabric)
    assert {name: line[name] for name in expected} == pytest.approx(expected, rel=1e-5)
