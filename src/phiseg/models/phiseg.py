"""PHiSeg: a hierarchical conditional VAE of segmentations (Baumgartner et al., MICCAI 2019).

Shapes: B batch, S samples, K classes, D latent channels, L latent levels. Lists run fine to coarse: index 0
is the paper's level 1.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from phiseg.core.errors import ModelError
from phiseg.models.hierarchy import LatentHierarchy
from phiseg.models.likelihood import Likelihood, Upsampling
from phiseg.models.noise import Generators, draw_noise, one_per_image
from phiseg.models.objective import KLWeights, Loss, energy_score, kl_weights, negative_elbo
from phiseg.models.segmenter import (
    Encoding,
    LatentConfig,
    Segmenter,
    crop,
    fold_samples,
    unfold_samples,
    with_labels,
)


class PHiSegConfig(LatentConfig):
    """Settings of PHiSeg; the defaults are the reference code's network."""

    name: Literal["phiseg"] = "phiseg"
    num_levels: int = Field(default=5, ge=1)
    """Latent levels L, at most the number of resolution levels. L = 1 is the paper's ablation."""
    latent_channels: int = Field(default=2, ge=1)
    """Channels D of every latent variable."""
    embedding_channels: int | None = Field(default=None, ge=1)
    """Width of what a level of the prior and the posterior makes of the latent below it; 32 for each latent channel
    if not given (the authors' code), which in a narrow network is most of the work."""
    latents_at: Literal["coarsest", "finest"] = "coarsest"
    """Which resolution levels hold the latents: the L coarsest (the authors' code) or the L finest (the paper's
    text: z_1 at full resolution)."""
    kl_weights: KLWeights = "reference"
    """alpha of eq. 2: `paper` 2^(l-1), `reference` 4^i (the authors' code), `unit`, or one number a level."""
    free_nats: float = Field(default=0.0, ge=0)
    """What the KL of a level, averaged over the batch, may cost nothing."""
    energy_weight: float = Field(default=0.0, ge=0)
    """Weight of the energy score of samples drawn from the prior, which trains the sampling path directly; 0 is the
    paper's objective."""
    energy_samples: int = Field(default=2, ge=2)
    """Samples per image for the energy score."""
    shared_encoder: bool = False
    """Let the posterior take over the prior's features of the image and add those of the labels to them, from an
    encoder of its own with one block a level; by default it has a full encoder for both, as in the paper."""
    residual: bool = False
    """Add the input of each block to its output where both have the same number of channels."""
    upsampling: Upsampling = "nearest"
    """How the logits of coarse levels are brought to full size: `nearest` (the authors' code) or `bilinear`."""

    @model_validator(mode="after")
    def _levels_fit(self) -> Self:
        if self.num_levels > len(self.channels):
            raise ValueError(
                f"num_levels = {self.num_levels} needs that many resolution levels, but channels names "
                f"{len(self.channels)}"
            )
        if isinstance(self.kl_weights, tuple) and len(self.kl_weights) != self.num_levels:
            raise ValueError(f"kl_weights has {len(self.kl_weights)} numbers for {self.num_levels} levels")
        return self


class PHiSeg(Segmenter):
    """The prior, posterior and likelihood networks of the paper, and its objective.

    Training walks the posterior, injects its latents into the prior, and compares the two level by level.
    Sampling walks the prior. `encode`, `sample_latents` and `decode` give access to the ladder in between.
    """

    Config = PHiSegConfig
    config: PHiSegConfig

    def __init__(self, config: PHiSegConfig):
        super().__init__(config)
        num_resolutions = len(config.channels)
        self.offset = num_resolutions - config.num_levels if config.latents_at == "coarsest" else 0

        def hierarchy(in_channels: int, num_blocks: int) -> LatentHierarchy:
            return LatentHierarchy(
                in_channels,
                config,
                num_levels=config.num_levels,
                offset=self.offset,
                latent_channels=config.latent_channels,
                embedding_channels=config.embedding_channels or 32 * config.latent_channels,
                num_blocks=num_blocks,
                residual=config.residual,
            )

        self.prior = hierarchy(config.input_channels, config.blocks_per_level)
        self.posterior = (
            hierarchy(config.num_classes, 1)
            if config.shared_encoder
            else hierarchy(config.input_channels + config.num_classes, config.blocks_per_level)
        )
        self.likelihood = Likelihood(
            config.channels,
            num_levels=config.num_levels,
            offset=self.offset,
            latent_channels=config.latent_channels,
            num_classes=config.num_classes,
            norm=config.norm,
            residual=config.residual,
            upsampling=config.upsampling,
        )
        self.kl_weights = kl_weights(config.kl_weights, config.num_levels)

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return the negative of eq. 2 with deep supervision; see `Segmenter.forward`."""
        self.check_image(image)
        size = (image.shape[-2], image.shape[-1])
        generators = one_per_image(generator, len(image))
        noise = [fold_samples(level) for level in draw_noise(self.noise_shapes(size), len(image), 1, generators)]
        x = self.pad(with_labels(image, labels, self.config.num_classes))
        image_features = self.prior.encode(x[:, : self.config.input_channels])
        posteriors, latents = self.posterior.draw(self._encode_labels(x, image_features), noise)
        priors, _ = self.prior.draw(image_features, None, given=dict(enumerate(latents)))
        level_logits = [crop(logits, size) for logits in self.likelihood(latents)]
        loss = negative_elbo(
            level_logits, labels, posteriors, priors, self.kl_weights, free_nats=self.config.free_nats
        )
        if not self.config.energy_weight:
            return loss
        num_samples = self.config.energy_samples
        sampling_noise = draw_noise(self.noise_shapes(size), len(image), num_samples, generators)
        samples = self.sample_levels(Encoding(image_features, size), sampling_noise, num_samples)[0]
        energy = energy_score(samples, labels)
        return Loss(loss.total + self.config.energy_weight * energy, {**loss.terms, "energy": energy.detach()})

    def _encode_labels(self, x: Tensor, image_features: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the posterior's features of image and labels x (B, C + K, H, W), fine to coarse."""
        if not self.config.shared_encoder:
            return self.posterior.encode(x)
        label_features = self.posterior.encode(x[:, self.config.input_channels :])
        return [ours + theirs for ours, theirs in zip(label_features, image_features, strict=True)]

    def encode(self, image: Tensor) -> Encoding:
        """Run the prior's encoder: features (B, C_l, h_l, w_l) of every latent level, fine to coarse."""
        self.check_image(image)
        return Encoding(self.prior.encode(self.pad(image)), (image.shape[-2], image.shape[-1]))

    @property
    def num_levels(self) -> int:
        """The number L of latent levels."""
        return self.config.num_levels

    def noise_shapes(self, size: tuple[int, int]) -> list[tuple[int, ...]]:
        """Return (D, h_l, w_l) of every level, fine to coarse."""
        height, width = self.padded_size(size)
        scales = [2 ** (level + self.offset) for level in range(self.config.num_levels)]
        return [(self.config.latent_channels, height // scale, width // scale) for scale in scales]

    def sample_latents(
        self,
        encoding: Encoding,
        noise: Sequence[Tensor],
        *,
        given: Mapping[int, Tensor] | None = None,
        temperatures: Sequence[float] | None = None,
    ) -> list[Tensor]:
        """Walk the prior, p(z_L | x) ... p(z_1 | z_2, x) of eq. 1.

        Args:
            encoding: of B images.
            noise: standard normal (B, S, D, h_l, w_l) for each level, fine to coarse.
            given: latents (B, S, D, h_l, w_l) to keep as they are, by level (0 is the finest); the other levels
                are drawn.
            temperatures: factor on the prior's standard deviation, one a level; 1 if not given.

        Returns:
            Latents (B, S, D, h_l, w_l), fine to coarse.

        Raises:
            ModelError: a level or a number of temperatures that the model does not have.
        """
        num_levels = self.config.num_levels
        strange = sorted(set(given or {}) - set(range(num_levels)))
        if strange or len(noise) != num_levels or (temperatures is not None and len(temperatures) != num_levels):
            raise ModelError(
                f"the model has {num_levels} levels, 0 to {num_levels - 1}: give noise and temperatures for each, "
                f"and latents for no others (got noise for {len(noise)}, latents for {sorted(given or {})})"
            )
        kept = {level: fold_samples(latent) for level, latent in (given or {}).items()}
        folded = [fold_samples(level) for level in noise]
        _, latents = self.prior.draw(encoding.features, folded, given=kept, temperatures=temperatures)
        return [unfold_samples(latent, noise[0].shape[1]) for latent in latents]

    def decode(self, latents: Sequence[Tensor], size: tuple[int, int]) -> list[Tensor]:
        """Run the likelihood network.

        Args:
            latents: (B, S, D, h_l, w_l) of each level, fine to coarse.
            size: (H, W) of the image.

        Returns:
            The accumulated logits (B, S, K, H, W) of every level, fine to coarse; softmax of the first is p(s|z).
        """
        accumulated = self.likelihood([fold_samples(latent) for latent in latents])
        return [unfold_samples(crop(logits, size), latents[0].shape[1]) for logits in accumulated]

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:
        """Turn noise (B, S, D, h_l, w_l) into logits (B, S, K, H, W)."""
        return self.sample_levels(encoding, noise, num_samples)[0]

    def sample_levels(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> list[Tensor]:
        """Turn noise into the accumulated logits (B, S, K, H, W) of every level, fine to coarse."""
        assert all(level.shape[1] == num_samples for level in noise)
        return self.decode(self.sample_latents(encoding, noise), encoding.size)
