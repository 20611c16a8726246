"""Summary of many samples: their labels, and two means from which all maps are computed.

Shapes: B images or volumes, S samples, K classes, H W pixels. For volumes, read D H W for H W.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from phiseg.metrics import EPSILON, expected_cross_entropy, most_probable


class SampleSummary(NamedTuple):
    """The samples of one image, without their probabilities.

    Attributes:
        labels: (S, H, W) uint8, the most probable class of every sample.
        mean_probs: (K, H, W), s-bar.
        mean_log_probs: (K, H, W), the mean over samples of log(probability + eps).
    """

    labels: Tensor
    mean_probs: Tensor
    mean_log_probs: Tensor

    @property
    def gamma(self) -> Tensor:
        """Gamma map (H, W), which is large where the samples disagree."""
        return expected_cross_entropy(self.mean_probs, self.mean_log_probs)


def summarise_samples(chunks: Iterable[Tensor]) -> list[SampleSummary]:
    """Reduce logits (B, s, K, H, W), chunk by chunk, to one summary per image; see `summarise_probs`."""
    return summarise_probs(logits.float().softmax(2) for logits in chunks)


def summarise_probs(chunks: Iterable[Tensor]) -> list[SampleSummary]:
    """Reduce softmax samples (B, s, K, H, W) in float32, chunk by chunk, to one summary per image.

    Samples are summed one by one, so that the result does not depend on the chunks.
    """
    labels: list[Tensor] = []
    sum_probs, sum_log_probs = torch.zeros(()), _SumOfLogs()
    for probs in chunks:
        labels.append(most_probable(probs, dim=2))
        sum_probs = _added(sum_probs, probs)
        sum_log_probs.add(probs + EPSILON)
    all_labels = torch.cat(labels, dim=1)  # (B, S, H, W)
    num_samples = all_labels.shape[1]
    means = sum_probs / num_samples, sum_log_probs.value() / num_samples
    return [SampleSummary(*summary) for summary in zip(all_labels, *means, strict=True)]


def _added(total: Tensor, samples: Tensor) -> Tensor:
    """Return the sum of `total`, (B, K, H, W) or an initial 0, and samples (B, s, K, H, W), added one by one."""
    first, *others = samples.unbind(1)
    total = total.to(first) + first
    for sample in others:
        total += sample
    return total


class _SumOfLogs:
    """Sum of logarithms of samples, computed from products of four for speed; EPSILON^4 does not underflow."""

    def __init__(self) -> None:
        self._total, self._product, self._num_factors = torch.zeros(()), torch.ones(()), 0

    def add(self, samples: Tensor) -> None:
        """Add samples (B, s, K, H, W), which must be at least EPSILON and are overwritten."""
        for sample in samples.unbind(1):
            self._product = sample.mul_(self._product.to(sample))
            self._num_factors += 1
            if self._num_factors == 4:
                self._total, self._product, self._num_factors = self.value(), torch.ones(()), 0

    def value(self) -> Tensor:
        """Return (B, K, H, W)."""
        return self._total.to(self._product) + self._product.log()
