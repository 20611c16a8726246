"""Options for drawing samples of a scan. Importing this module is fast."""

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Self

from phiseg.core.errors import ConfigError

if TYPE_CHECKING:
    from phiseg.inference.preprocessing import SliceCoupling
    from phiseg.inference.slice_noise import Level
    from phiseg.models import Segmenter


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling options of a scan."""

    num_samples: int = 32
    """S."""
    seed: int = 0
    """Seed of the samples."""
    noise_length_mm: float | None = None
    """Distance over which the noise of a sample changes along the slices; None uses the length stored with the
    model, or inf. With 0, slices are independent."""
    noise_shared: float | None = None
    """Share of the noise variance that is constant along the slices; None uses the share stored with the model, or
    0 if a length is given."""
    levels: "tuple[Level, ...]" = ()
    """Changes to the noise of each latent level, fine to coarse; empty for no changes."""
    level_draws: int = 8
    """Number of redraws per latent level to attribute the uncertainty to levels; 0 skips this."""
    reach_mm: float | None = None
    """Maximum distance from the point over which a lesion is followed. None is half the longer side of the crop,
    but at least one slice."""
    batch_size: int = 4
    """Number of slices encoded at once. Affects memory use only, not results."""
    chunk_size: int = 16
    """Number of samples per slice decoded at once. Affects memory use only, not results."""

    def __post_init__(self) -> None:
        for name in ("num_samples", "batch_size", "chunk_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for level in self.levels:
            if not (level.temperature >= 0 and isfinite(level.temperature)):
                raise ConfigError(f"the temperature is {level.temperature}; it must be 0 or more")
        if self.level_draws < 0:
            raise ConfigError(f"level_draws is {self.level_draws}; it must be 0 or more")
        if self.noise_length_mm is not None and not self.noise_length_mm >= 0:
            raise ConfigError(f"noise_length_mm is {self.noise_length_mm}; it must be 0 or more, or inf")
        if self.noise_shared is not None and not 0 <= self.noise_shared <= 1:
            raise ConfigError(f"noise_shared is {self.noise_shared}; it must be between 0 and 1")
        if self.reach_mm is not None and not self.reach_mm >= 0:
            raise ConfigError(f"reach_mm is {self.reach_mm}; it must be 0 or more")

    def for_model(self, model: "Segmenter", learned: "SliceCoupling") -> Self:
        """Return a copy with the length and shared part of the noise filled in if they are not set.

        Raises:
            ConfigError: they are set for a 3-D model, which has learned how slices belong together.
        """
        if model.config.dims == 3:
            if self.noise_length_mm is not None or self.noise_shared is not None:
                raise ConfigError(
                    "the model segments volumes, whose slices have no separate noise; omit --noise-length and "
                    "--noise-shared"
                )
            return self
        if self.noise_length_mm is not None:
            return replace(self, noise_shared=self.noise_shared or 0.0)
        return replace(
            self,
            noise_length_mm=inf if learned.length_mm is None else learned.length_mm,
            noise_shared=learned.shared if self.noise_shared is None else self.noise_shared,
        )
