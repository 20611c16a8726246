"""Flow-SSN (De Sousa Ribeiro et al., ICCV 2025), continuous variant: a flow over logits with a learned base.

The base is the low-rank Gaussian of the SSN, given the image. A sample of it is the start of a path to the labels;
see `phiseg.models.logit_flow` for the path, its training and sampling.

Differences from the authors' code: the blocks of this package; a low-rank base instead of a diagonal one; the base
is trained with the likelihood of the SSN instead of by the flow, because eta_t would reveal y to the flow and the
base could lose its noise. `base_std` adds independent noise for the same reason; in their LIDC setting, it is the
only noise of the base. The flow network also sees the features of the base, theirs on LIDC only eta_t and t. Labels
are coded as +1 and -1 instead of 1 and 0.

Shapes: B batch, S samples, K classes, Q rank, H W pixels.
"""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from phiseg.models.logit_flow import FlowConfig, LogitFlow, flow_terms
from phiseg.models.noise import Generators, draw_noise
from phiseg.models.objective import Loss
from phiseg.models.segmenter import Encoding, fold_samples, image_size, repeat_samples, unfold_samples
from phiseg.models.ssn import SSN, SSNConfig


class FlowSSNConfig(SSNConfig, FlowConfig):
    """Settings of Flow-SSN."""

    name: Literal["flow-ssn"] = "flow-ssn"  # type: ignore[assignment]


class FlowSSN(SSN, LogitFlow):
    """SSN with a flow from its Gaussian to the distribution of the labels."""

    Config = FlowSSNConfig
    config: FlowSSNConfig

    def __init__(self, config: FlowSSNConfig):
        super().__init__(config)
        self.add_flow(config.channels[0])

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return the cross-entropy on the path plus the loss of the base; see `Segmenter.forward`.

        The terms are `cross_entropy/0` on the path and `cross_entropy/1` of the base; see `flow_terms`.
        """
        encoding = self.encode(image)
        base = self.likelihood_loss(encoding, labels, generator)
        shapes = [*self.noise_shapes(encoding.size), ()]
        *noise, moment = (level.to(image.device) for level in draw_noise(shapes, len(image), 1, generator))
        start = self.draw_logits(encoding, noise, more_std=self.config.base_std)[:, 0]
        return flow_terms(self.path_loss(encoding.features[3], start, labels, moment[:, 0]), base.total)

    def encode(self, image: Tensor) -> Encoding:
        """Compute mean, std and factor as in the SSN, and the features (B, C, H', W') of the padded image."""
        self.check_image(image)
        size = image_size(image)
        features = self.combine(self.body(self.pad(image)))
        return Encoding((*self.distribution(features, size), features), size)

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:
        """Follow the flow from samples of the base, given by noise (B, S, Q) and (B, S, K, H, W)."""
        start = fold_samples(self.draw_logits(encoding, noise, more_std=self.config.base_std))
        features = repeat_samples(encoding.features[3], num_samples)
        return unfold_samples(self.follow_flow(features, start), num_samples)
