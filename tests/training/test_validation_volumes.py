"""Validation on volumes of different depth, compared with plain loops over volumes and annotators."""

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from helpers.small_volumes import CHANNELS, SIZE, write_volumes
from helpers.tiny_models import trained
from phiseg.data.store import Dataset
from phiseg.inference.sampling import sample_cases
from phiseg.metrics.case import score_case
from phiseg.models.noise import seeded_generator
from phiseg.models.phiseg import PHiSegConfig
from phiseg.training.validation import validate


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "volumes"
    splits = {"train": ["patient-4"], "val": [f"patient-{number}" for number in range(4)], "test": []}
    write_volumes(folder, splits=splits)
    return Dataset.open(folder)


@pytest.fixture(scope="module")
def model():
    settings = {"channels": (4, 5), "num_levels": 2, "blocks_per_level": 1, "image_channels": CHANNELS, "dims": 3}
    return trained(PHiSegConfig(**settings), steps=2, size=(3, *SIZE))


def test_validate_volumes_with_all_annotators(model, dataset, make_recipe):
    config = make_recipe(select_by="volume_crps", validation_samples=3).train
    found = validate(model, dataset, config, Fabric(accelerator="cpu", devices=1))
    losses, scores = [], []
    for case in sample_cases(model, dataset, range(4), num_samples=3, seed=0):
        image = torch.from_numpy(dataset.image(case.row))[None]
        for annotator in np.flatnonzero(dataset.valid[case.row]).tolist():
            labels = torch.from_numpy(dataset.annotation(case.row, annotator).astype(np.int64))[None]
            generators = [seeded_generator(0, "validation", dataset.cases[case.row]["case"], annotator)]
            with torch.no_grad():
                losses.append(float(model(image, labels, generator=generators).total))
        annotations = torch.from_numpy(dataset.annotations(case.row))
        scores.append(score_case(*case.summary, annotations, spacing_mm=(2.5, 0.5, 0.7)))
    assert len(losses) == dataset.valid[:4].sum()
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    for name in ("ged", "s_ncc", "dice", "volume_crps"):
        assert found[name] == pytest.approx(np.mean([row[name] for row in scores]), rel=1e-5)
    assert "volume_coverage" not in found
    assert "area_crps" not in found


def test_validate_volumes_runs_one_volume_at_a_time(model, dataset, make_recipe, monkeypatch):
    sizes, forward = [], model.forward

    def watched(image, labels, *, generator):
        sizes.append(len(image))
        return forward(image, labels, generator=generator)

    monkeypatch.setattr(model, "forward", watched)
    validate(model, dataset, make_recipe().train, Fabric(accelerator="cpu", devices=1))
    assert sizes == [1] * int(dataset.valid[:4].sum())
