"""Augmentation: images and labels are transformed alike, by the documented amounts."""

import math

import pytest
import torch
import torch.nn.functional as F

from phiseg.core.errors import ConfigError
from phiseg.data.augment import (
    AugmentConfig,
    apply_augmentation,
    apply_intensities,
    draw_augmentation,
    draw_intensities,
)

NUM_CLASSES = 3
IDENTITY = torch.eye(2, 3)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_batch(batch_size, height, width):
    image = torch.randn(batch_size, 2, height, width, generator=generator(1))
    labels = torch.randint(NUM_CLASSES, (batch_size, height, width), generator=generator(2))
    return image, labels


def smooth_labels(batch_size, height, width):
    noise = torch.randn(batch_size, NUM_CLASSES, 4, 4, generator=generator(3))
    return F.interpolate(noise, (height, width), mode="bicubic").argmax(1)


def warp(image, labels, matrices):
    return apply_augmentation(image, labels, matrices, num_classes=NUM_CLASSES)


def draw(batch_size, size=(16, 16), seed=0, **values):
    return draw_augmentation(
        AugmentConfig(**{"flip_horizontal": False, **values}), batch_size, size=size, generator=generator(seed)
    )


def still(**values):
    """Neither rotation nor crop."""
    return {"probability": 0, **values}


@pytest.mark.parametrize("size", [(16, 16), (9, 14), (7, 1)])
def test_identity_changes_nothing(size):
    image, labels = random_batch(4, *size)
    warped, warped_labels = warp(image, labels, IDENTITY.expand(4, 2, 3))
    torch.testing.assert_close(warped, image, atol=1e-5, rtol=0)
    assert torch.equal(warped_labels, labels)


def test_disabled_augmentation_changes_nothing():
    matrices = draw(50, enabled=False, flip_horizontal=True, quarter_turns=True)
    assert torch.equal(matrices, IDENTITY.expand(50, 2, 3))
    assert torch.equal(draw(50, probability=0), IDENTITY.expand(50, 2, 3))


@pytest.mark.parametrize(("key", "axis"), [("flip_horizontal", -1), ("flip_vertical", -2)])
@pytest.mark.parametrize("size", [(16, 16), (9, 14)])
def test_flips_are_exact(key, axis, size):
    image, labels = random_batch(60, *size)
    warped, warped_labels = warp(image, labels, draw(60, size, **still(**{key: True})))
    flipped = torch.tensor([not torch.equal(new, old) for new, old in zip(warped_labels, labels, strict=True)])
    assert 15 < flipped.sum() < 45
    torch.testing.assert_close(warped[flipped], image[flipped].flip(axis), atol=1e-4, rtol=0)
    torch.testing.assert_close(warped[~flipped], image[~flipped], atol=1e-4, rtol=0)
    assert torch.equal(warped_labels[flipped], labels[flipped].flip(axis))


def test_quarter_turns_are_exact():
    image, labels = random_batch(80, 16, 16)
    warped, warped_labels = warp(image, labels, draw(80, **still(quarter_turns=True)))
    counts = [0, 0, 0, 0]
    for new, old, new_labels, old_labels in zip(warped, image, warped_labels, labels, strict=True):
        turns = next(k for k in range(4) if torch.equal(new_labels, old_labels.rot90(k)))
        counts[turns] += 1
        torch.testing.assert_close(new, old.rot90(turns, (-2, -1)), atol=1e-4, rtol=0)
    assert min(counts) > 8


def test_quarter_turns_require_square_images():
    with pytest.raises(ConfigError, match="8 x 16"):
        draw(1, (8, 16), quarter_turns=True)


@pytest.mark.parametrize("size", [(24, 24), (20, 31)])
def test_image_and_labels_are_warped_alike(size):
    labels = smooth_labels(40, *size)
    one_hot = F.one_hot(labels, NUM_CLASSES).permute(0, 3, 1, 2).float()
    matrices = draw(40, size, probability=1, flip_horizontal=True, flip_vertical=True, min_crop_fraction=0.6)
    share, warped_labels = warp(one_hot, labels, matrices)
    grid = F.affine_grid(matrices, [40, 1, *size], align_corners=False)
    margin = 1 - 1 / torch.tensor([size[1], size[0]])  # beyond the outermost pixel centres padding sets in
    inside = (grid.abs() <= margin).all(-1)
    decided = share.topk(2, dim=1).values.diff(dim=1).abs().squeeze(1) > 1e-4
    assert inside.float().mean() > 0.8
    assert torch.equal(share.argmax(1)[inside & decided], warped_labels[inside & decided])


def test_pixels_outside_are_background_and_repeat_the_border():
    image, labels = torch.full((1, 1, 16, 16), 0.7), torch.ones(1, 16, 16, dtype=torch.long)
    shifted = torch.tensor([[[1.0, 0, 1.0], [0, 1, 0]]])  # half the image's width
    warped, warped_labels = warp(image, labels, shifted)
    assert torch.equal(warped_labels[0, :, 8:], torch.zeros(16, 8, dtype=torch.long))
    assert torch.equal(warped_labels[0, :, :8], torch.ones(16, 8, dtype=torch.long))
    torch.testing.assert_close(warped, image)


def test_rotation_of_non_square_image_is_rigid():
    """A disc stays a disc, and a bar keeps its length, when the image is twice as wide as high."""
    height, width = 60, 120
    y, x = torch.meshgrid(torch.arange(height) - 29.5, torch.arange(width) - 59.5, indexing="ij")
    disc = (x.square() + y.square() < 20**2).long()
    bar = ((x.abs() < 24) & (y.abs() < 3)).long()
    labels = torch.stack([disc, bar])
    config = AugmentConfig(probability=1, rotation_degrees=180, min_crop_fraction=1)
    for seed in range(5):
        matrix = draw_augmentation(config, 1, size=(height, width), generator=generator(seed))
        _, warped = warp(torch.zeros(2, 1, height, width), labels, matrix.expand(2, 2, 3))
        assert (warped[0] != disc).float().mean() < 0.01
        assert abs(int(warped[1].sum()) - int(bar.sum())) < 0.05 * bar.sum()
        places = torch.stack([x[warped[1] == 1], y[warped[1] == 1]])
        long_axis = torch.linalg.eigvalsh(torch.cov(places))[-1].sqrt()
        assert long_axis == pytest.approx(48 / math.sqrt(12), rel=0.03)


def test_angles_and_crops_are_in_range():
    matrices = draw(2000, (32, 64), probability=0.5, rotation_degrees=20, min_crop_fraction=0.7)
    moved = (matrices != IDENTITY).flatten(1).any(1)
    assert moved.float().mean() == pytest.approx(0.5, abs=0.05)
    pixels = torch.tensor([64.0, 32.0])
    linear = matrices[moved, :, :2] * pixels[:, None] / pixels  # in pixels
    fraction = torch.linalg.det(linear).sqrt()
    angle = torch.rad2deg(torch.atan2(linear[:, 1, 0], linear[:, 0, 0]))
    assert 0.7 <= fraction.min() < 0.71
    assert 0.99 < fraction.max() <= 1.00001
    assert -20.001 <= angle.min() < -19
    assert 19 < angle.max() <= 20.001
    orthogonal = linear @ linear.mT / fraction.square()[:, None, None]
    torch.testing.assert_close(orthogonal, torch.eye(2).expand_as(orthogonal), atol=1e-5, rtol=0)
    # the crop lies within the rotated image, so rotating its centre back leaves room for its half side
    centre = torch.linalg.solve(linear / fraction[:, None, None], matrices[moved, :, 2] * pixels) / pixels
    assert (centre.abs() <= 1.00001 - fraction[:, None]).all()


def test_crop_is_inside_the_image():
    matrices = draw(500, probability=1, rotation_degrees=0, min_crop_fraction=0.5)
    reach = matrices[:, :, :2].abs().sum(-1) + matrices[:, :, 2].abs()  # of the crop's corners
    assert reach.max() <= 1.00001
    assert matrices[:, 0, 2].max() > 0.3
    assert matrices[:, 1, 2].min() < -0.3


def test_enabling_one_augmentation_keeps_the_others():
    plain = draw(20, probability=1)
    flipped = draw(20, probability=1, flip_horizontal=True)
    torch.testing.assert_close(plain[:, :, 1:], flipped[:, :, 1:])
    assert not torch.equal(plain, flipped)


def test_augmentation_keeps_dtypes():
    image, labels = random_batch(2, 8, 8)
    warped, warped_labels = warp(image.double(), labels.to(torch.uint8), draw(2))
    assert warped.dtype == torch.float64
    assert warped_labels.dtype == torch.uint8


@pytest.mark.parametrize(
    "values", [{"probability": 1.1}, {"rotation_degrees": -1}, {"min_crop_fraction": 0}, {"rotation": 5}]
)
def test_settings_out_of_range_are_rejected(values):
    with pytest.raises(ConfigError):
        AugmentConfig.parse(values, where="recipe.yaml")


def test_contrast_and_brightness_cover_their_ranges():
    factor, shift = draw_intensities(AugmentConfig(contrast=0.2, brightness=0.5), 4000, generator=generator()).T
    for values, low, high in ((factor, 0.8, 1.2), (shift, -0.5, 0.5)):
        assert low <= values.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < values.max() <= high
        assert values.mean().item() == pytest.approx((low + high) / 2, abs=0.02)
    assert abs(torch.corrcoef(torch.stack([factor, shift]))[0, 1]) < 0.1


def test_intensities_are_multiplied_then_shifted():
    image = torch.randn(2, 3, 4, 5, generator=generator())
    changed = apply_intensities(image, torch.tensor([[2.0, 0.5], [1.0, 0.0]]))
    torch.testing.assert_close(changed[0], 2 * image[0] + 0.5)
    assert torch.equal(changed[1], image[1])
    none = draw_intensities(AugmentConfig(), 2, generator=generator())
    assert torch.equal(apply_intensities(image, none), image)
