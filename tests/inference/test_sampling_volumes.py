"""Samples of volumes of different depth, each sampled alone, in memory bounded in the number of samples."""

import csv
import gc
import weakref

import numpy as np
import pytest
import torch

from helpers.small_volumes import CHANNELS, DEPTHS, SIZE, write_volumes
from helpers.tiny_models import tiny_phiseg
from phiseg.data.store import Dataset
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sample_writer import write_samples
from phiseg.inference.sampling import sample_cases
from phiseg.models.noise import seeded_generator

SETTINGS = {"channels": (4, 5), "num_levels": 2, "image_channels": CHANNELS, "dims": 3}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "volumes"
    write_volumes(folder)
    return Dataset.open(folder)


@pytest.fixture(scope="module")
def model():
    return tiny_phiseg(**SETTINGS, steps=0)


def draw(model, dataset, rows=(0, 1, 2, 3, 4), **options):
    return list(sample_cases(model, dataset, rows, **{"num_samples": 5, "seed": 3} | options))


def test_samples_are_those_of_each_volume_alone(model, dataset):
    cases = draw(model, dataset, keep_probs=True)
    assert [case.summary.labels.shape for case in cases] == [(5, depth, *SIZE) for depth in DEPTHS]
    for case in cases:
        image = torch.from_numpy(dataset.image(case.row))[None]
        generator = [seeded_generator(3, "sample", dataset.cases[case.row]["case"])]
        probs = model.sample(image, 5, generator=generator).softmax(2)[0]
        torch.testing.assert_close(case.probs, probs, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(case.summary.mean_probs, probs.mean(0), rtol=1e-4, atol=1e-6)
        expected = -(probs.mean(0) * probs.log().mean(0)).sum(0)
        torch.testing.assert_close(case.summary.gamma, expected, rtol=1e-3, atol=1e-5)


def test_volumes_below_the_patch_depth_are_extended_as_in_training(model, dataset):
    patch_depth = sorted(DEPTHS)[2]
    for case in draw(model, dataset, keep_probs=True, patch_depth=patch_depth):
        image, depth = torch.from_numpy(dataset.image(case.row)), dataset.depth(case.row)
        missing = max(0, patch_depth - depth)
        before, after = missing // 2, missing - missing // 2
        ends = [image[:, :1]] * before, [image[:, -1:]] * after  # repeated, by concatenation
        extended = torch.cat([*ends[0], image, *ends[1]], dim=1)[None]
        generator = [seeded_generator(3, "sample", dataset.cases[case.row]["case"])]
        probs = model.sample(extended, 5, generator=generator).softmax(2)[0]
        torch.testing.assert_close(case.probs, probs[:, :, before : before + depth], rtol=1e-4, atol=1e-6)


def test_patch_depth_is_that_of_the_model(model, dataset, monkeypatch):
    depth = max(DEPTHS) + 3
    explicit = draw(model, dataset, patch_depth=depth)
    preprocessing = Preprocessing.of_dataset(dataset, patch_size=(depth, *SIZE))
    monkeypatch.setattr(model, "preprocessing", preprocessing.to_json())
    for stored, given in zip(draw(model, dataset), explicit, strict=True):
        assert torch.equal(stored.summary.mean_probs, given.summary.mean_probs)


@pytest.mark.parametrize(("batch_size", "chunk_size"), [(1, 1), (2, 3), (99, 99)])
def test_batches_chunks_and_order_change_nothing(model, dataset, batch_size, chunk_size):
    whole = {case.row: case.summary for case in draw(model, dataset)}
    for case in draw(model, dataset, rows=[4, 0, 2], batch_size=batch_size, chunk_size=chunk_size):
        assert torch.equal(case.summary.labels, whole[case.row].labels)
        torch.testing.assert_close(case.summary.mean_probs, whole[case.row].mean_probs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("num_samples", [10, 20])
@pytest.mark.parametrize("patch_depth", [None, 6])
def test_memory_is_bounded_in_the_number_of_samples(model, dataset, num_samples, patch_depth, monkeypatch):
    living, most, decode = weakref.WeakSet(), [], model.decode_samples

    def watched(encoding, noise, number):
        logits = decode(encoding, noise, number)
        living.add(logits)
        gc.collect()
        most.append(sum(chunk.shape[1] * chunk.shape[3] for chunk in living))  # samples times slices
        return logits

    monkeypatch.setattr(model, "decode_samples", watched)
    for _ in sample_cases(
        model,
        dataset,
        range(len(DEPTHS)),
        num_samples=num_samples,
        seed=0,
        batch_size=2,
        chunk_size=6,
        patch_depth=patch_depth,
    ):
        pass
    assert max(most) <= 2 * 12  # a chunk, and the one before it


def test_written_slices_follow_each_other(model, dataset, tmp_path):
    rows = [2, 4, 1]
    options = {"num_samples": 3, "seed": 0, "keep_probs": True}
    write_samples(
        tmp_path / "samples",
        sample_cases(model, dataset, rows, **options),
        dataset,
        rows,
        num_samples=3,
        with_probs=True,
    )
    arrays = {path.stem: np.load(path) for path in (tmp_path / "samples").glob("*.npy")}
    total = sum(DEPTHS[row] for row in rows)
    assert {name: (array.shape, str(array.dtype)) for name, array in arrays.items()} == {
        "labels": ((total, 3, *SIZE), "uint8"),
        "mean_probs": ((total, 2, *SIZE), "float32"),
        "mean_log_probs": ((total, 2, *SIZE), "float32"),
        "gamma": ((total, *SIZE), "float32"),
        "probs": ((total, 3, 2, *SIZE), "float32"),
    }
    with (tmp_path / "samples" / "cases.csv").open(newline="") as file:
        depths = [int(row["depth"]) for row in csv.DictReader(file)]
    assert depths == [DEPTHS[row] for row in rows]
    start = 0
    for depth, case in zip(depths, sample_cases(model, dataset, rows, **options), strict=True):
        for number in range(depth):
            assert np.array_equal(arrays["labels"][start + number], case.summary.labels[:, number])
            assert np.array_equal(arrays["mean_probs"][start + number], case.summary.mean_probs[:, number])
            assert np.array_equal(arrays["mean_log_probs"][start + number], case.summary.mean_log_probs[:, number])
            assert np.array_equal(arrays["gamma"][start + number], case.summary.gamma[number])
            assert np.array_equal(arrays["probs"][start + number], case.probs[:, :, number])
        start += depth
