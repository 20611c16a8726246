"""What is kept of many samples: their labels, and two means from which every map follows.

Shapes: B images, S samples, K classes, H W pixels.
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
        """The gamma map (H, W): where the samples disagree."""
        return expected_cross_entropy(self.mean_probs, self.mean_log_probs)


def summarise_samples(chunks: Iterable[Tensor]) -> list[SampleSummary]:
    """Reduce logits (B, s, K, H, W), chunk by chunk, to one summary per image; see `summarise_probs`."""
    return summarise_probs(logits.float().softmax(2) for logits in chunks)


def summarise_probs(chunks: Iterable[Tensor]) -> list[SampleSummary]:
    """Reduce softmax samples (B, s, K, H, W) in float32, chunk by chunk, to one summary per image.

    The sums run sample by sample, so that the result does not depend on the chunks.
    """
    labels: list[Tensor] = []
    sum_probs = torch.zeros(())
    sum_log_probs = torch.zeros(())
    for probs in chunks:
        labels.append(most_probable(probs, dim=2))
        sum_probs = _added(sum_probs, probs)
        sum_log_probs = _added(sum_log_probs, (probs + EPSILON).log_())
    all_labels = torch.cat(labels, dim=1)  # (B, S, H, W)
    num_samples = all_labels.shape[1]
    return [
        SampleSummary(*summary)
        for summary in zip(all_labels, sum_probs / num_samples, sum_log_probs / num_samples, strict=True)
    ]


def _added(total: Tensor, samples: Tensor) -> Tensor:
    """Return the sum of `total`, (B, K, H, W) or a first 0, and of samples (B, s, K, H, W), one after the other."""
    first, *others = samples.unbind(1)
    total = total.to(first) + first
    for sample in others:
        total += sample
    return total
