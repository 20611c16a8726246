"""Uniform mixtures of M segmentations: p(s|x) = 1/M sum_m p_m(s|x).

Shapes: B batch, S samples, M components, K classes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from phiseg.models.pyramid import PerAxis
from phiseg.models.segmenter import Encoding, Segmenter


class Mixture(Segmenter):
    """Model that computes the logits of all M components once; a sample is one of them, selected by the noise.

    Subclasses implement `forward`, and `encode` with the logits (B, M, K, H, W) as the only feature.
    """

    def noise_shapes(self, size: PerAxis) -> list[tuple[int, ...]]:  # noqa: ARG002
        """Return [()]: one number per sample."""
        return [()]

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:  # noqa: ARG002
        """Select logits (B, S, K, H, W) by noise (B, S)."""
        (logits,) = encoding.features
        picked = pick(noise[0].to(logits.device), logits.shape[1])  # (B, S)
        return logits[torch.arange(logits.shape[0], device=logits.device)[:, None], picked]


def pick(noise: Tensor, number: int) -> Tensor:
    """Convert standard normal noise to uniformly distributed indices 0 .. number - 1.

    >>> pick(torch.tensor([-9.0, -0.7, -0.6, 0.1, 0.7, 9.0]), 4)
    tensor([0, 0, 1, 2, 3, 3])
    """
    uniform: Tensor = torch.special.ndtr(noise)
    return (uniform * number).long().clamp(max=number - 1)  # ndtr of large noise rounds to 1 in float32
