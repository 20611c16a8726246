"""The training objective: the negative of eq. 2, with the paper's weights and deep supervision.

Cross entropy is summed over pixels and KL over latent elements; both are averaged over the batch.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from phiseg.models.gaussian import Gaussian, kl_divergence

KLWeights = Literal["paper", "reference", "unit"] | tuple[NonNegativeFloat, ...]


class Loss(NamedTuple):
    """What a model returns in training.

    Attributes:
        total: what is minimised, a scalar.
        terms: its parts by name, unweighted scalars without gradient: `cross_entropy/l` and `kl/l` of each
            level (0 is the finest), and `elbo`, the evidence lower bound on log p(s|x): no weights, no deep
            supervision.
    """

    total: Tensor
    terms: dict[str, Tensor]


def kl_weights(setting: KLWeights, num_levels: int) -> tuple[float, ...]:
    """Return alpha for each level, finest first.

    `paper`: 2^(l-1) for l = 1..L. `reference`: 4^i for i = 0..L-1, as the authors' code has it, which gives
    every level the weight of the finest one's number of latent elements. `unit`: the true bound.

    >>> kl_weights("paper", 3), kl_weights("reference", 3), kl_weights((1.0, 5.0), 2)
    ((1.0, 2.0, 4.0), (1.0, 4.0, 16.0), (1.0, 5.0))
    """
    if isinstance(setting, tuple):
        assert len(setting) == num_levels
        return setting
    base = {"paper": 2.0, "reference": 4.0, "unit": 1.0}[setting]
    return tuple(base**level for level in range(num_levels))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return -log p(labels), summed over pixels, averaged over the batch, in float32.

    Args:
        logits: (B, K, H, W).
        labels: (B, H, W) class indices.
    """
    return item_cross_entropy(logits, labels).mean()


def item_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return -log p(labels) of each item, summed over pixels, in float32: (B,)."""
    return pixel_cross_entropy(logits, labels).sum((1, 2))


def pixel_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return -log p(labels) of each pixel, in float32: (B, H, W)."""
    log_probs = F.log_softmax(logits.float(), dim=1)
    return -log_probs.gather(1, labels[:, None])[:, 0]  # unlike torch's own, deterministic on a GPU


def negative_elbo(
    level_logits: Sequence[Tensor],
    labels: Tensor,
    posteriors: Sequence[Gaussian],
    priors: Sequence[Gaussian],
    weights: Sequence[float],
    *,
    free_nats: float = 0.0,
) -> Loss:
    """Return the loss of eq. 2 with deep supervision.

    sum_l CE(s-hat_l, s) + sum_l alpha_l KL[q_l || p_l], the expectations by a single sample.

    Args:
        level_logits: accumulated logits (B, K, H, W) of every level at full size, finest first.
        labels: (B, H, W) class indices.
        posteriors: q of every level, finest first.
        priors: p of every level, given the posterior's sample of the level below it.
        weights: alpha of every level.
        free_nats: what the KL of a level, averaged over the batch, may cost nothing (Kingma et al., 2016).
    """
    reconstructions = [cross_entropy(logits, labels) for logits in level_logits]
    divergences = [kl_divergence(q, p).mean() for q, p in zip(posteriors, priors, strict=True)]
    total = torch.stack(reconstructions).sum()
    for weight, divergence in zip(weights, divergences, strict=True):
        total = total + weight * divergence.clamp(min=free_nats)
    terms = {f"cross_entropy/{level}": value.detach() for level, value in enumerate(reconstructions)}
    terms |= {f"kl/{level}": value.detach() for level, value in enumerate(divergences)}
    terms["elbo"] = -(reconstructions[0] + sum(divergences)).detach()
    return Loss(total, terms)


def energy_score(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the energy score of samples against one annotation, averaged over the batch, in float32.

    E d(s, y) - 1/2 E d(s, s'), an unbiased estimate from S >= 2 samples. Its expectation over annotations y is
    smallest when samples and annotations have the same distribution, and half of the squared GED above that
    minimum otherwise. d is one minus the weighted Jaccard index of the probabilities, averaged over the foreground
    classes: for hard labels, the distance of the GED.

    Args:
        logits: (B, S, K, H, W).
        labels: (B, H, W) class indices.
    """
    num_samples, num_classes = logits.shape[1], logits.shape[2]
    probs = logits.float().softmax(2)[:, :, 1:].flatten(3)  # (B, S, K - 1, H * W)
    annotation = F.one_hot(labels, num_classes)[..., 1:].movedim(-1, 1).flatten(2)  # (B, K - 1, H * W)
    to_annotation = _jaccard_distance(probs, annotation[:, None].to(probs)).mean(1)  # (B,)
    first, second = torch.triu_indices(num_samples, num_samples, offset=1, device=probs.device)
    between_samples = _jaccard_distance(probs[:, first], probs[:, second]).mean(1)  # (B,)
    return (to_annotation - between_samples / 2).mean()


def _jaccard_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return 1 - sum min(a, b) / sum max(a, b) over pixels, averaged over classes: (..., K, P) -> (...).

    One pixel is added to both sums, so that two nearly empty segmentations are close.
    """
    both = torch.minimum(a, b).sum(-1)
    either = torch.maximum(a, b).sum(-1)
    return 1 - ((both + 1) / (either + 1)).mean(-1)
