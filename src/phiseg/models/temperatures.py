"""Temperatures that are fitted after training, and what `Segmenter.sample` does with them."""

from pydantic import PositiveFloat

from phiseg.core.config import StrictConfig


class Calibration(StrictConfig):
    """How a trained model's samples are spread out or drawn together; the defaults change nothing."""

    noise: tuple[PositiveFloat, ...] = ()
    """Factor on the noise of each latent level, fine to coarse: above 1, samples differ more. None given: 1."""
    logits: PositiveFloat = 1.0
    """What the logits are divided by: above 1, probabilities are less sure. Labels of single samples do not
    depend on it; the label of their mean does."""
