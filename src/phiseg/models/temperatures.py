"""Temperatures that are fitted after training and applied by `Segmenter.sample`."""

from pydantic import PositiveFloat

from phiseg.core.config import StrictConfig


class Calibration(StrictConfig):
    """Temperatures of a trained model; the defaults have no effect."""

    noise: tuple[PositiveFloat, ...] = ()
    """Factor on the noise of each latent level, fine to coarse; values above 1 increase diversity. Empty: 1."""
    logits: PositiveFloat = 1.0
    """Divisor of the logits; values above 1 make probabilities less confident. It affects the label of the mean
    prediction, but not the labels of single samples."""
