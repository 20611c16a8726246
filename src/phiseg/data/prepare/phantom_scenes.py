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

A annotators, H x W pixels. *size is (H, W), or (D, H, W) for the volumes of `phantom_volumes`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from phiseg.data.prepare.phantom_fields import (
    Field,
    add_noise,
    blob,
    chest_wall,
    grid,
    pelvis,
    sigmoid,
    smooth_max,
    sum_waves,
    texture,
    vessels,
)

Decisions = dict[str, NDArray[np.bool_]]
"""(A,) for each coarse decision."""


@dataclass(frozen=True, eq=False)
class Scene(ABC):
    """An image and its annotators."""

    image: NDArray[np.float32]
    """(*size), in [0, 1]."""
    probabilities: dict[str, float]
    """Probability that an annotator decides yes, for each coarse decision."""
    softness: float
    """Visible width of the border, in coordinates."""

    def annotate(self, num: int, generator: Generator) -> NDArray[np.uint8]:
        """Draw `num` further annotators, (num, *size) class indices."""
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
    x, y = grid(size)
    centre = generator.uniform(-0.08, 0.08, 2)
    radius = generator.uniform(0.22, 0.42)
    softness = generator.uniform(0.015, 0.07)
    contrast = generator.uniform(0.07, 0.45)
    ratio = generator.uniform(0.35, 0.9)  # brightness of the attached part relative to the lesion
    direction = generator.uniform(-np.pi, np.pi)
    reach = radius * generator.uniform(1.0, 1.3)
    part_radius = radius * generator.uniform(0.55, 0.85)

    body, waves = blob(x - centre[0], y - centre[1], radius, 0.12 * radius, generator)
    part_centre = centre + reach * np.array([np.cos(direction), np.sin(direction)])
    part, _ = blob(x - part_centre[0], y - part_centre[1], part_radius, 0.08 * part_radius, generator)
    joined = smooth_max(body, part, 0.1 * radius)

    tissue = 0.22 + texture(x, y, generator, amplitude=0.025, max_frequency=3)
    bright = np.maximum(vessels(x, y, generator), chest_wall(x, y, generator))
    shape = np.maximum(sigmoid(body / softness), ratio * sigmoid(joined / softness))
    mottled = 1 + texture(x, y, generator, amplitude=0.06, max_frequency=5)
    clean = tissue + np.maximum(bright * (1 - shape), contrast * shape * mottled)
    return LesionScene(
        image=add_noise(clean, noise, sigma=0.045),
        probabilities={
            "present": float(sigmoid((contrast - 0.14) / 0.045)),
            "attached": float(sigmoid((contrast * ratio - 0.15) / 0.05)),
        },
        softness=softness,
        body=body,
        joined=joined,
        waves=waves,
        radius=radius,
    )


def draw_zones(generator: Generator, noise: Generator, size: int) -> ZonesScene:
    """Draw a prostate-like scene: a gland with an inner zone and a bright crescent behind it."""
    x, y = grid(size)
    centre_x, centre_y = generator.uniform(-0.06, 0.06, 2)
    half_width, half_height = generator.uniform(0.52, 0.64), generator.uniform(0.42, 0.52)
    scale = generator.uniform(0.5, 0.88)  # of the inner zone: small at the apex, large at the base
    softness, zone_softness = generator.uniform(0.01, 0.03), generator.uniform(0.015, 0.055)
    contrast = generator.uniform(0.03, 0.4)
    ratio = generator.uniform(0.2, 1.0)  # similarity of the nodule to the inner zone
    lean = generator.choice([-1.0, 1.0]) * generator.uniform(0.5, 1.0)

    x, y = x - centre_x, y - centre_y
    stretch = half_height / half_width
    gland, waves = blob(stretch * x, y, half_height, 0.02 * half_height, generator)
    inner_y = -0.8 * half_height * (1 - scale)  # the inner zone lies in front
    inner, inner_waves = blob(stretch * x, y - inner_y, scale * half_height, 0.03 * half_height, generator)
    nodule_x = scale * half_width * np.sin(lean)
    nodule_y = inner_y + scale * half_height * np.cos(lean)
    nodule_radius = half_height * generator.uniform(0.25, 0.38)
    nodule, _ = blob(x - nodule_x, y - nodule_y, nodule_radius, 0.08 * nodule_radius, generator)
    joined = smooth_max(inner, nodule, 0.04)

    zone = np.maximum(sigmoid(inner / zone_softness), ratio * sigmoid(joined / zone_softness))
    lobules = texture(x, y, generator, amplitude=0.05, max_frequency=7)
    tissue = 0.55 + 0.4 * contrast - (contrast - lobules) * zone
    tissue = tissue + texture(x, y, generator, amplitude=0.015, max_frequency=4)
    inside = sigmoid(gland / softness)
    clean = pelvis(x, y, half_height, generator) * (1 - inside) + tissue * inside
    return ZonesScene(
        image=add_noise(clean - 0.12 * np.exp(-((gland / 0.03) ** 2)), noise, sigma=0.04),
        probabilities={
            "split": float(sigmoid((contrast - 0.08) / 0.03)),
            "nodule": float(sigmoid((ratio - 0.6) / 0.12)),
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
    wobbles = sum_waves(generator.standard_normal((num, len(waves))), waves)
    return softness * style[:, None, None] + wobble * wobbles
