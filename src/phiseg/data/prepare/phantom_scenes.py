"""Scenes of the phantoms: an image, and the distribution of its annotations.

A scene has a visible geometry. Given the geometry, annotators are independent and identically distributed. Each
draws:

  coarse  binary decisions (is there a lesion, does the attached part belong to it, are the two zones distinguished,
          is the nodule part of the inner zone), each with a probability that is a function of a contrast visible in
          the image;
  fine    a tight or generous border, by an amount that grows with the visible softness of the border, and a small
          smooth deviation.

Everything that the distribution depends on is visible, so p(s | scene) = p(s | image) up to the noise of the image.
The target of a perfect model is therefore known, and any number of further annotators can be drawn for comparison.

Geometry is in coordinates from -1 to 1 between the edges of the image, and only the pixel noise depends on the
image size, so a scene is the same at every size. `depth` is positive inside a structure and zero on its border.

A annotators, H x W pixels.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Field = NDArray[np.float64]
"""(H, W) values on the pixels, or (A, H, W)."""

Decisions = dict[str, NDArray[np.bool_]]
"""(A,) for each coarse decision."""


@dataclass(frozen=True, eq=False)
class Scene(ABC):
    """An image and its annotators."""

    image: NDArray[np.float32]
    """(H, W), in [0, 1]."""
    probabilities: dict[str, float]
    """Probability that an annotator decides yes, for each coarse decision."""
    softness: float
    """Visible width of the border, in coordinates."""

    def annotate(self, num: int, generator: Generator) -> NDArray[np.uint8]:
        """Draw `num` further annotators, (num, H, W) class indices."""
        decisions = {name: generator.random(num) < p for name, p in self.probabilities.items()}
        return self._outline(decisions, num, generator)

    @abstractmethod
    def _outline(self, decisions: Decisions, num: int, generator: Generator) -> NDArray[np.uint8]:
        """Draw the borders, given the coarse decisions."""


@dataclass(frozen=True, eq=False)
class LesionScene(Scene):
    """A lesion in lung-like tissue, possibly with an attached part. Classes: background, lesion."""

    body: Field = field(repr=False)
    """Depth in the lesion without its attached part."""
    joined: Field = field(repr=False)
    """Depth in the lesion with its attached part."""
    waves: Field = field(repr=False)
    """Waves around the centre of the lesion."""
    radius: float

    def _outline(self, decisions: Decisions, num: int, generator: Generator) -> NDArray[np.uint8]:
        depth = np.where(decisions["attached"][:, None, None], self.joined, self.body)
        inside = depth + _hand(self.waves, num, self.softness, 0.06 * self.radius, generator) > 0
        return (inside & decisions["present"][:, None, None]).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class ZonesScene(Scene):
    """A prostate-like gland. Classes: background, transition zone, peripheral zone."""

    gland: Field = field(repr=False)
    inner: Field = field(repr=False)
    joined: Field = field(repr=False)
    """Depth in the inner zone with the nodule at its border."""
    waves: Field = field(repr=False)
    """Waves around the centre of the gland."""
    inner_waves: Field = field(repr=False)
    """Waves around the centre of the inner zone."""
    unsplit_zone: int
    """Class of the whole gland for annotators who do not distinguish the zones: the larger zone."""
    zone_softness: float
    """Visible width of the border between the zones."""

    def _outline(self, decisions: Decisions, num: int, generator: Generator) -> NDArray[np.uint8]:
        gland = self.gland + _hand(self.waves, num, self.softness, 0.015, generator) > 0
        depth = np.where(decisions["nodule"][:, None, None], self.joined, self.inner)
        inner = depth + _hand(self.inner_waves, num, self.zone_softness, 0.015, generator) > 0
        zones = np.where(decisions["split"][:, None, None], np.where(inner, 1, 2), self.unsplit_zone)
        return (gland * zones).astype(np.uint8)


def draw_lesion(generator: Generator, noise: Generator, size: int) -> LesionScene:
    """Draw a lung-like scene: texture, vessels and a lesion in the middle."""
    x, y = _grid(size)
    centre = generator.uniform(-0.08, 0.08, 2)
    radius = generator.uniform(0.22, 0.42)
    softness = generator.uniform(0.015, 0.07)
    contrast = generator.uniform(0.07, 0.45)
    ratio = generator.uniform(0.35, 0.9)  # brightness of the attached part relative to the lesion
    direction = generator.uniform(-np.pi, np.pi)
    reach = radius * generator.uniform(1.0, 1.3)
    part_radius = radius * generator.uniform(0.55, 0.85)

    body, waves = _blob(x - centre[0], y - centre[1], radius, 0.12 * radius, generator)
    part_centre = centre + reach * np.array([np.cos(direction), np.sin(direction)])
    part, _ = _blob(x - part_centre[0], y - part_centre[1], part_radius, 0.08 * part_radius, generator)
    joined = _smooth_max(body, part, 0.1 * radius)

    tissue = 0.22 + _texture(x, y, generator, amplitude=0.025, max_frequency=3)
    bright = np.maximum(_vessels(x, y, generator), _wall(x, y, generator))
    shape = np.maximum(_sigmoid(body / softness), ratio * _sigmoid(joined / softness))
    mottled = 1 + _texture(x, y, generator, amplitude=0.06, max_frequency=5)
    clean = tissue + np.maximum(bright * (1 - shape), contrast * shape * mottled)
    return LesionScene(
        image=_noisy(clean, noise, sigma=0.045),
        probabilities={
            "present": float(_sigmoid((contrast - 0.14) / 0.045)),
            "attached": float(_sigmoid((contrast * ratio - 0.15) / 0.05)),
        },
        softness=softness,
        body=body,
        joined=joined,
        waves=waves,
        radius=radius,
    )


def draw_zones(generator: Generator, noise: Generator, size: int) -> ZonesScene:
    """Draw a prostate-like scene: a gland with an inner zone and a bright crescent behind it."""
    x, y = _grid(size)
    centre_x, centre_y = generator.uniform(-0.06, 0.06, 2)
    half_width, half_height = generator.uniform(0.52, 0.64), generator.uniform(0.42, 0.52)
    scale = generator.uniform(0.5, 0.88)  # of the inner zone: small at the apex, large at the base
    softness, zone_softness = generator.uniform(0.01, 0.03), generator.uniform(0.015, 0.055)
    contrast = generator.uniform(0.03, 0.4)
    ratio = generator.uniform(0.2, 1.0)  # similarity of the nodule to the inner zone
    lean = generator.choice([-1.0, 1.0]) * generator.uniform(0.5, 1.0)

    x, y = x - centre_x, y - centre_y
    stretch = half_height / half_width
    gland, waves = _blob(stretch * x, y, half_height, 0.02 * half_height, generator)
    inner_y = -0.8 * half_height * (1 - scale)  # the inner zone lies in front
    inner, inner_waves = _blob(stretch * x, y - inner_y, scale * half_height, 0.03 * half_height, generator)
    nodule_x = scale * half_width * np.sin(lean)
    nodule_y = inner_y + scale * half_height * np.cos(lean)
    nodule_radius = half_height * generator.uniform(0.25, 0.38)
    nodule, _ = _blob(x - nodule_x, y - nodule_y, nodule_radius, 0.08 * nodule_radius, generator)
    joined = _smooth_max(inner, nodule, 0.04)

    zone = np.maximum(_sigmoid(inner / zone_softness), ratio * _sigmoid(joined / zone_softness))
    lobules = _texture(x, y, generator, amplitude=0.05, max_frequency=7)
    tissue = 0.55 + 0.4 * contrast - (contrast - lobules) * zone
    tissue = tissue + _texture(x, y, generator, amplitude=0.015, max_frequency=4)
    inside = _sigmoid(gland / softness)
    clean = _pelvis(x, y, half_height, generator) * (1 - inside) + tissue * inside
    return ZonesScene(
        image=_noisy(clean - 0.12 * np.exp(-((gland / 0.03) ** 2)), noise, sigma=0.04),
        probabilities={
            "split": float(_sigmoid((contrast - 0.08) / 0.03)),
            "nodule": float(_sigmoid((ratio - 0.6) / 0.12)),
        },
        softness=softness,
        gland=gland,
        inner=inner,
        joined=joined,
        waves=waves,
        inner_waves=inner_waves,
        unsplit_zone=1 if scale > 0.68 else 2,
        zone_softness=zone_softness,
    )


def _hand(waves: Field, num: int, softness: float, wobble: float, generator: Generator) -> Field:
    """Draw the distance of each annotator's border from the visible one, by direction, (A, H, W).

    It is the sum of a constant per annotator, in units of the softness, and a smooth deviation.
    """
    style = np.clip(generator.standard_normal(num), -2, 2)
    wobbles = _sum_waves(generator.standard_normal((num, len(waves))), waves)
    return softness * style[:, None, None] + wobble * wobbles


def _grid(size: int) -> tuple[Field, Field]:
    """Return the coordinates of the pixel centres: x (1, W) to the right, y (H, 1) downwards."""
    places = (np.arange(size) + 0.5) / size * 2 - 1
    return places[None, :], places[:, None]


def _blob(x: Field, y: Field, radius: float, irregularity: float, generator: Generator) -> tuple[Field, Field]:
    """Draw a star-shaped blob around the origin; return the depth in it (H, W) and the waves around it."""
    waves = _waves(np.arctan2(y, x))
    border = radius + irregularity * _sum_waves(generator.standard_normal((1, len(waves))), waves)[0]
    return border - np.hypot(x, y), waves


def _waves(angle: Field) -> Field:
    """Return periodic functions of the direction, larger for low frequencies, (waves, H, W); variances sum to 1."""
    modes = np.arange(2, 8)
    scale = 1 / modes / np.sqrt(np.sum(1.0 / modes**2))
    unit = np.broadcast_to(np.exp(1j * angle), (modes[-1], *angle.shape))
    powers = np.cumprod(unit, axis=0)[1:] * scale[:, None, None]  # exp(i m angle) of the modes m
    waves: Field = np.concatenate([powers.real, powers.imag])
    return waves


def _sum_waves(amplitudes: Field, waves: Field) -> Field:
    """Sum (waves, H, W) by amplitudes (A, waves) to (A, H, W)."""
    total: Field = np.einsum("aw,whx->ahx", amplitudes, waves)  # no BLAS: the same bits with any number of threads
    return total


def _texture(x: Field, y: Field, generator: Generator, *, amplitude: float, max_frequency: float) -> Field:
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


def _vessels(x: Field, y: Field, generator: Generator) -> Field:
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
        taper = _sigmoid(4 * (along + generator.uniform(-0.6, 0.6)))
        bright = np.maximum(bright, level * taper * np.exp(-0.5 * (across / width) ** 2))
    for _ in range(generator.integers(1, 4)):
        direction, distance = generator.uniform(0, 2 * np.pi), generator.uniform(0.65, 0.95)
        radius, level = generator.uniform(0.03, 0.06), generator.uniform(0.15, 0.45)
        away = np.hypot(x - distance * np.cos(direction), y - distance * np.sin(direction))
        bright = np.maximum(bright, level * _sigmoid((radius - away) / 0.015))
    return bright


def _wall(x: Field, y: Field, generator: Generator) -> Field:
    """Draw the chest wall at one side of every third image, (H, W)."""
    direction, distance = generator.uniform(0, 2 * np.pi), generator.uniform(0.75, 1.0)
    bend, present = generator.uniform(0.0, 0.3), generator.random() < 1 / 3
    along = -np.sin(direction) * x + np.cos(direction) * y
    towards = np.cos(direction) * x + np.sin(direction) * y - distance + bend * along**2
    wall: Field = 0.45 * present * _sigmoid(towards / 0.02)
    return wall


def _pelvis(x: Field, y: Field, half_height: float, generator: Generator) -> Field:
    """Draw the surroundings of the gland, (H, W): fat, a dark muscle on each side and the rectum behind it."""
    fat = 0.48 + _texture(x, y, generator, amplitude=0.04, max_frequency=3)
    apart, slant, width = generator.uniform(0.92, 1.05), generator.uniform(0.1, 0.3), generator.uniform(0.14, 0.2)
    muscles = _sigmoid((1 - np.hypot((np.abs(x) - apart + slant * y) / width, (y - 0.1) / 0.75)) / 0.1)
    behind = half_height + generator.uniform(0.2, 0.28)
    rectum = np.hypot(0.75 * x, y - behind)
    wall = np.exp(-(((rectum - 0.2) / 0.04) ** 2))
    lumen = _sigmoid((0.18 - rectum) / 0.02)
    return fat - 0.26 * muscles - 0.16 * wall - 0.3 * lumen


def _smooth_max(first: Field, second: Field, width: float) -> Field:
    """Return the larger of two depths, smoothed where they are equal."""
    return width * np.logaddexp(first / width, second / width)


def _sigmoid(value: Field | float) -> Field:
    return 0.5 * (1 + np.tanh(0.5 * np.asarray(value)))


def _noisy(clean: Field, generator: Generator, *, sigma: float) -> NDArray[np.float32]:
    """Add noise that is correlated between neighbours, as after image reconstruction, and clip to [0, 1]."""
    height, width = clean.shape
    white = generator.standard_normal((height + 2, width + 2))
    rows = white[:-2] + 2 * white[1:-1] + white[2:]
    blurred = (rows[:, :-2] + 2 * rows[:, 1:-1] + rows[:, 2:]) / 6  # squares of the weights sum to 1
    return np.clip(clean + sigma * blurred, 0, 1).astype(np.float32)
