"""Building blocks of the phantoms: shapes, textures and noise.

Geometry is in coordinates from -1 to 1 between the edges of an image. `depth` is positive inside a structure and
zero on its border.

A annotators, D slices of a volume, H x W pixels.
"""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Field = NDArray[np.float64]
"""Values on the pixels, (H, W) or (D, H, W), or (A, ...) for several annotators."""


def grid(size: int) -> tuple[Field, Field]:
    """Return the coordinates of the pixel centres: x (1, W) to the right, y (H, 1) downwards."""
    places = (np.arange(size) + 0.5) / size * 2 - 1
    return places[None, :], places[:, None]


def blob(x: Field, y: Field, radius: float, irregularity: float, generator: Generator) -> tuple[Field, Field]:
    """Draw a star-shaped blob around the origin; return the depth in it (H, W) and the waves around it."""
    waves = direction_waves(np.arctan2(y, x))
    border = radius + irregularity * sum_waves(generator.standard_normal((1, len(waves))), waves)[0]
    return border - np.hypot(x, y), waves


def direction_waves(angle: Field) -> Field:
    """Return periodic functions of the direction, larger for low frequencies, (waves, ...); variances sum to 1."""
    modes = np.arange(2, 8)
    scale = 1 / modes / np.sqrt(np.sum(1.0 / modes**2))
    unit = np.broadcast_to(np.exp(1j * angle), (modes[-1], *angle.shape))
    powers = np.cumprod(unit, axis=0)[1:] * scale.reshape(-1, *[1] * angle.ndim)  # exp(i m angle) of the modes m
    waves: Field = np.concatenate([powers.real, powers.imag])
    return waves


def sum_waves(amplitudes: Field, waves: Field) -> Field:
    """Sum (waves, ...) by amplitudes (A, waves) to (A, ...)."""
    total: Field = np.einsum(
        "aw,w...->a...", amplitudes, waves
    )  # no BLAS: the same bits with any number of threads
    return total


def texture(x: Field, y: Field, generator: Generator, *, amplitude: float, max_frequency: float) -> Field:
    """Draw a smooth random field, (H, W): plane waves of up to `max_frequency` half cycles per unit length."""
    num_waves = 32
    frequency = generator.uniform(0.3, 1, num_waves) * max_frequency * np.pi
    direction, phase = generator.uniform(0, 2 * np.pi, (2, num_waves))
    across = frequency * np.cos(direction) * x.T + phase  # (W, waves)
    down = frequency * np.sin(direction) * y  # (H, waves)
    # cos(a + b) = cos a cos b - sin a sin b: sums over waves of functions of one coordinate
    columns = np.concatenate([np.cos(across), -np.sin(across)], axis=1)
    rows = np.concatenate([np.cos(down), np.sin(down)], axis=1)
    texture: Field = amplitude * np.sqrt(2 / num_waves) * np.einsum("hw,xw->hx", rows, columns)
    return texture


def vessels(x: Field, y: Field, generator: Generator) -> Field:
    """Draw bright curved tubes and their round cross-sections, (H, W)."""
    bright = np.zeros(np.broadcast_shapes(x.shape, y.shape))
    for _ in range(generator.integers(2, 5)):
        direction, offset = generator.uniform(0, 2 * np.pi), generator.uniform(0.3, 0.9)
        bend, width, level = (
            generator.uniform(-0.5, 0.5),
            generator.uniform(0.02, 0.045),
            generator.uniform(0.1, 0.4),
        )
        along = np.cos(direction) * x + np.sin(direction) * y
        across = -np.sin(direction) * x + np.cos(direction) * y - offset - bend * along**2
        taper = sigmoid(4 * (along + generator.uniform(-0.6, 0.6)))
        bright = np.maximum(bright, level * taper * np.exp(-0.5 * (across / width) ** 2))
    for _ in range(generator.integers(1, 4)):
        direction, distance = generator.uniform(0, 2 * np.pi), generator.uniform(0.65, 0.95)
        radius, level = generator.uniform(0.03, 0.06), generator.uniform(0.15, 0.45)
        away = np.hypot(x - distance * np.cos(direction), y - distance * np.sin(direction))
        bright = np.maximum(bright, level * sigmoid((radius - away) / 0.015))
    return bright


def chest_wall(x: Field, y: Field, generator: Generator) -> Field:
    """Draw the chest wall at one side of every third image, (H, W)."""
    direction, distance = generator.uniform(0, 2 * np.pi), generator.uniform(0.75, 1.0)
    bend, present = generator.uniform(0.0, 0.3), generator.random() < 1 / 3
    along = -np.sin(direction) * x + np.cos(direction) * y
    towards = np.cos(direction) * x + np.sin(direction) * y - distance + bend * along**2
    wall: Field = 0.45 * present * sigmoid(towards / 0.02)
    return wall


def pelvis(x: Field, y: Field, half_height: float, generator: Generator) -> Field:
    """Draw the surroundings of the gland, (H, W): fat, a dark muscle on each side and the rectum behind it."""
    fat = 0.48 + texture(x, y, generator, amplitude=0.04, max_frequency=3)
    apart, slant, width = generator.uniform(0.92, 1.05), generator.uniform(0.1, 0.3), generator.uniform(0.14, 0.2)
    muscles = sigmoid((1 - np.hypot((np.abs(x) - apart + slant * y) / width, (y - 0.1) / 0.75)) / 0.1)
    behind = half_height + generator.uniform(0.2, 0.28)
    rectum = np.hypot(0.75 * x, y - behind)
    wall = np.exp(-(((rectum - 0.2) / 0.04) ** 2))
    lumen = sigmoid((0.18 - rectum) / 0.02)
    return fat - 0.26 * muscles - 0.16 * wall - 0.3 * lumen


def smooth_max(first: Field, second: Field, width: float) -> Field:
    """Return the larger of two depths, smoothed where they are equal."""
    return width * np.logaddexp(first / width, second / width)


def sigmoid(value: Field | float) -> Field:
    """Return 1 / (1 + exp(-value))."""
    return 0.5 * (1 + np.tanh(0.5 * np.asarray(value)))


def add_noise(clean: Field, generator: Generator, *, sigma: float) -> NDArray[np.float32]:
    """Add noise that is correlated between neighbours of a slice, as after reconstruction, and clip to [0, 1]."""
    *slices, height, width = clean.shape
    white = generator.standard_normal((*slices, height + 2, width + 2))
    rows = white[..., :-2, :] + 2 * white[..., 1:-1, :] + white[..., 2:, :]
    blurred = (rows[..., :-2] + 2 * rows[..., 1:-1] + rows[..., 2:]) / 6  # squares of the weights sum to 1
    return np.clip(clean + sigma * blurred, 0, 1).astype(np.float32)
