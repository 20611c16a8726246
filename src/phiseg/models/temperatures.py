"""Temperatures that are fitted after training and applied by `Segmenter.sample`."""

from pydantic import PositiveFloat
from torch import Tensor

from phiseg.core.config import StrictConfig


class Calibration(StrictConfig):
    """Temperatures of a trained model; the defaults have no effect."""

    noise: tuple[PositiveFloat, ...] = ()
    """Factor on the noise of each latent level, fine to coarse; values above 1 increase diversity. Empty: 1."""
    logits: PositiveFloat = 1.0
    """Divisor of the logits; values above 1 make probabilities less confident. It affects the label of the mean
    prediction, but not the labels of single samples."""
    margin: PositiveFloat | None = None
    """If set, every pixel of a sample is equally confident: the logit of its most probable class exceeds those of
    all other classes by `margin`. The labels of single samples do not change. Default: the confidence of the
    network."""

    def apply(self, logits: Tensor, *, dim: int) -> Tensor:
        """Return the calibrated logits of samples; `dim` is the axis of the classes."""
        if self.margin is None:
            return logits / self.logits
        return self.margin * (logits == logits.amax(dim, keepdim=True)).to(logits)
