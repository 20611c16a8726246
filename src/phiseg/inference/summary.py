"""What is kept of many samples: their labels, and two means from which every map follows.

Shapes: B images, S samples, K classes, H W pixels.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from phiseg.metrics import EPSILON, expected_cross_entropy


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
        """The gamma map (H, W): where the samples disagree."""
        return expected_cross_entropy(self.mean_probs, self.mean_log_probs)


def most_probable(probs: Tensor, dim: int) -> Tensor:
    """Return `probs.argmax(dim)` as uint8, the first of equals: class by class, which is faster for a few."""
    first, *others = probs.unbind(dim)
    best, labels = first, torch.zeros_like(first, dtype=torch.uint8)
    for number, candidate in enumerate(others, start=1):
        labels.masked_fill_(candidate > best, number)
        best = torch.maximum(best, candidate)
    return labels


def summarise_samples(chunks: Iterable[Tensor]) -> list[SampleSummary]:
    """Reduce logits (B, s, K, H, W), chunk by chunk, to one summary per image.

    The sums run sample by sample, so that the result does not depend on the chunks.
    """
    labels: list[Tensor] = []
    sum_probs = torch.zeros(())
    sum_log_probs = torch.zeros(())
    for logits in chunks:
        probs = logits.float().softmax(2)
        labels.append(most_probable(probs, dim=2))
        for sample in probs.unbind(1):  # (B, K, H, W)
            sum_probs = sum_probs.to(sample) + sample
            sum_log_probs = sum_log_probs.to(sample) + (sample + EPSILON).log()
    all_labels = torch.cat(labels, dim=1)  # (B, S, H, W)
    num_samples = all_labels.shape[1]
    return [
        SampleSummary(*summary)
        for summary in zip(all_labels, sum_probs / num_samples, sum_log_probs / num_samples, strict=True)
    ]
