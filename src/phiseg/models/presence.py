"""Whether there is anything to segment at all: p(v | x), with v = 0 for an empty segmentation.

v is a function of the segmentation s, so p(s | x) = p(v | x) p(s | v, x) holds exactly. A classifier for p(v | x)
leaves p(s | v = 1, x) to the latent variables, whose Gaussians describe outlines well but decisions badly.

Shapes: B batch, S samples, K classes, C input channels, H W pixels.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phiseg.models.blocks import Encoder, Norm
from phiseg.models.layers import append_axes, output_layer, pixel_axes
from phiseg.models.pyramid import Pyramid

ABSENT_LOGIT = 9.0
"""Logit of the background in an empty sample; every other class has its negative. An empty sample is as certain as
the background of other samples: in lung nodules, their logits differ by 18 (median)."""


class PresenceNetwork(nn.Module):
    """A small classifier for p(v = 1 | x): one block per resolution, the mean over pixels, and a linear layer."""

    def __init__(self, in_channels: int, channels: Sequence[int], *, pyramid: Pyramid, norm: Norm):
        super().__init__()
        self.encoder = Encoder(in_channels, channels, pyramid=pyramid, num_blocks=1, norm=norm)
        self.output = output_layer(channels[-1], 1, pyramid.point)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits (B,) of p(v = 1 | x) for images (B, C, H, W)."""
        *_, coarsest = self.encoder(image)
        logits: Tensor = self.output(coarsest.mean(pixel_axes(coarsest), keepdim=True)).float()
        return logits.flatten()


def choose_present(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first annotation (B, H, W) of each set (B, A, H, W) that is not empty, and their share (B,).

    An empty annotation is returned only if all are empty. In a set in random order, also with repetitions,
    share * f(annotation) has the mean of v f(s) over the annotators as its expectation: which of the annotators
    that are not empty comes first does not depend on the share.
    """
    present = (labels > 0).flatten(2).any(2).float()  # (B, A)
    return labels[torch.arange(len(labels), device=labels.device), present.argmax(1)], present.mean(1)


def presence_loss(logits: Tensor, present: Tensor) -> Tensor:
    """Return -log p(v | x), averaged over the batch, for logits (B,) and v (B,), or the mean of v in each set."""
    return F.binary_cross_entropy_with_logits(logits, present)


def draw_present(logits: Tensor, noise: Tensor) -> Tensor:
    """Return in which samples (B, S) anything is present.

    Sample s of image b is present if Phi(noise[b, s]) is below p(v = 1 | x_b), so the same noise in neighbouring
    slices gives one annotator's threshold.

    Args:
        logits: (B,) of p(v = 1 | x).
        noise: (B, S) standard normal.
    """
    present: Tensor = torch.special.ndtr(noise) < logits.sigmoid()[:, None]
    return present


def erase_absent(samples: Tensor, present: Tensor) -> Tensor:
    """Replace the samples (B, S, K, H, W) that are not `present` (B, S) by empty ones."""
    return torch.where(append_axes(present, samples.ndim), samples, _empty_sample(samples, samples.shape[2:]))


def add_absent(samples: Tensor, present: Tensor) -> Tensor:
    """Add empty samples: (N, K, H, W), those that are `present` (B, S) in order -> (B, S, K, H, W)."""
    empty = _empty_sample(samples, samples.shape[1:])
    every = empty.repeat(*present.shape, *[1] * empty.ndim)
    every[present] = samples
    return every


def _empty_sample(like: Tensor, shape: torch.Size) -> Tensor:
    """Return the logits (K, H, W) of an empty sample."""
    empty = like.new_full(shape, -ABSENT_LOGIT)
    empty[0] = ABSENT_LOGIT
    return empty
