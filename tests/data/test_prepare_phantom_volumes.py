"""The phantom of volumes: annotators disagree as stated, and the true distribution of volumes is known."""

import numpy as np
import pytest

from phiseg.core.errors import DataError
from phiseg.core.random import derive_seed
from phiseg.data.prepare.phantom import draw_further_annotations, draw_scene, prepare_phantom, true_volumes_ml


def scene(index, size=24, seed=0):
    return draw_scene("lesion3d", seed=seed, index=index, size=size)


def rng(*keys):
    return np.random.default_rng(keys)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phantom") / "data"
    return prepare_phantom("lesion3d", folder, seed=2, size=16, num_cases=60, progress=False)


def test_scene_depends_only_on_seed_and_index():
    first, again = scene(3), scene(3)
    np.testing.assert_array_equal(first.image, again.image)
    np.testing.assert_array_equal(first.annotate(5, rng(0)), again.annotate(5, rng(0)))
    assert not np.array_equal(first.annotate(5, rng(0)), first.annotate(5, rng(1)))
    assert first.image.dtype == np.float32
    assert 0 <= first.image.min() < first.image.max() <= 1


def test_volumes_differ_in_depth():
    depths = [len(scene(index, 16).image) for index in range(30)]
    assert min(depths) >= 16
    assert max(depths) <= 24
    assert len(set(depths)) > 5


def test_scene_is_the_same_at_every_size():
    for index in range(3):
        small, large = scene(index, 24), scene(index, 96)
        assert small.probabilities == large.probabilities
        pooled = large.image.reshape(-1, 24, 4, 24, 4).mean((2, 4))
        assert np.abs(pooled - small.image).mean() < 0.05
        share = large.annotate(6, rng(index)).reshape(6, -1, 24, 4, 24, 4).mean((3, 5))
        assert np.abs(share - small.annotate(6, rng(index))).mean() < 0.02


def test_presence_has_the_stated_probability():
    for index in range(10):
        drawn = scene(index, 16).annotate(400, rng(index)).any((1, 2, 3)).mean()
        p = scene(index, 16).probabilities["present"]
        assert abs(drawn - p) < 4 * np.sqrt(p * (1 - p) / 400) + 0.005


def outlined(own, num, **decisions):
    chosen = {"present": True, "attached": False, "above": False, "below": False, **decisions}
    given = {name: np.full(num, value) for name, value in chosen.items()}
    return own._outline(given, num, rng(0))  # the same hands for all decisions


def test_ends_of_the_lesion_are_ambiguous_in_depth():
    for index in range(5):
        own = scene(index, 32)
        plain, above, below = outlined(own, 20), outlined(own, 20, above=True), outlined(own, 20, below=True)
        middle = round(np.argwhere(plain.any(0))[:, 0].mean())
        for longer, side, other in (
            (above, slice(None, middle), slice(middle + 1, None)),
            (below, slice(middle + 1, None), slice(None, middle)),
        ):
            added = longer.astype(int) - plain
            assert added.min() >= 0
            assert added[:, side].sum() > 0.05 * plain.sum()
            assert added[:, other].sum() < 0.1 * added.sum()
        slices = [mask.any((1, 2)).sum() for mask in outlined(own, 1, above=True, below=True)]
        assert slices[0] >= outlined(own, 1).any((2, 3)).sum() + 2


def test_attached_vessel_extends_the_lesion_in_plane():
    for index in range(5):
        own = scene(index, 32)
        added = outlined(own, 10, attached=True).astype(int) - outlined(own, 10)
        assert added.min() >= 0
        assert added.sum() > 0.1 * outlined(own, 10).sum()
        assert not added.any((0, 2, 3)).all()  # within some slices only


def test_style_of_an_annotator_persists_through_slices():
    for index in range(4):
        own = scene(index, 48)
        masks = outlined(own, 200)
        areas = masks.sum((2, 3))  # (A, D)
        centre = int(areas.mean(0).argmax())
        assert np.corrcoef(areas[:, centre - 1], areas[:, centre + 1])[0, 1] > 0.6


def test_dataset_has_anisotropic_voxels(dataset):
    assert dataset.dims == 3
    assert dataset.voxel_spacing_mm(0) == pytest.approx((2.0, 2.8, 2.8))
    assert dataset.info.plane == "axial"
    dataset.verify()
    own = draw_scene("lesion3d", seed=2, index=7, size=16)
    assert dataset.size(7) == own.image.shape
    np.testing.assert_allclose(dataset.image(7)[0], own.image - 0.5, atol=1e-3)
    stream = np.random.default_rng(derive_seed(2, "annotators", 7))
    np.testing.assert_array_equal(dataset.annotations(7), own.annotate(4, stream))
    assert {"p_present", "p_attached", "p_above", "p_below"} <= dataset.cases[0].keys()


def test_annotators_are_a_sample_of_the_true_volumes(dataset):
    """The rank of an annotator's volume among the true volumes is uniform, so all quantiles are covered."""
    ranks = []
    for row in range(dataset.num_cases):
        truth = true_volumes_ml(dataset, row, 200)
        own = dataset.annotations(row).sum((1, 2, 3)) * np.prod(dataset.voxel_spacing_mm(row)) / 1000
        below, equal = (truth < own[:, None]).mean(1), (truth == own[:, None]).mean(1)
        ranks.extend(below + rng(row).random(len(own)) * equal)  # ties, such as empty volumes, at random
    ranks, num = np.array(ranks), 4 * dataset.num_cases
    for level in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert abs((ranks < level).mean() - level) < 4 * np.sqrt(level * (1 - level) / num) + 0.01


def test_further_annotations_depend_on_the_seed(dataset):
    def draw(**options):
        return np.concatenate(list(draw_further_annotations(dataset, 3, 10, **options)))

    assert [len(chunk) for chunk in draw_further_annotations(dataset, 3, 10, chunk_size=4)] == [4, 4, 2]
    assert not np.array_equal(draw(), draw(seed=1))
    assert not np.array_equal(draw()[:4], dataset.annotations(3))
    np.testing.assert_array_equal(draw(), draw())


def test_true_volumes_need_a_phantom_of_volumes(lesions, dataset, tmp_path):
    from helpers.small_volumes import write_volumes
    from phiseg.data.store import Dataset

    with pytest.raises(DataError, match="no volumes"):
        true_volumes_ml(Dataset.open(lesions), 0)
    with pytest.raises(DataError, match="not a phantom"):
        true_volumes_ml(write_volumes(tmp_path / "data"), 0)
