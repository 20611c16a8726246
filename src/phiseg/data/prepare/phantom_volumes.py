"""Scenes of the phantom `lesion3d`: a volume with thick slices, and the distribution of its annotations.

As in `phantom_scenes`, annotators are independent and identically distributed given the visible geometry. Each
draws once for the whole volume:

  coarse  is there a lesion; does the attached vessel belong to it; does the faint part above it, and the one below
          it, which is where the lesion ends along the slices;
  fine    a tight or generous border in all slices, by an amount that grows with the visible softness of the border,
          and a smooth deviation that changes gradually from slice to slice.

The number of slices is independent of the lesion, so it reveals nothing about the annotations. Coordinates are in
units of half the width of the image along all axes.

A annotators, D slices, H x W pixels.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from phiseg.data.prepare.phantom_fields import (
    Field,
    add_noise,
    chest_wall,
    direction_waves,
    grid,
    sigmoid,
    smooth_max,
    sum_waves,
)
from phiseg.data.prepare.phantom_scenes import Decisions, Scene

WIDTH_MM = 44.8
"""Height and width of the field of view."""
SLICE_SPACING_MM = 2.0
NUM_SLICES = (16, 24)
"""Smallest and largest number of slices."""
WOBBLE = 0.06
"""Standard deviation of the smooth deviation of a border, relative to the radius."""
JOINT = 0.1
"""Width of the smooth transition between parts, relative to the radius."""


@dataclass(frozen=True, eq=False)
class LesionVolumeScene(Scene):
    """A lesion in lung-like tissue with an attached vessel and faint ends. Classes: background, lesion."""

    near: NDArray[np.bool_] = field(repr=False)
    """(D, H, W) voxels in or near the lesion; nobody draws elsewhere. There are V of them."""
    body: Field = field(repr=False)
    """Depth in the part that every annotator who sees the lesion includes, (V,)."""
    parts: dict[str, Field] = field(repr=False)
    """Depth in the parts that an annotator may include, by decision, each (V,)."""
    waves: Field = field(repr=False)
    """Waves around the centre of the lesion, which turn gradually along the slices, (waves, V)."""
    radius: float

    def _outline(self, decisions: Decisions, num: int, generator: Generator) -> NDArray[np.uint8]:
        style = np.clip(generator.standard_normal(num), -2, 2)
        wobbles = sum_waves(generator.standard_normal((num, len(self.waves))), self.waves)  # (A, V)
        depth = np.broadcast_to(self.body, wobbles.shape)
        for name, part in self.parts.items():
            joined = smooth_max(depth, part, JOINT * self.radius)
            depth = np.where(decisions[name][:, None], joined, depth)
        inside = depth + self.softness * style[:, None] + WOBBLE * self.radius * wobbles > 0
        drawn = np.zeros((num, *self.near.shape), dtype=np.uint8)
        drawn[:, self.near] = inside & decisions["present"][:, None]
        return drawn


def draw_lesion3d(generator: Generator, noise: Generator, size: int) -> LesionVolumeScene:
    """Draw a lung-like volume: texture, vessels and a lesion in the middle."""
    num_slices = int(generator.integers(NUM_SLICES[0], NUM_SLICES[1] + 1))
    x, y, z = _grid(size, num_slices)
    centre = generator.uniform(-0.08, 0.08, 3)
    radius = generator.uniform(0.22, 0.38)
    stretch = generator.uniform(0.8, 1.2)  # of the lesion along the slices
    softness = generator.uniform(0.015, 0.06)
    contrast = generator.uniform(0.07, 0.45)
    ratios = {name: generator.uniform(0.3, 0.9) for name in ("attached", "above", "below")}  # of the brightness

    x, y, z = x - centre[0], y - centre[1], z - centre[2]
    waves = _turning_waves(x, y, z / (stretch * radius))
    border = radius + 0.12 * radius * sum_waves(generator.standard_normal((1, len(waves))), waves)[0]
    body = border - np.sqrt(x**2 + y**2 + (z / stretch) ** 2)
    parts = {"attached": _attached_vessel(x, y, z, radius, generator)}
    for name, side in (("above", -1), ("below", 1)):
        parts[name] = _end(x, y, z, side * stretch * radius, radius, generator)

    shape, largest = sigmoid(body / softness), body
    for name, part in parts.items():
        joined = smooth_max(body, part, JOINT * radius)
        shape = np.maximum(shape, ratios[name] * sigmoid(joined / softness))
        largest = smooth_max(largest, part, JOINT * radius)
    tissue = 0.22 + _texture(x, y, z, generator, amplitude=0.025, max_frequency=3)
    bright = np.maximum(_vessels(x, y, z, generator), chest_wall(x[0], y[0], generator))
    mottled = 1 + _texture(x, y, z, generator, amplitude=0.06, max_frequency=5)
    clean = tissue + np.maximum(bright * (1 - shape), contrast * shape * mottled)
    near = largest > -2 * softness - 5 * WOBBLE * radius
    return LesionVolumeScene(
        image=add_noise(clean, noise, sigma=0.045),
        probabilities={
            "present": float(sigmoid((contrast - 0.14) / 0.045)),
            **{name: float(sigmoid((contrast * ratio - 0.15) / 0.05)) for name, ratio in ratios.items()},
        },
        softness=softness,
        near=near,
        body=body[near],
        parts={name: part[near] for name, part in parts.items()},
        waves=waves[:, near],
        radius=radius,
    )


def _grid(size: int, num_slices: int) -> tuple[Field, Field, Field]:
    """Return the coordinates of the voxel centres: x (1, 1, W), y (1, H, 1), z (D, 1, 1)."""
    x, y = grid(size)
    z: Field = (np.arange(num_slices, dtype=np.float64) - (num_slices - 1) / 2) * SLICE_SPACING_MM / (WIDTH_MM / 2)
    return x[None], y[None], z[:, None, None]


def _turning_waves(x: Field, y: Field, height: Field) -> Field:
    """Return functions of the direction and of the height between -1 and 1, (waves, D, H, W).

    At each height they are waves in the plane, mixed by cos and sin of an angle that grows with the height. The
    deviations of two slices therefore correlate by the cosine of the difference of their angles. Their variances
    sum to 1, and to less near the upper and lower end, where the direction in the plane is undefined.
    """
    waves = direction_waves(np.arctan2(y, x))  # (waves, 1, H, W)
    waves = waves * np.sqrt(1 - np.clip(height, -1, 1) ** 2).clip(0.3)
    angle = np.pi / 2 * np.clip(height, -1, 1)
    turned: Field = np.concatenate([waves * np.cos(angle), waves * np.sin(angle)])
    return turned


def _attached_vessel(x: Field, y: Field, z: Field, radius: float, generator: Generator) -> Field:
    """Draw the depth in a short vessel that leaves the lesion in an oblique direction, (D, H, W)."""
    towards = _direction(generator, max_slope=0.8)
    width = radius * generator.uniform(0.35, 0.55)
    start, stop = 0.7 * radius, radius * generator.uniform(1.7, 2.2)
    along, across = _along_line(x, y, z, towards)
    beyond = np.maximum(start - along, along - stop).clip(0)  # rounded ends
    depth: Field = width - np.hypot(across, beyond)
    return depth


def _end(x: Field, y: Field, z: Field, end: float, radius: float, generator: Generator) -> Field:
    """Draw the depth in the part that prolongs the lesion beyond `end` along the slices, (D, H, W)."""
    shift = 0.2 * radius * generator.uniform(-1, 1, 2)
    size = radius * generator.uniform(0.55, 0.75)
    depth: Field = size - np.sqrt((x - shift[0]) ** 2 + (y - shift[1]) ** 2 + (z - 0.95 * end) ** 2)
    return depth


def _direction(generator: Generator, *, max_slope: float) -> Field:
    """Draw a unit vector (x, y, z) that rises by at most `max_slope`."""
    angle, slope = generator.uniform(-np.pi, np.pi), generator.uniform(-max_slope, max_slope)
    vector: Field = np.array([np.cos(angle), np.sin(angle), slope]) / np.hypot(1, slope)
    return vector


def _along_line(x: Field, y: Field, z: Field, towards: Field) -> tuple[Field, Field]:
    """Return the distance along and from the line through the origin, both (D, H, W)."""
    along = towards[0] * x + towards[1] * y + towards[2] * z
    return along, np.sqrt((x**2 + y**2 + z**2 - along**2).clip(0))


def _vessels(x: Field, y: Field, z: Field, generator: Generator) -> Field:
    """Draw bright straight tubes beside the lesion, (D, H, W)."""
    bright = np.zeros(np.broadcast_shapes(x.shape, y.shape, z.shape))
    for _ in range(generator.integers(2, 5)):
        towards = _direction(generator, max_slope=2)
        place, distance = generator.uniform(-np.pi, np.pi), generator.uniform(0.6, 0.95)
        width, level = generator.uniform(0.03, 0.05), generator.uniform(0.1, 0.4)
        from_x, from_y = distance * np.cos(place), distance * np.sin(place)
        _, across = _along_line(x - from_x, y - from_y, z, towards)
        bright = np.maximum(bright, level * np.exp(-0.5 * (across / width) ** 2))
    return bright


def _texture(
    x: Field, y: Field, z: Field, generator: Generator, *, amplitude: float, max_frequency: float
) -> Field:
    """Draw a smooth random field, (D, H, W): plane waves of up to `max_frequency` half cycles per unit length."""
    num_waves = 32
    vectors = generator.standard_normal((num_waves, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors *= generator.uniform(0.3, 1, (num_waves, 1)) * max_frequency * np.pi
    phase = generator.uniform(0, 2 * np.pi, num_waves)
    columns, rows, slices = (
        np.exp(1j * np.multiply.outer(axis.ravel(), vectors[:, number])) for number, axis in enumerate((x, y, z))
    )  # (W, waves), (H, waves), (D, waves)
    stacked = (slices * np.exp(1j * phase))[:, None] * rows  # (D, H, waves)
    waves: Field = amplitude * np.sqrt(2 / num_waves) * np.einsum("dhw,xw->dhx", stacked, columns).real
    return waves
