"""Noise that is correlated along the slices, so that a sample is one hypothesis about a volume."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import cos, floor, inf, pi, sin, sqrt

from torch import Tensor

from phiseg.core.errors import ConfigError
from phiseg.models.noise import draw_noise, seeded_generator


@dataclass(frozen=True)
class Level:
    """Changes to the noise of one latent level."""

    seed: int = 0
    """Seed of the level; another number redraws its noise."""
    hold: bool = False
    """Use the noise of the first sample for all samples."""
    temperature: float = 1.0
    """Factor on the noise."""


def level_settings(levels: Sequence[Level], number: int) -> Sequence[Level]:
    """Return the settings of `number` levels; no settings change nothing.

    Raises:
        ConfigError: there are settings for another number of levels.
    """
    if len(levels) not in (0, number):
        raise ConfigError(f"there are settings of {len(levels)} levels, but the model has {number} levels")
    return levels or [Level()] * number


class SliceNoise:
    """The noise of S samples at any depth of a volume.

    With an infinite length, the noise of a sample is the same in every slice. With length zero, it is independent
    in every slice. Otherwise, independent draws are `length_mm` apart, and a slice between two of them takes cos(t)
    of one and sin(t) of the other, with t from 0 to pi/2. The noise is standard normal at every depth, equal at
    equal depths, and independent at distances of more than twice the length.

    In addition, the share `shared` of the variance is the same at every depth: an annotator who draws generously in
    one slice does so in all slices. The correlation of two depths is then between `shared` and 1.

    Args:
        shapes: noise shapes of one sample, from `Segmenter.noise_shapes`.
        num_samples: S.
        seed: seed of the samples.
        keys: name of the stream; streams are independent.
        length_mm: distance over which the noise changes along the slices.
        shared: share of the variance that is constant along the slices, from 0 to 1.
        levels: changes to the noise of each shape; None for no changes.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        num_samples: int,
        *,
        seed: int,
        keys: tuple[str, ...],
        length_mm: float = inf,
        shared: float = 0.0,
        levels: Sequence[Level] = (),
    ) -> None:
        if not length_mm >= 0:
            raise ConfigError(f"the noise length is {length_mm} mm; it must be 0 or more, or inf")
        if not 0 <= shared <= 1:
            raise ConfigError(f"the shared part of the noise is {shared}; it must be between 0 and 1")
        self.shapes, self.num_samples = shapes, num_samples
        self.seed, self.keys, self.length_mm, self.shared = seed, keys, length_mm, shared
        self.levels = level_settings(levels, len(shapes))
        self._knots: dict[float, list[Tensor]] = {}

    def at(self, depth_mm: float) -> list[Tensor]:
        """Return the noise of all samples at a depth, one tensor (1, S, *shape) per shape."""
        if self.length_mm == inf or self.shared == 1:
            return self._everywhere
        local = self._changing(depth_mm)
        if not self.shared:
            return local
        pairs = zip(self._everywhere, local, strict=True)
        return [sqrt(self.shared) * common + sqrt(1 - self.shared) * own for common, own in pairs]

    def _changing(self, depth_mm: float) -> list[Tensor]:
        if self.length_mm == 0:
            return self._knot(depth_mm)
        place = depth_mm / self.length_mm
        below = floor(place)
        angle = (place - below) * pi / 2
        pairs = zip(self._knot(below), self._knot(below + 1), strict=True)
        return [cos(angle) * first + sin(angle) * second for first, second in pairs]

    @cached_property
    def _everywhere(self) -> list[Tensor]:
        return self._drawn(inf)

    def _knot(self, place: float) -> list[Tensor]:
        if place not in self._knots:
            if len(self._knots) > 2:  # slices are in order, so two neighbours are enough
                self._knots.pop(next(iter(self._knots)))
            self._knots[place] = self._drawn(place)
        return self._knots[place]

    def _drawn(self, place: float) -> list[Tensor]:
        """Return an independent draw with the changes to each level."""
        draws = {seed: self._draw(place, seed) for seed in {level.seed for level in self.levels}}
        return [
            level.temperature * (noise[:, :1].expand_as(noise) if level.hold else noise)
            for level, noise in ((level, draws[level.seed][n]) for n, level in enumerate(self.levels))
        ]

    def _draw(self, place: float, level_seed: int) -> list[Tensor]:
        keys = (*self.keys, f"level seed {level_seed}") if level_seed else self.keys
        generator = seeded_generator(self.seed, "volume", *keys, repr(float(place)))
        return draw_noise(self.shapes, 1, self.num_samples, [generator])
