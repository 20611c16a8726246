"""Categorical diffusion (CCDM; Zbinden, Doorenbos et al., ICCV 2023): discrete diffusion over labels.

Noise replaces the label of a pixel by a uniformly drawn class, more often the later the step:

    q(s_t | s_0) = Cat(a_t s_0 + (1 - a_t) / K),     a_0 = 1 > a_1 > ... >= a_T ~ 0  (cosine schedule)

A U-Net sees the image, the noisy labels and the step, and predicts p(s_0 | s_t, x). The posterior of an earlier
step u < t is known for every s_0, so that

    p(s_u | s_t, x) = sum over s_0 of q(s_u | s_t, s_0) p(s_0 | s_t, x)

Training minimises T KL[q(s_u | s_t, s_0) || p(s_u | s_t, x)] with u = t - 1 for a random t, an unbiased estimate of
the negative ELBO. At t = 1, the KL is the cross-entropy. Sampling uses `num_steps` of the T steps.

Differences from the authors' code: the blocks of this package; the cosine has no offset; the posterior covers the
steps that sampling skips, theirs is always that of one step; the logits of a sample are those of p(s_0 | s_t, x) in
the last step, so that samples have probabilities; the recipe does not average the weights.

Shapes: B batch, S samples, K classes, H W pixels.
"""

import itertools
from collections.abc import Sequence
from math import cos, pi
from typing import Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from phiseg.models.blocks import Blocks, UNetBody
from phiseg.models.layers import output_layer
from phiseg.models.noise import Generators, draw_noise
from phiseg.models.objective import Loss
from phiseg.models.pyramid import PerAxis
from phiseg.models.segmenter import (
    Encoding,
    Segmenter,
    SegmenterConfig,
    fold_samples,
    image_size,
    repeat_samples,
    unfold_samples,
    unpad,
)
from phiseg.models.time_channels import SAME_TIME, TIME_CHANNELS, per_item, time_channels

_LAST_KEPT = 1e-3
"""Share of pixels whose label is still that of s_0 after the last step."""


class CCDMConfig(SegmenterConfig):
    """Settings of the categorical diffusion model."""

    name: Literal["ccdm"] = "ccdm"
    diffusion_steps: int = Field(default=250, ge=2)
    """Number T of diffusion steps."""
    num_steps: int = Field(default=10, ge=1)
    """Steps of a sample: passes through the network. The authors use all T; few are faster and less accurate."""

    @property
    def sampling_statistics_problem(self) -> str | None:
        """In sampling, all items of a batch have the same time."""
        return SAME_TIME

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        if self.num_steps > self.diffusion_steps:
            raise ValueError(f"num_steps = {self.num_steps} is more than diffusion_steps = {self.diffusion_steps}")
        return self


class CCDM(Segmenter):
    """U-Net that denoises labels, conditioned on the image."""

    Config = CCDMConfig
    config: CCDMConfig
    kept: Tensor
    """a_0 .. a_T."""

    def __init__(self, config: CCDMConfig):
        super().__init__(config)
        width = config.channels[0]
        self.body = UNetBody(
            config.input_channels + config.num_classes + TIME_CHANNELS,
            config.channels,
            pyramid=config.pyramid,
            num_blocks=config.blocks_per_level,
            norm=config.norm,
        )
        self.combine = Blocks(3, width, width, norm=config.norm, kernel=config.pyramid.point)
        self.output = output_layer(width, config.num_classes, config.pyramid.point)
        self.register_buffer("kept", kept_shares(config.diffusion_steps), persistent=False)

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return T times the KL of one random step per image; see `Segmenter.forward`."""
        (padded,), size = self.encode(image)
        total, classes = self.config.diffusion_steps, self.config.num_classes
        moment, pixels = draw_noise([(), size], len(image), 1, generator)
        later = (uniform(moment[:, 0]) * total).long().clamp(max=total - 1).to(image.device) + 1  # t = 1 .. T
        clean = F.one_hot(labels, classes).movedim(-1, 1).float()
        noisy = draw_classes(self.noisy_probs(clean, later), uniform(pixels[:, 0]).to(image.device))
        logits = self._predict(padded, noisy, later, size)
        true = self.posterior(noisy, clean, later, later - 1)
        model = self.posterior(noisy, logits.float().softmax(1), later, later - 1)
        divergence = torch.xlogy(true, true) - true * model.clamp_min(1e-12).log()
        loss = total * divergence.flatten(1).sum(1).mean()
        return Loss(loss, {"cross_entropy/0": loss.detach(), "elbo": -loss.detach()})

    def encode(self, image: Tensor) -> Encoding:
        """Return the padded image: every pass through the network depends on the sample."""
        self.check_image(image)
        return Encoding((self.pad(image),), image_size(image))

    def noise_shapes(self, size: PerAxis) -> list[tuple[int, ...]]:
        """Return [(num_steps, H, W)]: one number per pixel for s_T and for every step but the last."""
        return [(self.config.num_steps, *size)]

    @property
    def noise_names(self) -> tuple[str, ...]:
        """What the noise controls."""
        return ("labels",)

    @property
    def takes_temperature(self) -> tuple[bool, ...]:
        """The noise selects classes and cannot be scaled."""
        return (False,)

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:
        """Denoise labels drawn by noise (B, S, num_steps, H, W): logits (B, S, K, H, W)."""
        (padded,), size = encoding
        image = repeat_samples(padded, num_samples)
        numbers = uniform(fold_samples(noise[0])).to(image.device)  # (N, num_steps, H, W)
        classes = self.config.num_classes
        even = image.new_full((image.shape[0], classes, *size), 1 / classes)
        labels = draw_classes(even, numbers[:, 0])
        times = sampled_steps(self.config.diffusion_steps, self.config.num_steps)
        for number, (later, earlier) in enumerate(itertools.pairwise(times), start=1):
            t, u = (torch.full((image.shape[0],), time, device=image.device) for time in (later, earlier))
            probs = self._predict(image, labels, t, size).float().softmax(1)
            labels = draw_classes(self.posterior(labels, probs, t, u), numbers[:, number])
        last = torch.full((image.shape[0],), times[-1], device=image.device)
        return unfold_samples(self._predict(image, labels, last, size), num_samples)

    def noisy_probs(self, clean: Tensor, t: Tensor) -> Tensor:
        """Return q(s_t | s_0) (B, K, H, W) for one-hot labels or probabilities of s_0 and steps t (B,)."""
        kept = per_item(self.kept[t], clean.ndim - 1)
        return kept * clean + (1 - kept) / self.config.num_classes

    def posterior(self, noisy: Tensor, clean: Tensor, t: Tensor, u: Tensor) -> Tensor:
        """Return the sum over s_0 of q(s_u | s_t, s_0) `clean`(s_0), (B, K, H, W), for steps u < t (B,).

        q(s_u | s_t, s_0) is proportional to q(s_t | s_u) q(s_u | s_0). Its normaliser is q(s_t | s_0), which
        depends on s_0, so that the sum has one term per class.

        Args:
            noisy: one-hot s_t (B, K, H, W).
            clean: one-hot s_0, or its probabilities.
            t: later step of each image.
            u: earlier step of each image.
        """
        classes = self.config.num_classes
        dims = noisy.ndim - 1
        step = per_item(self.kept[t] / self.kept[u], dims)  # share kept between u and t
        forward = step * noisy + (1 - step) / classes  # q(s_t | s_u), by s_u
        early, late = (per_item(self.kept[time], dims) for time in (u, t))
        evidence = late * noisy + (1 - late) / classes  # q(s_t | s_0), by s_0
        weights = clean / evidence
        # sum over s_0 of weights(s_0) (early [s_u = s_0] + (1 - early) / K)
        return forward * (early * weights + (1 - early) / classes * weights.sum(1, keepdim=True))

    def _predict(self, padded: Tensor, labels: Tensor, t: Tensor, size: PerAxis) -> Tensor:
        """Return the logits (N, K, H, W) of p(s_0 | s_t, x) for one-hot labels (N, K, H, W)."""
        time = time_channels(t / self.config.diffusion_steps, image_size(padded))
        x = torch.cat([padded, self.pad(labels.to(padded.dtype) - 0.5), time.to(padded.dtype)], dim=1)
        logits: Tensor = self.output(self.combine(self.body(x)))
        return unpad(logits, size)


def kept_shares(steps: int) -> Tensor:
    """Return a_0 .. a_T, from 1 to `_LAST_KEPT`, along a cosine."""
    shares = [cos(pi / 2 * number / steps) ** 2 for number in range(steps + 1)]
    return torch.tensor(shares).clamp(min=_LAST_KEPT)


def sampled_steps(steps: int, number: int) -> list[int]:
    """Return `number` steps from T down to 1 or more, evenly spaced.

    >>> sampled_steps(250, 5), sampled_steps(4, 4)
    ([250, 200, 150, 100, 50], [4, 3, 2, 1])
    """
    return [round(steps * (number - place) / number) for place in range(number)]


def uniform(noise: Tensor) -> Tensor:
    """Convert standard normal noise to uniform numbers from 0 to 1."""
    numbers: Tensor = torch.special.ndtr(noise)
    return numbers


def draw_classes(probs: Tensor, numbers: Tensor) -> Tensor:
    """Draw classes by inversion: one-hot (B, K, H, W), given probabilities and uniform numbers (B, H, W)."""
    below = (probs.cumsum(1) <= numbers[:, None] * probs.sum(1, keepdim=True)).sum(1)
    drawn = below.clamp(max=probs.shape[1] - 1)
    return F.one_hot(drawn, probs.shape[1]).movedim(-1, 1).to(probs.dtype)
