"""Training objective: the negative of eq. 2, with the weights of the paper and deep supervision.

The cross-entropy is summed over pixels and the KL over latent elements; both are averaged over the batch.
"""

from collections.abc import Sequence
from math import prod
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from phiseg.models.gaussian import Gaussian, kl_divergence
from phiseg.models.layers import average_pool

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


def cell_cross_entropies(level_logits: Sequence[Tensor], labels: Tensor) -> list[Tensor]:
    """Return -log p(labels) of each item for each level in float32, summed over pixels: (B,).

    A cell of coarse logits stands for all its pixels, so the sum over pixels is a sum over cells, with the number
    n_k of their pixels of each class: -sum_cells sum_k n_k log p_k.

    Args:
        level_logits: (B, K, h_l, w_l) of each level, finest first. The finest has one value per pixel; the cells of
            each other level consist of cells of the previous one. Cells outside (H, W) have no pixels.
        labels: (B, H, W) class indices.
    """
    finest = level_logits[0]
    missing = [new - old for new, old in zip(finest.shape[2:], labels.shape[1:], strict=True)]
    counts = F.one_hot(labels, finest.shape[1]).movedim(-1, 1).float()  # (B, K, H, W)
    counts = F.pad(counts, [side for number in reversed(missing) for side in (0, number)])
    entropies: list[Tensor] = []
    for logits in level_logits:
        cell = tuple(old // new for old, new in zip(counts.shape[2:], logits.shape[2:], strict=True))
        if max(cell) > 1:
            counts = average_pool(counts, cell) * prod(cell)
        entropies.append(-(counts * F.log_softmax(logits.float(), dim=1)).flatten(1).sum(1))
    return entropies


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
        level_logits: accumulated logits of each level, see `cell_cross_entropies`.
        labels: (B, H, W) class indices.
        posteriors: q of each level, finest first.
        priors: p of each level, given the posterior sample of the next coarser level.
        weights: alpha of each level.
        free_nats: KL of a level, averaged over the batch, that is not penalised (Kingma et al., 2016).
        item_weights: factor (B,) on the terms of each item; 1 if not given.
    """

    def mean(values: Tensor) -> Tensor:
        return (values if item_weights is None else item_weights * values).mean()

    reconstructions = [mean(entropies) for entropies in cell_cross_entropies(level_logits, labels)]
    divergences = [mean(kl_divergence(q, p)) for q, p in zip(posteriors, priors, strict=True)]
    total = torch.stack(reconstructions).sum()
    for weight, divergence in zip(weights, divergences, strict=True):
        total = total + weight * divergence.clamp(min=free_nats)
    terms = {f"cross_entropy/{level}": value.detach() for level, value in enumerate(reconstructions)}
    terms |= {f"kl/{level}": value.detach() for level, value in enumerate(divergences)}
    terms["elbo"] = -(reconstructions[0] + sum(divergences)).detach()
    return Loss(total, terms)
