"""A synthetic scan with a lesion in several slices, to try a model without data."""

import numpy as np
from numpy.typing import NDArray

from phiseg.data.prepare.phantom import MIN_SIZE
from phiseg.data.prepare.phantom_scenes import LesionScene, draw_lesion
from phiseg.imaging.volume import PLANES, Volume, affine_towards
from phiseg.inference.preprocessing import Preprocessing

NUM_SLICES = 13
SLICES_PER_RADIUS = 5
SPACING_MM = 0.7
"""Pixel spacing for a model that does not state it."""
_WITH, _WITHOUT = 38, 13
"""Seeds of a scene with a disputed lesion, and of a scene with hardly any lesion."""


def example_volume(preprocessing: Preprocessing) -> tuple[Volume, tuple[int, int, int]]:
    """Return a volume that looks like the training data, and the slice, row and column of a point in its lesion.

    The lesion is round: it shrinks from the middle slice towards both ends. The surrounding tissue is the same in
    every slice, with independent noise.
    """
    side = max(*preprocessing.size, MIN_SIZE)
    middle = NUM_SLICES // 2
    images = np.stack([_slice(side, number, middle) for number in range(NUM_SLICES)])  # (N, H, W)
    if preprocessing.modality == "CT":
        images = _in_lung(images)
    rule = preprocessing.intensity
    if rule.low is not None and rule.high is not None:
        images = rule.low + (rule.high - rule.low) * images
    scene = _scene(_WITH, side, 0)
    vertical, horizontal = preprocessing.network_spacing_mm((SPACING_MM, SPACING_MM))
    radius_mm = scene.radius * side / 2 * vertical
    distance = max(radius_mm / SLICES_PER_RADIUS, 1.2 * max(vertical, horizontal))  # the acquisition plane
    plane = preprocessing.plane
    towards = PLANES["axial" if plane is None or plane == "auto" else plane]
    affine = affine_towards(towards[::-1]) @ np.diag([horizontal, vertical, distance, 1])
    values = np.repeat(images.transpose(2, 1, 0)[..., None], preprocessing.image_channels, axis=3)
    row, column = np.unravel_index(scene.body.argmax(), scene.body.shape)
    return Volume(values.astype(np.float32), affine), (middle, int(row), int(column))


def _slice(side: int, number: int, middle: int) -> NDArray[np.float32]:
    """Return the image (side, side) of a slice, in [0, 1]."""
    tissue, lesion = _scene(_WITHOUT, side, number), _scene(_WITH, side, number)
    away = min(abs(number - middle) / SLICES_PER_RADIUS, 1)
    drawn_in = lesion.radius * (1 - np.sqrt(1 - away**2)) + (lesion.radius if away == 1 else 0)
    inside = 1 / (1 + np.exp(-(lesion.joined - drawn_in) / lesion.softness))
    image: NDArray[np.float32] = (inside * lesion.image + (1 - inside) * tissue.image).astype(np.float32)
    return image


def _in_lung(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the scene with nearly black tissue, like air in CT, and a lesion as bright as soft tissue."""
    in_lung: NDArray[np.float32] = (0.07 + 0.75 * np.clip((images - 0.2) / 0.6, 0, 1) ** 2).astype(np.float32)
    return in_lung


def _scene(seed: int, side: int, number: int) -> LesionScene:
    """Return a scene with the noise of a slice."""
    return draw_lesion(np.random.default_rng(seed), np.random.default_rng([seed, number]), side)
