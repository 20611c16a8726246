"""Phantoms: reproducible, equal at every size, and with the documented disagreement."""

import numpy as np
import pytest

from phiseg.core.errors import ConfigError
from phiseg.core.random import derive_seed
from phiseg.data.prepare.phantom import PHANTOMS, draw_scene, prepare_phantom

KINDS = sorted(kind for kind, phantom in PHANTOMS.items() if phantom.dims == 2)


def rng(*keys):
    return np.random.default_rng(keys)


def distances(masks, num_classes):
    """1 - mean IoU over the foreground classes of every pair, both empty being alike: (M, H, W) to (M, M)."""
    flat = masks.reshape(len(masks), -1)
    ious = []
    for label in range(1, num_classes):
        member = (flat == label).astype(np.float64)
        both = member @ member.T
        either = member.sum(1)[:, None] + member.sum(1)[None, :] - both
        ious.append(np.where(either == 0, 1.0, both / np.maximum(either, 1)))
    return 1 - np.mean(ious, axis=0)


def mean_of_distinct(matrix):
    return matrix.sum() / (len(matrix) * (len(matrix) - 1))


@pytest.mark.parametrize("kind", KINDS)
def test_scene_depends_only_on_seed_and_index(kind):
    first, again = (draw_scene(kind, seed=3, index=5, size=32) for _ in range(2))
    np.testing.assert_array_equal(first.image, again.image)
    np.testing.assert_array_equal(first.annotate(7, rng(0)), again.annotate(7, rng(0)))
    assert not np.array_equal(first.annotate(7, rng(0)), first.annotate(7, rng(1)))
    for other in (draw_scene(kind, seed=4, index=5, size=32), draw_scene(kind, seed=3, index=6, size=32)):
        assert np.abs(first.image - other.image).mean() > 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_images_and_labels_are_in_range(kind):
    for index in range(20):
        scene = draw_scene(kind, seed=0, index=index, size=16)
        assert scene.image.shape == (16, 16)
        assert scene.image.dtype == np.float32
        assert 0 <= scene.image.min() < scene.image.max() <= 1
        masks = scene.annotate(5, rng(index))
        assert masks.shape == (5, 16, 16)
        assert masks.dtype == np.uint8
        assert masks.max() < len(PHANTOMS[kind].classes)
        assert all(0 < p < 1 for p in scene.probabilities.values())


@pytest.mark.parametrize("kind", KINDS)
def test_scene_is_the_same_at_every_size(kind):
    for index in range(5):
        small, large = (draw_scene(kind, seed=0, index=index, size=size) for size in (48, 192))
        assert small.probabilities == large.probabilities
        pooled = large.image.reshape(48, 4, 48, 4).mean((1, 3))
        assert np.abs(pooled - small.image).mean() < 0.05  # the small image's noise
        masks_small, masks_large = small.annotate(6, rng(index)), large.annotate(6, rng(index))
        for label in range(1, len(PHANTOMS[kind].classes)):
            share = (masks_large == label).reshape(6, 48, 4, 48, 4).mean((2, 4))
            assert np.abs(share - (masks_small == label)).mean() < 0.02


def test_presence_has_the_stated_probability():
    for index in range(12):
        scene = draw_scene("lesion", seed=0, index=index, size=16)
        drawn = scene.annotate(600, rng(index)).any((1, 2)).mean()
        p = scene.probabilities["present"]
        assert abs(drawn - p) < 4 * np.sqrt(p * (1 - p) / 600) + 1e-9


def test_presence_is_visible_in_the_image():
    """The lesion's contrast, measured in the image, orders the scenes as their stated probabilities do."""
    scenes = [draw_scene("lesion", seed=0, index=index, size=64) for index in range(60)]
    contrasts = [scene.image[26:38, 26:38].mean() - np.median(scene.image) for scene in scenes]
    present = [scene.probabilities["present"] for scene in scenes]
    ranks = np.argsort(np.argsort([contrasts, present], axis=1), axis=1)
    assert np.corrcoef(ranks)[0, 1] > 0.85


def test_zones_are_distinguished_with_the_stated_probability():
    for index in range(12):
        scene = draw_scene("zones", seed=0, index=index, size=24)
        masks = scene.annotate(600, rng(index))
        both = ((masks == 1).any((1, 2)) & (masks == 2).any((1, 2))).mean()
        p = scene.probabilities["split"]
        assert abs(both - p) < 4 * np.sqrt(p * (1 - p) / 600) + 0.02


def test_disagreement_is_coarse_and_fine():
    """Among those who see the lesion, the attached part and the border's style both move the area."""
    for index in range(4):
        scene = draw_scene("lesion", seed=0, index=index, size=64)
        part = ((scene.joined > 0) & ~(scene.body > 0)).sum()
        assert part > 0.1 * (scene.body > 0).sum()
        shell = (np.abs(scene.body) < scene.softness).sum()
        assert shell > 0.1 * (scene.body > 0).sum()


def test_lesion_statistics():
    """Annotators disagree as much as radiologists do, about the outline and about the lesion's presence."""
    disagreement, empty = [], []
    for index in range(250):
        masks = draw_scene("lesion", seed=0, index=index, size=32).annotate(4, rng(index))
        disagreement.append(mean_of_distinct(distances(masks, 2)))
        empty.append(~masks.any((1, 2)))
    assert 0.35 < np.mean(disagreement) < 0.45
    assert 0.15 < np.mean(empty) < 0.25
    assert np.mean(np.all(empty, axis=1)) < 0.07


@pytest.mark.parametrize("kind", KINDS)
def test_perfect_sampler_reaches_ged_floor(kind):
    """Samples from the annotators' own distribution score delta * (1/A + 1/S), and 0 when unbiased."""
    num_annotators, num_samples, num_trials = 4, 8, 40
    num_classes = len(PHANTOMS[kind].classes)
    floors, biased, unbiased = [], [], []
    for index in range(12):
        scene = draw_scene(kind, seed=1, index=index, size=20)
        delta = mean_of_distinct(distances(scene.annotate(300, rng(index, 0)), num_classes))
        floors.append(delta * (1 / num_annotators + 1 / num_samples))
        for trial in range(num_trials):
            generator = rng(index, 1, trial)
            masks = np.concatenate(
                [scene.annotate(num_annotators, generator), scene.annotate(num_samples, generator)]
            )
            matrix = distances(masks, num_classes)
            cross = 2 * matrix[:num_annotators, num_annotators:].mean()
            truth, samples = matrix[:num_annotators, :num_annotators], matrix[num_annotators:, num_annotators:]
            biased.append(cross - truth.mean() - samples.mean())
            unbiased.append(cross - mean_of_distinct(truth) - mean_of_distinct(samples))
    errors = np.array(biased).reshape(12, num_trials) - np.array(floors)[:, None]
    standard_error = np.std(unbiased) / np.sqrt(len(unbiased))
    assert standard_error < 0.1 * np.mean(floors)  # or the next lines would mean nothing
    assert abs(errors.mean()) < 4 * standard_error
    assert abs(np.mean(unbiased)) < 4 * standard_error


@pytest.mark.parametrize("kind", KINDS)
def test_prepare_phantom_writes_dataset(kind, tmp_path):
    dataset = prepare_phantom(kind, tmp_path / "data", seed=2, size=32, num_cases=10, command="cmd", progress=False)
    phantom = PHANTOMS[kind]
    dataset.verify()
    dataset.check_labels(range(10))
    assert dataset.info.classes == phantom.classes
    assert dataset.labels.shape == (10, phantom.num_annotators, 32, 32)
    assert dataset.valid.all()
    assert dataset.info.seed == 2
    assert dataset.info.command == "cmd"
    assert dataset.info.spacing_mm == pytest.approx((phantom.spacing_mm * phantom.size / 32,) * 2)
    assert [len(dataset.rows(split)) for split in ("train", "val", "test")] == [6, 2, 2]
    assert (dataset.cases[7]["case"], dataset.cases[7]["patient"]) == (f"{kind}-00007", f"{kind}-seed2-00007")
    scene = draw_scene(kind, seed=2, index=7, size=32)
    np.testing.assert_allclose(dataset.image(7)[0], scene.image - 0.5, atol=1e-3)
    stream = np.random.default_rng(derive_seed(2, "annotators", 7))
    np.testing.assert_array_equal(dataset.annotations(7), scene.annotate(phantom.num_annotators, stream))


def test_longer_phantom_starts_with_the_shorter_one(tmp_path):
    short, long = (
        prepare_phantom("lesion", tmp_path / str(number), size=16, num_cases=number, progress=False)
        for number in (4, 9)
    )
    np.testing.assert_array_equal(short.images, long.images[:4])
    np.testing.assert_array_equal(short.labels, long.labels[:4])
    again = prepare_phantom("lesion", tmp_path / "4", size=16, num_cases=4, progress=False, overwrite=True)
    assert again.fingerprint == short.fingerprint
    other = prepare_phantom("lesion", tmp_path / "other", seed=1, size=16, num_cases=4, progress=False)
    assert other.fingerprint != short.fingerprint
    names = [{case["patient"] for case in dataset.cases} for dataset in (short, long, other)]
    assert names[0] < names[1]
    assert not names[1] & names[2]


def test_smallest_phantom_has_a_case_in_every_split(tmp_path):
    dataset = prepare_phantom("lesion", tmp_path / "data", size=16, num_cases=3, progress=False)
    assert [len(dataset.rows(split)) for split in dataset.splits] == [1, 1, 1]


def test_invalid_settings_are_rejected(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'lesion'"):
        prepare_phantom("lesions", tmp_path / "data")
    for size in (-1, 0, 8):
        with pytest.raises(ConfigError, match="at least 16"):
            prepare_phantom("lesion", tmp_path / "data", size=size)
    for number in (-1, 0, 1, 2):
        with pytest.raises(ConfigError, match=f"num_cases {number} is too small; use at least 3"):
            prepare_phantom("zones", tmp_path / "data", num_cases=number)
    assert list(tmp_path.iterdir()) == []
