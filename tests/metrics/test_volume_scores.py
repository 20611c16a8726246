"""Scores of volumes on a phantom with a known distribution of volumes: the true distribution scores best."""

import numpy as np
import pytest
import torch

from phiseg.data.prepare.phantom import draw_further_annotations, prepare_phantom, true_volumes_ml
from phiseg.metrics.sampled_case import SampledCase
from phiseg.metrics.score_registry import SCORES

NUM_CASES, NUM_SAMPLES = 40, 40


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "volumes"
    return prepare_phantom("lesion3d", folder, size=16, num_cases=NUM_CASES, progress=False)


@pytest.fixture(scope="module")
def truth(dataset):
    """Samples of the true distribution of every case, (S, D, H, W)."""
    return [np.concatenate(list(draw_further_annotations(dataset, row, NUM_SAMPLES))) for row in range(NUM_CASES)]


def mean_scores(dataset, samples):
    """Return the means of the volume scores over the cases."""
    cases = [
        SampledCase(
            torch.from_numpy(drawn),
            None,
            None,
            torch.from_numpy(dataset.annotations(row)),
            num_classes=2,
            spacing_mm=dataset.voxel_spacing_mm(row),
        )
        for row, drawn in enumerate(samples)
    ]
    names = ("volume_crps", "volume_coverage", "volume_width")
    columns = {name: [SCORES[name].value(case) for case in cases] for name in names}
    return {name: np.mean([value for value in column if value is not None]) for name, column in columns.items()}


def test_samples_of_the_truth_have_nominal_coverage_and_expected_crps(dataset, truth):
    found = mean_scores(dataset, truth)
    nominal = 0.9 * (NUM_SAMPLES - 1) / (NUM_SAMPLES + 1)
    assert nominal - 0.08 < found["volume_coverage"] < nominal + 0.1  # equal volumes, such as 0, raise it
    expected = []
    for row in range(NUM_CASES):
        volumes = true_volumes_ml(dataset, row, 200, seed=7)
        expected.append(np.abs(volumes[:, None] - volumes).mean() / 2)  # E|X - y| = E|X - X'| if y is like X
    assert found["volume_crps"] == pytest.approx(np.mean(expected), rel=0.25)


def test_other_samples_have_higher_crps(dataset, truth):
    best = mean_scores(dataset, truth)
    alike = mean_scores(dataset, [np.repeat(drawn[:1], NUM_SAMPLES, axis=0) for drawn in truth])
    large = mean_scores(dataset, [np.maximum(drawn, drawn[::-1]) for drawn in truth])
    empty = mean_scores(dataset, [np.zeros_like(drawn) for drawn in truth])
    for other in (alike, large, empty):
        assert other["volume_crps"] > 1.1 * best["volume_crps"]
        assert other["volume_coverage"] < best["volume_coverage"]
    assert alike["volume_width"] == 0
