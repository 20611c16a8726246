"""Training batches of volumes: patches at random places, padding, and augmentation in 3-D."""

import numpy as np
import pytest
import torch

from helpers.small_volumes import SIZE, make_volume, write_volumes
from phiseg.core.errors import ConfigError
from phiseg.data.augment import AugmentConfig, apply_augmentation, draw_augmentation, flip_volumes
from phiseg.data.loader import TrainingStream
from phiseg.data.patches import draw_patches, patch_size_for, window
from phiseg.data.store import Dataset

OFF = AugmentConfig(enabled=False)
ON = AugmentConfig(contrast=0.2, brightness=0.1, flip_vertical=True)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_volumes(tmp_path_factory.mktemp("loader") / "data")


def make_stream(dataset, **changes):
    options = {"batch_size": 4, "seed": 0, "augment": OFF, "patch_size": (5, 4, 5)}
    return TrainingStream(dataset, **{**options, **changes})


def places(volume, patch):
    """Return the starts (z, y, x) of all windows of an edge-padded volume (D, H, W) that equal the patch."""
    extra = max(0, patch.shape[0] - volume.shape[0])
    padded = np.pad(volume, ((extra, extra), (0, 0), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, patch.shape)
    return [tuple(place) for place in np.argwhere((windows == patch).all((3, 4, 5))) - (extra, 0, 0)]


def test_batch_contains_patches_of_image_and_labels_at_the_same_place(dataset):
    stream = make_stream(dataset)
    seen = {row: set() for row in stream.rows.tolist()}
    for step in range(60):
        batch = stream.batch(step)
        assert batch.image.shape == (4, 2, 5, 4, 5)
        assert batch.image.dtype == torch.float32
        assert batch.labels.shape == (4, 5, 4, 5)
        assert batch.labels.dtype == torch.int64
        for image, labels, row in zip(batch.image.numpy(), batch.labels.numpy(), batch.rows.tolist(), strict=True):
            place, *others = places(dataset.image(row)[0], image[0])
            assert not others or row == 1  # a single slice is the same wherever it is
            case = make_volume(row)
            drawn = [
                labels_of for labels_of, valid in zip(case.labels, case.valid, strict=True)
                if valid and place in places(labels_of, labels)
            ]  # fmt: skip
            assert len(drawn) == 1
            seen[row].add(place)
    assert {z for z, _, _ in seen[2]} == {0, 1, 2}  # every window of 7 slices occurs
    assert {z for z, _, _ in seen[0]} == {-1, 0}  # 4 slices, extended at either end
    assert {y for places_of in seen.values() for _, y, _ in places_of} == {0, 1}
    assert {x for places_of in seen.values() for _, _, x in places_of} == {0, 1, 2, 3}


@pytest.mark.parametrize("augment", [OFF, ON])
def test_several_annotations_of_a_patch_are_at_the_same_place(dataset, augment):
    """The first annotation of each set equals that of a stream which draws the same annotators alone."""
    stream = make_stream(dataset, augment=augment, annotations_per_image=2)
    alone = make_stream(dataset, augment=augment)
    alone._draw_annotators = lambda step, rows: stream._draw_annotators(step, rows)[:, 0]
    for step in range(6):
        batch, expected = stream.batch(step), alone.batch(step)
        assert batch.labels.shape == (4, 2, 5, 4, 5)
        assert torch.equal(batch.image, expected.image)
        assert torch.equal(batch.labels[:, 0], expected.labels)


def test_short_volume_is_extended_by_its_end_slices():
    assert window(-2, 6, 3).tolist() == [0, 0, 0, 1, 2, 2]
    assert window(1, 2, 3).tolist() == [1, 2]


def test_patch_places_are_uniform():
    generator = torch.Generator().manual_seed(0)
    starts = draw_patches((4, 8, 8), [(9, 8, 10), (2, 8, 8)] * 3000, generator=generator)
    for column, values in ((starts[::2, 0], range(6)), (starts[::2, 2], range(3)), (starts[1::2, 0], range(-2, 1))):
        counts = [int((column == value).sum()) for value in values]
        assert sum(counts) == 3000
        assert max(counts) - min(counts) < 6 * np.sqrt(3000 / len(values))
    assert (starts[:, 1] == 0).all()


@pytest.mark.parametrize("augment", [OFF, ON])
def test_batch_is_a_function_of_step_and_is_divided_among_processes(dataset, augment):
    whole = make_stream(dataset, augment=augment)
    parts = [make_stream(dataset, augment=augment, rank=rank, world_size=2) for rank in range(2)]
    for step in (3, 0, 7):
        expected = make_stream(dataset, augment=augment).batch(step)
        found = [part.batch(step) for part in parts]
        assert torch.equal(whole.batch(step).image, expected.image)
        assert torch.equal(torch.cat([part.image for part in found]), expected.image)
        assert torch.equal(torch.cat([part.labels for part in found]), expected.labels)


def test_default_patch_has_whole_slices_and_contains_most_volumes(dataset, tmp_path):
    assert patch_size_for(dataset) == (7, *SIZE)  # of the depths 4, 1, 7 of train
    depths = [2, *[3] * 18, 20]
    mixed = [
        make_volume(index, image=np.zeros((2, depth, *SIZE)), labels=np.zeros((3, depth, *SIZE)))
        for index, depth in enumerate(depths)
    ]
    assert patch_size_for(write_volumes(tmp_path / "mixed", mixed)) == (3, *SIZE)
    deep = [
        make_volume(index, image=np.zeros((2, 40, *SIZE)), labels=np.zeros((3, 40, *SIZE))) for index in range(5)
    ]
    assert patch_size_for(write_volumes(tmp_path / "deep", deep)) == (32, *SIZE)


def test_unsuitable_patch_size_is_rejected(dataset, lesions):
    with pytest.raises(ConfigError, match=r"only 5 x 8; .* in the order slices, height, width"):
        make_stream(dataset, patch_size=(5, 8, 4))
    with pytest.raises(ConfigError, match=r"8 slices, .* only 7; use at most 7, in the order slices"):
        make_stream(dataset, patch_size=(8, 5, 4))
    for size in ((4, 4), (0, 4, 4)):
        with pytest.raises(ConfigError, match="give slices, height and width"):
            make_stream(dataset, patch_size=size)
    with pytest.raises(ConfigError, match=r"contains images; remove train\.patch_size"):
        make_stream(Dataset.open(lesions), patch_size=(1, 4, 4))


def test_slices_are_reversed_in_half_of_the_volumes(dataset):
    plain = make_stream(dataset, patch_size=(7, *SIZE))
    still = {"probability": 0, "flip_horizontal": False}
    turned = make_stream(dataset, patch_size=(7, *SIZE), augment=AugmentConfig(**still))
    kept = make_stream(dataset, patch_size=(7, *SIZE), augment=AugmentConfig(**still, flip_slices=False))
    flips = []
    for step in range(30):
        before, after = plain.batch(step), turned.batch(step)
        torch.testing.assert_close(kept.batch(step).image, before.image, atol=1e-5, rtol=0)
        for number in range(4):
            mirrored = before.image[number].flip(1)
            if torch.equal(mirrored, before.image[number]):
                continue
            flips.append(torch.allclose(after.image[number], mirrored, atol=1e-5))
            expected = before.labels[number].flip(0) if flips[-1] else before.labels[number]
            assert torch.equal(after.labels[number], expected)
    assert 0.3 < np.mean(flips) < 0.7


def test_volume_is_warped_like_each_of_its_slices():
    generator = torch.Generator().manual_seed(1)
    image = torch.randn(3, 2, 4, 9, 9, generator=generator)
    labels = torch.randint(3, (3, 4, 9, 9), generator=generator)
    config = AugmentConfig(probability=1, rotation_degrees=40, quarter_turns=True)
    matrices = draw_augmentation(config, 3, size=(9, 9), generator=generator)
    warped, drawn = apply_augmentation(image, labels, matrices, num_classes=3)
    for number in range(4):
        one, mask = apply_augmentation(image[:, :, number], labels[:, number], matrices, num_classes=3)
        torch.testing.assert_close(warped[:, :, number], one)
        assert torch.equal(drawn[:, number], mask)


def test_flip_volumes_flips_only_the_chosen_ones():
    image, labels = torch.arange(12.0).view(2, 1, 3, 1, 2), torch.arange(12).view(2, 3, 1, 2)
    turned, drawn = flip_volumes(image, labels, torch.tensor([False, True]))
    assert torch.equal(turned[0], image[0])
    assert turned[1].flatten().tolist() == [10, 11, 8, 9, 6, 7]
    assert drawn[1].flatten().tolist() == [10, 11, 8, 9, 6, 7]
