"""Mixture of stochastic experts, MoSE (Gao et al., ICLR 2023), trained by optimal transport between sets.

An expert m is a Gaussian over a latent vector, z ~ N(mean_m, diag(std_m)^2), the same for all images. A U-Net with
z concatenated to its last features turns it into a segmentation. A gate predicts the weight pi_m(x) of each expert.

Training compares two sets: T samples of every expert, each with the weight pi_m / T, and the A annotations of the
image, each with the weight 1 / A. A plan P moves the annotations to the samples at the lowest cost. The loss is

    sum_ij P_ij c_ij + KL[sum_j P_.j || pi],     P = argmin sum_ij P_ij c_ij,
                                                 sum_i P_ij = 1 / A,     sum_j P_ij <= max_share,

with c = 1 - soft IoU. As in the paper, the weights of the samples do not restrict P, but enter by the KL. P has no
gradient: the samples move to the annotations that they receive, and the gate learns the share of each expert.

Differences from the authors' code: the blocks of this package, with the latent vector concatenated instead of a
scale and a shift; P is exact instead of greedy; `max_share` is constant instead of raised to 1 during training; the
KL compares experts instead of samples, which has the same gradient, and is not divided by the number of samples.

Shapes: B batch, S samples, A annotations, K classes, M experts, T training samples of an expert, N = M * T,
Z latent dimensions.
"""

from collections.abc import Sequence
from math import ceil, log
from typing import Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from phiseg.models.blocks import Blocks, UNetBody
from phiseg.models.layers import output_layer, pixel_axes
from phiseg.models.noise import Generators, draw_noise
from phiseg.models.objective import Loss
from phiseg.models.probunet import join_vector
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

INITIAL_STD = 1 / 8
"""Standard deviation of a new expert; the means are drawn from N(0, 1)."""


class MoSEConfig(SegmenterConfig):
    """Settings of the mixture of stochastic experts; train it with several `train.annotations_per_image`."""

    name: Literal["mose"] = "mose"
    experts: int = Field(default=4, ge=1)
    """Number of experts M."""
    latent_dimensions: int = Field(default=1, ge=1)
    """Length Z of the latent vector."""
    training_samples: int = Field(default=4, ge=1)
    """Samples T of every expert in the training loss."""
    max_share: float = Field(default=0.5, gt=0, le=1)
    """Largest share of the annotations of an image that one training sample receives, rounded up to whole
    annotations. With 1, every annotation goes to the nearest sample, and some experts may learn nothing."""
    kl_weight: float = Field(default=1.0, ge=0)
    """Weight of the KL between the annotations that the experts receive and the gate."""

    @property
    def takes_sets(self) -> bool:
        """True: the loss compares sets of samples and annotations."""
        return True

    @model_validator(mode="after")
    def _check_share(self) -> Self:
        if self.max_share * self.experts * self.training_samples < 1:
            raise ValueError(
                f"{self.experts * self.training_samples} training samples cannot receive all annotations with "
                f"max_share {self.max_share}; use a larger max_share, or more experts or training_samples"
            )
        return self


class MoSE(Segmenter):
    """U-Net with a latent vector, whose distribution is a mixture of experts with weights from the image."""

    Config = MoSEConfig
    config: MoSEConfig

    def __init__(self, config: MoSEConfig):
        super().__init__(config)
        width, deepest = config.channels[0], config.channels[-1]
        self.body = UNetBody(
            config.input_channels,
            config.channels,
            pyramid=config.pyramid,
            num_blocks=config.blocks_per_level,
            norm=config.norm,
        )
        self.gate = nn.Sequential(
            nn.Linear(deepest, deepest), nn.ReLU(inplace=True), nn.Linear(deepest, config.experts)
        )
        self.means = nn.Parameter(torch.randn(config.experts, config.latent_dimensions))
        self.log_stds = nn.Parameter(torch.full_like(self.means, log(INITIAL_STD)))
        self.combine = Blocks(
            3, width + config.latent_dimensions, width, norm=config.norm, kernel=config.pyramid.point
        )
        self.output = output_layer(width, config.num_classes, config.pyramid.point)

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return the transport cost plus the weighted KL of the gate; see `Segmenter.forward`.

        The terms are `transport` and `kl/0`. `elbo` is the negative of their sum, for comparison between steps; it
        is not a bound on log p(s|x).
        """
        annotations = labels if labels.ndim == image.ndim else labels[:, None]  # (B, A, H, W)
        encoding = self.encode(image)
        experts, each = self.config.experts, self.config.training_samples
        shape = (self.config.latent_dimensions,)
        noise = draw_noise([shape], len(image), experts * each, generator)[0].to(image.device)  # (B, N, Z)
        chosen = torch.arange(experts, device=image.device).repeat_interleave(each).expand(len(image), -1)
        cost = iou_cost(self._decode(encoding, chosen, noise), annotations)
        plan = transport_plan(cost, max_share=self.config.max_share)
        transport = (plan * cost).sum((1, 2)).mean()
        received = plan.sum(2).unflatten(1, (experts, each)).sum(2)  # (B, M)
        divergence = (torch.xlogy(received, received) - received * encoding.features[1]).sum(1).mean()
        terms = {"transport": transport, "kl/0": divergence, "elbo": -transport - divergence}
        total = transport + self.config.kl_weight * divergence
        return Loss(total, {name: term.detach() for name, term in terms.items()})

    def encode(self, image: Tensor) -> Encoding:
        """Compute the U-Net features (B, C, H', W') of the padded image, and log pi (B, M) in float32."""
        self.check_image(image)
        *skips, x = self.body.encoder(self.pad(image))
        gate = self.gate(x.mean(pixel_axes(x))).float().log_softmax(1)
        for level in reversed(range(len(skips))):
            x = self.body.ascend(level, x, skips[level])
        return Encoding((x, gate), image_size(image))

    def noise_shapes(self, size: PerAxis) -> list[tuple[int, ...]]:  # noqa: ARG002
        """Return [(Z,), ()]: the latent vector, and one number that selects the expert."""
        return [(self.config.latent_dimensions,), ()]

    @property
    def noise_names(self) -> tuple[str, ...]:
        """What each part of the noise controls."""
        return ("latent", "expert")

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:  # noqa: ARG002
        """Decode noise (B, S, Z) and (B, S) to logits (B, S, K, H, W)."""
        latent, choice = (part.to(encoding.features[0].device) for part in noise)
        return self._decode(encoding, pick_weighted(choice, encoding.features[1].exp()), latent)

    def _decode(self, encoding: Encoding, experts: Tensor, noise: Tensor) -> Tensor:
        """Return logits (B, S, K, H, W), given the experts (B, S) and standard normal noise (B, S, Z)."""
        latent = self.means[experts] + self.log_stds.exp()[experts] * noise
        features = repeat_samples(encoding.features[0], noise.shape[1])
        logits = self.output(self.combine(join_vector(features, fold_samples(latent))))
        return unfold_samples(unpad(logits, encoding.size), noise.shape[1])


def pick_weighted(noise: Tensor, weights: Tensor) -> Tensor:
    """Convert standard normal noise (B, S) to indices 0 .. M - 1 with the probabilities (B, M).

    >>> pick_weighted(torch.tensor([[-9.0, -0.7, -0.6, 9.0]]), torch.tensor([[0.25, 0.0, 0.75]]))
    tensor([[0, 0, 2, 2]])
    """
    uniform = torch.special.ndtr(noise)[..., None]  # (B, S, 1)
    ends = weights.cumsum(1)[:, None, :-1]  # (B, 1, M - 1); the last expert takes the rest
    picked: Tensor = (uniform >= ends).sum(2)
    return picked


def iou_cost(logits: Tensor, annotations: Tensor) -> Tensor:
    """Return 1 - soft IoU of each sample with each annotation in float32, averaged over the foreground classes.

    The soft IoU is (sum p s + 1) / (sum p + sum s - sum p s + 1) over pixels, so an empty class costs little if its
    probabilities are small.

    Args:
        logits: (B, N, K, H, W).
        annotations: (B, A, H, W) class indices.

    Returns:
        (B, N, A).
    """
    probs = logits.float().softmax(2)[:, :, 1:].flatten(3)  # (B, N, K - 1, P)
    masks = F.one_hot(annotations, logits.shape[2])[..., 1:].movedim(-1, 2).flatten(3).to(probs)  # (B, A, K - 1, P)
    with torch.autocast(logits.device.type, enabled=False):
        common = torch.einsum("bnkp,bakp->bnak", probs, masks)
    union = probs.sum(3)[:, :, None] + masks.sum(3)[:, None] - common
    return 1 - ((common + 1) / (union + 1)).mean(3)


def transport_plan(cost: Tensor, *, max_share: float) -> Tensor:
    """Return the cheapest plan that moves all annotations to samples, without gradient: (B, N, A).

    Each annotation has the mass 1 / A, and a sample receives at most `max_share`, rounded up to whole annotations.
    An optimal plan does not divide annotations, so it is an assignment of annotations to copies of the samples.

    >>> cost = torch.tensor([[[0.1, 0.2], [0.5, 0.4]]])
    >>> transport_plan(cost, max_share=1.0)  # both annotations are closer to the first sample
    tensor([[[0.5000, 0.5000],
             [0.0000, 0.0000]]])
    >>> transport_plan(cost, max_share=0.5)
    tensor([[[0.5000, 0.0000],
             [0.0000, 0.5000]]])

    Args:
        cost: (B, N, A) cost of moving an annotation to a sample.
        max_share: largest mass of a sample.
    """
    number = cost.shape[2]
    copies = ceil(max_share * number - 1e-9)
    plan = torch.zeros_like(cost, requires_grad=False)
    for item, matrix in enumerate(cost.detach().double().cpu().numpy()):
        finite = np.nan_to_num(matrix)  # a loss that is not finite is reported by the training step
        samples, annotations = linear_sum_assignment(finite.repeat(copies, axis=0))
        plan[item, samples // copies, annotations] = 1 / number
    return plan
