"""Training objective: the negative of eq. 2, with the weights of the paper and deep supervision.

The cross-entropy is summed over pixels and the KL over latent elements; both are averaged over the batch.
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
    """Training loss of a model.

    Attributes:
        total: scalar to minimise.
        terms: unweighted terms by name, scalars without gradient: `cross_entropy/l` and `kl/l` of each level (0 is
            the finest), and `elbo`, the evidence lower bound on log p(s|x) without weights and deep supervision.
    """

    total: Tensor
    terms: dict[str, Tensor]


def kl_weights(setting: KLWeights, num_levels: int) -> tuple[float, ...]:
    """Return alpha for each level, finest first.

    `paper`: 2^(l-1) for l = 1..L. `reference`: 4^i for i = 0..L-1 as in the authors' code, which compensates for
    the smaller number of latent elements at coarse levels. `unit`: the true bound.

    >>> kl_weights("paper", 3), kl_weights("reference", 3), kl_weights((1.0, 5.0), 2)
    ((1.0, 2.0, 4.0), (1.0, 4.0, 16.0), (1.0, 5.0))
    """
    if isinstance(setting, tuple):
        assert len(setting) == num_levels
        return setting
    base = {"paper": 2.0, "reference": 4.0, "unit": 1.0}[setting]
    return tuple(base**level for level in range(num_levels))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return -log p(labels) in float32, summed over pixels and averaged over the batch.

    Args:
        logits: (B, K, H, W).
        labels: (B, H, W) class indices.
    """
    return item_cross_entropy(logits, labels).mean()


def item_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return -log p(labels) of each item in float32, summed over pixels: (B,)."""
    return pixel_cross_entropy(logits, labels).flatten(1).sum(1)


def pixel_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return -log p(labels) of each pixel in float32: (B, H, W)."""
    log_probs = F.log_softmax(logits.float(), dim=1)
    return -log_probs.gather(1, labels[:, None])[:, 0]  # deterministic on GPUs, unlike F.cross_entropy


def negative_elbo(
    level_logits: Sequence[Tensor],
    labels: Tensor,
    posteriors: Sequence[Gaussian],
    priors: Sequence[Gaussian],
    weights: Sequence[float],
    *,
    free_nats: float = 0.0,
    item_weights: Tensor | None = None,
) -> Loss:
    """Return the loss of eq. 2 with deep supervision.

    sum_l CE(s-hat_l, s) + sum_l alpha_l KL[q_l || p_l], with expectations estimated by a single sample.

    Args:
        level_logits: accumulated logits (B, K, H, W) of each level at full resolution, finest first.
        labels: (B, H, W) class indices.
        posteriors: q of each level, finest first.
        priors: p of each level, given the posterior sample of the next coarser level.
        weights: alpha of each level.
        free_nats: KL of a level, averaged over the batch, that is not penalised (Kingma et al., 2016).
        item_weights: factor (B,) on the terms of each item; 1 if not given.
    """

    def mean(values: Tensor) -> Tensor:
        return (values if item_weights is None else item_weights * values).mean()

    reconstructions = [mean(item_cross_entropy(logits, labels)) for logits in level_logits]
    divergences = [mean(kl_divergence(q, p)) for q, p in zip(posteriors, priors, strict=True)]
    total = torch.stack(reconstructions).sum()
    for weight, divergence in zip(weights, divergences, strict=True):
        total = total + weight * divergence.clamp(min=free_nats)
    terms = {f"cross_entropy/{level}": value.detach() for level, value in enumerate(reconstructions)}
    terms |= {f"kl/{level}": value.detach() for level, value in enumerate(divergences)}
    terms["elbo"] = -(reconstructions[0] + sum(divergences)).detach()
    return Loss(total, terms)
