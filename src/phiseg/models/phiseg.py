"""PHiSeg: a hierarchical conditional VAE for segmentation (Baumgartner et al., MICCAI 2019).

Shapes: B batch, S samples, K classes, Z latent channels, L latent levels. Lists run fine to coarse: index 0
is level 1 of the paper.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from phiseg.core.errors import ModelError
from phiseg.models.hierarchy import LatentHierarchy
from phiseg.models.likelihood import Likelihood, Upsampling
from phiseg.models.noise import Generators, draw_noise
from phiseg.models.objective import KLWeights, Loss, kl_weights, negative_elbo
from phiseg.models.presence import (
    PresenceNetwork,
    add_absent,
    choose_present,
    draw_present,
    erase_absent,
    presence_loss,
)
from phiseg.models.pyramid import PerAxis
from phiseg.models.segmenter import (
    Encoding,
    LatentConfig,
    Segmenter,
    fold_samples,
    image_size,
    unfold_samples,
    unpad,
    with_labels,
)


class PHiSegConfig(LatentConfig):
    """Settings of PHiSeg; the defaults are the network of the reference code."""

    name: Literal["phiseg"] = "phiseg"
    num_levels: int = Field(default=5, ge=1)
    """Number of latent levels L, at most the number of resolution levels. L = 1 is the ablation of the paper."""
    latent_channels: int = Field(default=2, ge=1)
    """Channels Z of each latent variable."""
    embedding_channels: int | None = Field(default=None, ge=1)
    """Width of the embedding of the next coarser latent in the prior and posterior. Default: 32 per latent channel,
    as in the authors' code; in narrow networks, this is most of the computation."""
    latents_at: Literal["coarsest", "finest"] = "coarsest"
    """Resolution levels of the latents: the L coarsest (the authors' code) or the L finest (the text of the paper,
    with z_1 at full resolution)."""
    kl_weights: KLWeights = "reference"
    """alpha of eq. 2: `paper` 2^(l-1), `reference` 4^i (the authors' code), `unit`, or one number per level."""
    free_nats: float = Field(default=0.0, ge=0)
    """KL of a level, averaged over the batch, that is not penalised."""
    presence: bool = False
    """Use a classifier to decide whether a sample is empty, so that the latents only describe the others. It learns
    best from all annotators of an image at once: set `train.annotations_per_image` to their number."""
    shared_encoder: bool = False
    """Reuse the image features of the prior in the posterior and add label features from a small encoder with one
    block per level. By default, the posterior has a full encoder for image and labels, as in the paper."""
    residual: bool = False
    """Add the input of each block to its output if both have the same number of channels."""
    upsampling: Upsampling = "nearest"
    """Upsampling of the logits of coarse levels: `nearest` (the authors' code) or `bilinear` (in volumes, along all
    three axes)."""

    @property
    def takes_sets(self) -> bool:
        """Whether the loss uses several annotations of an image: only the classifier for presence does."""
        return self.presence

    @property
    def sampling_statistics_problem(self) -> str | None:
        """Batches contain empty annotations in training, but not in sampling."""
        if not self.presence:
            return super().sampling_statistics_problem
        return "it makes samples too large with model.presence, because training batches contain empty annotations"

    @model_validator(mode="after")
    def _check_levels(self) -> Self:
        if self.num_levels > len(self.channels):
            raise ValueError(
                f"num_levels = {self.num_levels} needs that many resolution levels, but channels has "
                f"{len(self.channels)}"
            )
        if isinstance(self.kl_weights, tuple) and len(self.kl_weights) != self.num_levels:
            raise ValueError(f"kl_weights has {len(self.kl_weights)} numbers for {self.num_levels} levels")
        return self


class PHiSeg(Segmenter):
    """Prior, posterior and likelihood networks of the paper, and its objective.

    Training draws latents from the posterior, passes them to the prior, and compares both distributions at each
    level. Sampling draws from the prior. `encode`, `sample_latents` and `decode` give access to the single steps.
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
            pyramid=config.pyramid,
            num_levels=config.num_levels,
            offset=self.offset,
            latent_channels=config.latent_channels,
            num_classes=config.num_classes,
            norm=config.norm,
            residual=config.residual,
            upsampling=config.upsampling,
        )
        self.presence = (
            PresenceNetwork(config.input_channels, config.channels, pyramid=config.pyramid, norm=config.norm)
            if config.presence
            else None
        )
        self.kl_weights = kl_weights(config.kl_weights, config.num_levels)

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return the negative of eq. 2 with deep supervision; see `Segmenter.forward`.

        With `presence`, log p(s|x) is log p(v|x) for an empty annotation and log p(v|x) + log p(s|v,x) for any
        other. Eq. 2 then bounds the second term. For a set of annotations, the result is the mean over the set,
        where eq. 2 is estimated by the first annotation that is not empty.
        """
        self.check_image(image)
        present = None
        if self.presence is not None:
            labels, present = choose_present(labels if labels.ndim == image.ndim else labels[:, None])
        size = image_size(image)
        noise = [fold_samples(level) for level in draw_noise(self._latent_shapes(size), len(image), 1, generator)]
        x = self.pad(with_labels(image, labels, self.config.num_classes))
        padded_image = x[:, : self.config.input_channels]
        image_features = self.prior.encode(padded_image)
        posteriors, latents = self.posterior.draw(self._encode_labels(x, image_features), noise)
        priors, _ = self.prior.draw(image_features, None, given=dict(enumerate(latents)))
        loss = negative_elbo(
            self.likelihood(latents),
            labels,
            posteriors,
            priors,
            self.kl_weights,
            free_nats=self.config.free_nats,
            item_weights=present,
        )
        if self.presence is None or present is None:
            return loss
        classified = presence_loss(self.presence(padded_image), present)
        terms = {**loss.terms, "presence": classified.detach(), "elbo": loss.terms["elbo"] - classified.detach()}
        return Loss(loss.total + classified, terms)

    def _encode_labels(self, x: Tensor, image_features: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the posterior features of image and labels x (B, C + K, H, W), fine to coarse."""
        if not self.config.shared_encoder:
            return self.posterior.encode(x)
        label_features = self.posterior.encode(x[:, self.config.input_channels :])
        return [a + b for a, b in zip(label_features, image_features, strict=True)]

    def encode(self, image: Tensor) -> Encoding:
        """Run the encoder of the prior: features (B, C_l, h_l, w_l) of each latent level, fine to coarse.

        With `presence`, the logits (B,) of p(v = 1 | x) follow.
        """
        self.check_image(image)
        padded = self.pad(image)
        features = self.prior.encode(padded)
        if self.presence is not None:
            features = (*features, self.presence(padded))
        return Encoding(features, image_size(image))

    @property
    def num_levels(self) -> int:
        """The number L of latent levels."""
        return self.config.num_levels

    def noise_shapes(self, size: PerAxis) -> list[tuple[int, ...]]:
        """Return (Z, h_l, w_l) of each level, fine to coarse; with `presence`, () follows: one number."""
        return self._latent_shapes(size) + ([()] if self.config.presence else [])

    @property
    def noise_names(self) -> tuple[str, ...]:
        """What each part of the noise controls: the latent levels, and whether anything is present."""
        levels = tuple(f"level {number}" for number in range(1, self.config.num_levels + 1))
        return (*levels, "presence") if self.config.presence else levels

    def _latent_shapes(self, size: PerAxis) -> list[tuple[int, ...]]:
        resolutions = range(self.offset, self.offset + self.config.num_levels)
        return [(self.config.latent_channels, *self.level_size(size, level)) for level in resolutions]

    def sample_latents(
        self,
        encoding: Encoding,
        noise: Sequence[Tensor],
        *,
        given: Mapping[int, Tensor] | None = None,
        temperatures: Sequence[float] | None = None,
    ) -> list[Tensor]:
        """Draw latents from the prior, p(z_L | x) ... p(z_1 | z_2, x) of eq. 1.

        Args:
            encoding: encoding of B images.
            noise: standard normal (B, S, Z, h_l, w_l) for each level, fine to coarse.
            given: by level (0 is the finest), latents (B, S, Z, h_l, w_l) to use instead of drawing.
            temperatures: factor on the standard deviation of the prior for each level; default 1.

        Returns:
            Latents (B, S, Z, h_l, w_l), fine to coarse.

        Raises:
            ModelError: unknown levels, or noise or temperatures for the wrong number of levels.
        """
        num_levels = self.config.num_levels
        unknown = set(given or {}) - set(range(num_levels))
        if unknown or len(noise) != num_levels or (temperatures is not None and len(temperatures) != num_levels):
            raise ModelError(
                f"the model has {num_levels} levels, 0 to {num_levels - 1}, but there is noise for {len(noise)} "
                f"levels and latents for levels {sorted(given or {})}; pass noise and temperatures for each level, "
                "and latents for these levels only"
            )
        fixed = {level: fold_samples(latent) for level, latent in (given or {}).items()}
        folded = [fold_samples(level) for level in noise]
        features = encoding.features[:num_levels]
        _, latents = self.prior.draw(features, folded, given=fixed, temperatures=temperatures)
        return [unfold_samples(latent, noise[0].shape[1]) for latent in latents]

    def decode(self, latents: Sequence[Tensor], size: PerAxis, *, num_levels: int | None = None) -> list[Tensor]:
        """Run the likelihood network.

        Args:
            latents: (B, S, Z, h_l, w_l) of each level, fine to coarse.
            size: (H, W) of the image.
            num_levels: number of levels to return, finest first; default: all.

        Returns:
            Accumulated logits (B, S, K, H, W) of each level, fine to coarse; the softmax of the first is p(s|z).
        """
        accumulated = self.likelihood([fold_samples(latent) for latent in latents])[:num_levels]
        full = (self.likelihood.upsampled(logits, image_size(accumulated[0])) for logits in accumulated)
        return [unfold_samples(unpad(logits, size), latents[0].shape[1]) for logits in full]

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:
        """Decode noise (B, S, Z, h_l, w_l) to logits (B, S, K, H, W)."""
        return self._sample_levels(encoding, noise, num_samples, returned=1)[0]

    def sample_levels(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> list[Tensor]:
        """Decode noise to the accumulated logits (B, S, K, H, W) of each level, fine to coarse."""
        return self._sample_levels(encoding, noise, num_samples, returned=self.config.num_levels)

    def _sample_levels(
        self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int, *, returned: int
    ) -> list[Tensor]:
        assert all(level.shape[1] == num_samples for level in noise)
        num_levels = self.config.num_levels
        if self.presence is None:
            return self.decode(self.sample_latents(encoding, noise), encoding.size, num_levels=returned)
        logits = encoding.features[num_levels]
        *noise, choice = (level.to(logits.device) for level in noise)
        present = draw_present(logits, choice)
        if self.training or torch.compiler.is_exporting():
            # Batch-norm statistics need all samples and exported graphs fixed shapes.
            levels = self.decode(self.sample_latents(encoding, noise), encoding.size, num_levels=returned)
            return [erase_absent(samples, present) for samples in levels]
        image_of, _ = present.nonzero(as_tuple=True)  # only these samples are decoded
        own = [level[present] for level in noise]
        _, latents = self.prior.draw(encoding.features[:num_levels], own, image_of=image_of)
        levels = self.decode([latent[:, None] for latent in latents], encoding.size, num_levels=returned)
        return [add_absent(samples[:, 0], present) for samples in levels]
