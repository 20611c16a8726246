"""Metrics that compare sampled segmentations with annotations: pure functions of tensors."""

from phiseg.metrics.annotator_correlation import agreement_table, correlated_excess, residual_correlation
from phiseg.metrics.area import AreaScores, area_scores, foreground_areas
from phiseg.metrics.calibration import brier_score, expected_calibration_error, reliability
from phiseg.metrics.case import score_case
from phiseg.metrics.challenges import consensus_dice, normal_volume_crps, soft_dice, top_label_calibration_error
from phiseg.metrics.consensus import consensus
from phiseg.metrics.diversity import diversity
from phiseg.metrics.ged import EnergyDistance, energy_distance, ged_floor
from phiseg.metrics.matching import best_dice, matched_iou
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
from phiseg.metrics.overlap import dice, iou, most_probable, pairwise_dice, pairwise_iou
from phiseg.metrics.score import CaseScore, PixelScore, Score
from phiseg.metrics.score_registry import SCORES
from phiseg.metrics.significance import PairedTest, paired_t_test, patient_interval, patient_t_test
from phiseg.metrics.surface import surface_distance

__all__ = [
    "EPSILON",
    "SCORES",
    "AreaScores",
    "CaseScore",
    "Correlation",
    "EnergyDistance",
    "PairedTest",
    "PixelScore",
    "Score",
    "agreement_table",
    "area_scores",
    "best_dice",
    "brier_score",
    "consensus",
    "consensus_dice",
    "correlated_excess",
    "dice",
    "diversity",
    "energy_distance",
    "error_maps",
    "expected_calibration_error",
    "expected_cross_entropy",
    "foreground_areas",
    "gamma_map",
    "ged_floor",
    "iou",
    "matched_iou",
    "mean_log_probs",
    "most_probable",
    "ncc",
    "normal_volume_crps",
    "paired_t_test",
    "pairwise_dice",
    "pairwise_iou",
    "patient_interval",
    "patient_t_test",
    "reliability",
    "residual_correlation",
    "s_ncc",
    "score_case",
    "soft_dice",
    "surface_distance",
    "top_label_calibration_error",
]
