"""Bundled models: found by name, small, safe, documented, and with the scores of their cards."""

import json

import numpy as np
import pytest
import torch

import phiseg
from phiseg.core.bundled import bundled_models
from phiseg.core.errors import ModelError
from phiseg.data.prepare.phantom import prepare_phantom
from phiseg.data.splits import split_patients
from phiseg.data.store import Dataset
from phiseg.evaluation.calibrate import calibrate
from phiseg.evaluation.model_evaluation import warn_of_leak
from phiseg.imaging.volume import Volume
from phiseg.inference.measures import measure
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sampling import sample_cases
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import predict_volume
from phiseg.metrics import energy_distance
from phiseg.metrics.case import score_case
from phiseg.models import load_model

NAMES = ("lesion-phantom", "lidc-nodule")


def mean_scores(model, dataset, rows, *, num_samples=16):
    """Return the mean of every score over the rows."""
    table = [
        score_case(*case.summary, torch.from_numpy(dataset.annotations(case.row)))
        for case in sample_cases(model, dataset, rows, num_samples=num_samples, seed=0)
    ]
    return {name: np.mean([row[name] for row in table]) for name in ("ged_unbiased", "s_ncc", "dice")}


def test_bundled_models_are_listed():
    assert tuple(bundled_models()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_bundled_model_is_small_and_needs_no_network(name, monkeypatch):
    monkeypatch.setattr("socket.socket", None)
    folder = bundled_models()[name]
    assert sum(path.stat().st_size for path in folder.rglob("*")) < 10e6
    model = phiseg.load(name)
    samples = model.sample(torch.zeros(1, 1, 64, 64), 3, seed=0)
    assert samples.shape == (1, 3, 2, 64, 64)
    assert samples.isfinite().all()
    assert all(parameter.dtype == torch.float32 for parameter in model.network.parameters())


@pytest.mark.parametrize(("seed", "size", "leaks"), [(0, 64, True), (0, 32, True), (7, 64, False)])
def test_bundled_phantom_model_recognises_its_phantoms(tmp_path, capsys, seed, size, leaks):
    """Phantoms with the seed of the training are training phantoms in any size and number, others never."""
    dataset = prepare_phantom("lesion", tmp_path / "data", seed=seed, size=size, num_cases=30, progress=False)
    model = load_model(bundled_models()["lesion-phantom"])
    assert Preprocessing.of(model).dataset.fingerprint != dataset.fingerprint
    trained_on = split_patients([f"lesion-{index:05d}" for index in range(1000)], seed=0)["train"]
    number = len(set(trained_on).intersection(dataset.splits["train"]))
    assert (number > 0) == leaks
    warn_of_leak(model, dataset, "train")
    warning = capsys.readouterr().err
    assert f"leak: {number} of the 18 patients" in warning if leaks else warning == ""


@pytest.mark.parametrize("name", NAMES)
def test_bundled_model_card_states_intended_use(name):
    folder = bundled_models()[name]
    card = (folder / "README.md").read_text(encoding="utf-8")
    for words in ("license:", "phiseg train", "## Out-of-scope use", "## Known failures", "not a medical device"):
        assert words in card
    provenance = json.loads((folder / "config.json").read_text())["provenance"]
    assert provenance["train_patients"]


def test_bundled_model_does_not_name_patients():
    for path in bundled_models()["lidc-nodule"].glob("*.json"):
        assert "LIDC-IDRI-" not in path.read_text()


def test_info_describes_bundled_model(cli):
    told = cli("info", "lidc-nodule").out
    assert "model: phiseg" in told
    assert "centred_on: nodule" in told


def test_bundled_model_is_not_calibrated_in_place(tmp_path):
    folder = bundled_models()["lidc-nodule"]
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    for model in ("lidc-nodule", folder, tmp_path / "link", phiseg.load("lidc-nodule")):
        with pytest.raises(ModelError, match="calibrate a copy"):
            calibrate(model, tmp_path)


def test_bundled_phantom_model_samples_unseen_phantoms_well(tmp_path):
    """Nearer to the annotators than their own majority vote, repeated, is: what no model without samples can do."""
    dataset = prepare_phantom("lesion", tmp_path / "data", seed=7, size=64, num_cases=40, progress=False)
    rows = list(range(30))
    found = mean_scores(load_model(bundled_models()["lesion-phantom"]), dataset, rows)
    votes = []
    for row in rows:
        annotations = torch.from_numpy(dataset.annotations(row))
        vote = (annotations.float().mean(0) > 0.5).to(torch.uint8).expand(16, -1, -1)
        votes.append(energy_distance(vote, annotations, num_classes=2).ged_unbiased)
    assert found["ged_unbiased"] < np.mean(votes)
    assert found["dice"] > 0.6


def test_bundled_nodule_model_knows_its_limits():
    """Ranges of spacing and thickness, usual values, and the coupling of slices with its measured coverage."""
    preprocessing = Preprocessing.of(load_model(bundled_models()["lidc-nodule"]))
    low, high = preprocessing.spacing_range_mm
    assert 0.4 < low < 0.6 < 0.9 < high < 1
    assert preprocessing.thickness_range_mm[1] <= 5
    assert preprocessing.usual_values is not None
    assert preprocessing.slice_coupling.length_mm is not None
    assert 0.85 <= preprocessing.volume_check.coverage <= 0.97


@pytest.mark.slow
def test_bundled_nodule_model_samples_volumes_near_the_readers(shared_data):
    """A nodule of 0.26 to 0.48 ml: the interval holds the readers and is not several times as wide."""
    file = np.load(shared_data("lidc_volumes.npz"))
    index = next(
        i
        for i, case in enumerate(zip(file["case_ids"], file["nodule"], strict=True))
        if case == ("LIDC-IDRI-0003", 2)
    )
    pixels = file[f"image_{index:03d}"].astype(np.float32) * (1400 / 255) - 1000
    masks = file[f"masks_{index:03d}"] > 0
    pixel, distance = float(file["pixel_spacing_mm"][index]), float(file["slice_spacing_mm"][index])
    readers = masks.sum((1, 2, 3)) * pixel * pixel * distance / 1000
    drawn = masks.sum(0)
    number, row, column = np.unravel_index(drawn.argmax(), drawn.shape)
    volume = Volume(pixels.transpose(2, 1, 0), np.diag([-pixel, -pixel, distance, 1.0]))
    model = load_model(bundled_models()["lidc-nodule"])
    sampling = Sampling(num_samples=32, level_draws=0)
    prediction = predict_volume(model, volume, point=(int(column), int(row), int(number)), sampling=sampling)
    spread = measure(prediction).classes["nodule"].volume_ml
    assert spread.low < np.median(readers) < spread.high
    assert spread.high - spread.low < 3 * readers.mean()


@pytest.mark.slow
def test_bundled_nodule_model_samples_largest_slices_well(cli, shared_data, tmp_path):
    """Most of these patients are among its training patients: a check of the weights, not a score."""
    crops = shared_data("lidc_maxslice71.npz")
    how = ("--window", "-1000", "400", "--size", "64", "--classes", "background", "nodule")
    assert cli("prepare", "arrays", crops, tmp_path / "data", *how).code == 0
    dataset = Dataset.open(tmp_path / "data")
    found = mean_scores(load_model(bundled_models()["lidc-nodule"]), dataset, dataset.rows("val").tolist()[::3])
    assert found["ged_unbiased"] < 0.08
    assert found["s_ncc"] > 0.75
