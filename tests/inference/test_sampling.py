"""Samples of a case do not depend on batches, chunks, order or other cases."""

import pytest
import torch

from phiseg.core.errors import ConfigError, ModelError
from phiseg.data.store import Dataset
from phiseg.inference.sampling import sample_cases
from phiseg.models import load_model
from phiseg.models.noise import seeded_generator

NAMES = ["phiseg", "probunet", "unet"]


@pytest.fixture
def dataset(lesions):
    return Dataset.open(lesions)


@pytest.fixture
def draw(trained, dataset):
    """Return a function that samples some rows: labels and mean probabilities by row."""

    def draw(name="phiseg", rows=(2, 5, 7, 11), num_samples=6, seed=0, **options):
        model = load_model(trained(name))
        return {
            case.row: case
            for case in sample_cases(model, dataset, list(rows), num_samples=num_samples, seed=seed, **options)
        }

    return draw


def assert_same(first, second):
    assert first.keys() == second.keys()
    for row, case in first.items():
        assert torch.equal(case.summary.labels, second[row].summary.labels)
        torch.testing.assert_close(case.summary.mean_probs, second[row].summary.mean_probs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("batch_size", "chunk_size"), [(1, 1), (3, 4), (4, 100), (99, 2)])
def test_batches_and_chunks_change_nothing(name, batch_size, chunk_size, draw):
    assert_same(draw(name, batch_size=batch_size, chunk_size=chunk_size), draw(name))


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_independent_of_other_cases_and_order(name, draw):
    whole = draw(name)
    assert list(whole) == [2, 5, 7, 11]
    reordered = draw(name, rows=(11, 2, 7, 5), batch_size=3)
    assert list(reordered) == [11, 2, 7, 5]
    assert_same(dict(sorted(reordered.items())), whole)
    assert_same(draw(name, rows=[7]), {7: whole[7]})


@pytest.mark.parametrize("name", NAMES)
def test_first_samples_are_independent_of_number(name, draw):
    few, many = draw(name, num_samples=3), draw(name, num_samples=17, chunk_size=5)
    for row in few:
        assert torch.equal(few[row].summary.labels, many[row].summary.labels[:3])


@pytest.mark.parametrize("name", ["phiseg", "probunet"])
def test_samples_differ_between_draws_and_seeds(name, draw):
    first = draw(name, keep_probs=True)
    other = draw(name, seed=1, keep_probs=True)
    again = draw(name, keep_probs=True)
    for row, case in first.items():
        assert torch.equal(case.probs, again[row].probs)
        assert not torch.equal(case.probs, other[row].probs)
        assert all(not torch.equal(a, b) for i, a in enumerate(case.probs) for b in case.probs[:i])


def test_samples_depend_on_case_name(draw, trained, dataset):
    model = load_model(trained())
    for row, case in draw(keep_probs=True, seed=5).items():
        image = torch.from_numpy(dataset.image(row))[None]
        generators = [seeded_generator(5, "sample", dataset.cases[row]["case"])]
        probs = model.sample(image, 6, generator=generators).softmax(2)[0]
        torch.testing.assert_close(case.probs, probs, rtol=1e-4, atol=1e-6)


def test_shapes_and_types(draw):
    for case in draw(keep_probs=True).values():
        assert (case.summary.labels.shape, case.summary.labels.dtype) == ((6, 16, 16), torch.uint8)
        assert (case.summary.mean_probs.shape, case.summary.mean_probs.dtype) == ((2, 16, 16), torch.float32)
        assert case.probs.shape == (6, 2, 16, 16)
        assert torch.equal(case.probs.argmax(1).to(torch.uint8), case.summary.labels)
        torch.testing.assert_close(case.probs.mean(0), case.summary.mean_probs)
        torch.testing.assert_close(case.probs.sum(1), torch.ones(6, 16, 16))
    assert all(case.probs is None for case in draw().values())


def test_samples_are_drawn_lazily(trained, dataset, monkeypatch):
    model = load_model(trained())
    encoded = []
    original = model.encode
    monkeypatch.setattr(model, "encode", lambda image: encoded.append(len(image)) or original(image))
    samples = sample_cases(model, dataset, range(6), num_samples=2, seed=0, batch_size=2)
    next(samples)
    assert encoded == [2]
    list(samples)
    assert encoded == [2, 2, 2]


def test_no_gradient_is_kept(draw):
    assert all(not tensor.requires_grad for case in draw(keep_probs=True).values() for tensor in case.summary)


@pytest.mark.parametrize("option", ["num_samples", "batch_size", "chunk_size"])
@pytest.mark.parametrize("value", [0, -1])
def test_number_below_one_is_rejected_before_sampling(option, value, trained, dataset):
    options = {"num_samples": 2, "seed": 0} | {option: value}
    with pytest.raises(ConfigError, match=f"{option} is {value}"):
        sample_cases(load_model(trained()), dataset, [0], **options)


def test_dataset_with_other_classes_is_rejected_before_sampling(trained, zones):
    with pytest.raises(ModelError, match=r"the model has 2 classes .* has 3"):
        sample_cases(load_model(trained()), Dataset.open(zones), [0], num_samples=2, seed=0)
