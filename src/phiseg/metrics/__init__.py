"""Scores of a set of sampled segmentations against a set of annotations: pure functions of tensors."""

from phiseg.metrics.ged import EnergyDistance, energy_distance, ged_floor
from phiseg.metrics.ncc import (
    EPSILON,
    Correlation,
    error_maps,
    expected_cross_entropy,
    gamma_map,
    mean_log_probs,
    ncc,
    s_ncc,
)
from phiseg.metrics.overlap import dice, iou, pairwise_iou
from phiseg.metrics.significance import PairedTest, bootstrap_interval, paired_t_test

__all__ = [
    "EPSILON",
    "Correlation",
    "EnergyDistance",
    "PairedTest",
    "bootstrap_interval",
    "dice",
    "energy_distance",
    "error_maps",
    "expected_cross_entropy",
    "gamma_map",
    "ged_floor",
    "iou",
    "mean_log_probs",
    "ncc",
    "paired_t_test",
    "pairwise_iou",
    "s_ncc",
]
