"""Samples as files: documented shapes, types and order, complete or absent."""

import csv
import errno

import numpy as np
import pytest
import torch

from phiseg.core.errors import OutputError
from phiseg.data.npy import NpyStream
from phiseg.data.store import Dataset
from phiseg.inference.sample_writer import write_samples
from phiseg.inference.sampling import sample_cases
from phiseg.metrics import gamma_map
from phiseg.models import load_model

ROWS = [11, 3, 8]


@pytest.fixture
def dataset(lesions):
    return Dataset.open(lesions)


@pytest.fixture
def write(trained, dataset, tmp_path):
    """Return a function that samples three rows into a folder."""

    def write(name="samples", *, with_probs=False, overwrite=False, num_samples=4):
        model = load_model(trained())
        samples = sample_cases(model, dataset, ROWS, num_samples=num_samples, seed=0, keep_probs=with_probs)
        write_samples(
            tmp_path / name,
            samples,
            dataset,
            ROWS,
            num_samples=num_samples,
            with_probs=with_probs,
            overwrite=overwrite,
        )
        return tmp_path / name

    return write


def test_files_have_documented_shapes_types_and_order(write, trained, dataset):
    folder = write(with_probs=True)
    arrays = {path.stem: np.load(path, allow_pickle=False) for path in folder.glob("*.npy")}
    assert {name: (array.shape, str(array.dtype)) for name, array in arrays.items()} == {
        "labels": ((3, 4, 16, 16), "uint8"),
        "mean_probs": ((3, 2, 16, 16), "float32"),
        "mean_log_probs": ((3, 2, 16, 16), "float32"),
        "gamma": ((3, 16, 16), "float32"),
        "probs": ((3, 4, 2, 16, 16), "float32"),
    }
    with (folder / "cases.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [dataset.cases[row] for row in ROWS]
    drawn = sample_cases(load_model(trained()), dataset, ROWS, num_samples=4, seed=0, keep_probs=True)
    for index, case in enumerate(drawn):
        assert np.array_equal(arrays["labels"][index], case.summary.labels.numpy())
        assert np.array_equal(arrays["mean_log_probs"][index], case.summary.mean_log_probs.numpy())
        assert np.array_equal(arrays["mean_probs"][index], case.summary.mean_probs.numpy())
        assert np.array_equal(arrays["probs"][index], case.probs.numpy())


def test_maps_follow_from_probabilities(write):
    folder = write(with_probs=True)
    labels, mean_probs, gamma, probs = (
        np.load(folder / f"{name}.npy") for name in ("labels", "mean_probs", "gamma", "probs")
    )
    assert np.array_equal(probs.argmax(2), labels)
    np.testing.assert_allclose(probs.mean(1), mean_probs, rtol=1e-5, atol=1e-7)
    for index in range(len(ROWS)):
        np.testing.assert_allclose(
            gamma_map(torch.from_numpy(probs[index])).numpy(), gamma[index], rtol=1e-4, atol=1e-6
        )


def test_probabilities_are_written_on_request(write):
    folder = write()
    expected = {"labels.npy", "mean_probs.npy", "mean_log_probs.npy", "gamma.npy", "cases.csv"}
    assert {path.name for path in folder.iterdir()} == expected
    assert np.array_equal(np.load(folder / "labels.npy"), np.load(write("b", with_probs=True) / "labels.npy"))


def test_existing_folder_is_kept_without_overwrite(write):
    folder = write(num_samples=2)
    with pytest.raises(OutputError, match="already exists"):
        write(num_samples=3)
    assert np.load(folder / "labels.npy").shape[1] == 2
    write(num_samples=3, overwrite=True)
    assert np.load(folder / "labels.npy").shape[1] == 3


def test_failed_sampling_leaves_no_files(write, monkeypatch, tmp_path):
    calls = []

    def full(self, row):
        calls.append(row)
        if len(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(NpyStream, "append", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_failed_sampling_keeps_old_samples(write, monkeypatch):
    folder = write()
    before = (folder / "labels.npy").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(NpyStream, "append", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(OutputError):
            write(overwrite=True)
    assert (folder / "labels.npy").read_bytes() == before
