"""Scores of one case, compared with the reference implementations."""

import pytest
import torch

from helpers import naive_metrics as naive
from phiseg.core.errors import DataError
from phiseg.metrics import mean_log_probs
from phiseg.metrics.case import score_case
from phiseg.metrics.score_registry import case_scores


def make_case(num_classes, num_samples=6, num_annotators=3, size=(6, 5), seed=0):
    generator = torch.Generator().manual_seed(seed)
    probs = (3 * torch.randn(num_samples, num_classes, *size, generator=generator)).softmax(1)
    annotations = torch.randint(num_classes, (num_annotators, *size), generator=generator, dtype=torch.uint8)
    return probs, annotations


def score(probs, annotations, **options):
    return score_case(probs.argmax(1).to(torch.uint8), probs.mean(0), mean_log_probs(probs), annotations, **options)


@pytest.mark.parametrize("size", [(6, 5), (3, 2, 5)])
@pytest.mark.parametrize("num_classes", [2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_score_case_matches_reference(num_classes, seed, size):
    probs, annotations = make_case(num_classes, seed=seed, size=size)
    spacing = (5, 10, 5)[-len(size) :]  # voxels of 0.25 ml
    found = score(probs, annotations, spacing_mm=spacing)
    segmented, drawn = probs.mean(0).argmax(0).numpy(), annotations.numpy()
    probs, annotations = probs.flatten(2, -2), annotations.flatten(1, -2)  # a volume as slices below each other
    samples, experts, numbers = probs.argmax(1).tolist(), annotations.tolist(), probs.tolist()
    gamma = naive.gamma(numbers)
    delta = naive.mean_distance(experts, experts, num_classes, distinct=True)
    prediction = probs.mean(0).argmax(0).tolist()
    expected = {
        "ged": naive.ged(samples, experts, num_classes),
        "ged_unbiased": naive.ged(samples, experts, num_classes, distinct=True),
        "ged_floor": delta * (1 / 3 + 1 / 6),
        "s_ncc": sum(naive.pearson(gamma, naive.error(numbers, y)) for y in experts) / 3,
        "dice": sum(naive.dice(prediction, y, num_classes) for y in experts) / 3,
        "hm_iou": naive.matched_iou(samples, experts, num_classes),
        "best_dice": naive.best_dice(samples, experts, num_classes),
        "diversity": naive.diversity(samples, num_classes),
        "diversity_annotators": delta,
        "surface_distance": naive.surface_distance(segmented, drawn, num_classes, spacing),
        **(naive_areas if len(size) == 2 else naive_volumes)(samples, experts, num_classes),
        "ged_cross": naive.mean_distance(samples, experts, num_classes),
        "ged_within_samples": naive.mean_distance(samples, samples, num_classes),
        "ged_within_annotations": naive.mean_distance(experts, experts, num_classes),
        "num_annotators": 3,
        "s_ncc_constant": 0,
    }
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert [*expected] == [score.name for score in case_scores(len(size))]


def naive_areas(samples, experts, num_classes):
    coverage, width = naive.area_interval(samples, experts, num_classes)
    return {
        "area_crps": naive.area_crps(samples, experts, num_classes),
        "area_coverage": coverage,
        "area_width": width,
    }


def naive_volumes(samples, experts, num_classes):
    """Scores of volumes with voxels of 0.25 ml."""
    areas = naive_areas(samples, experts, num_classes)
    marked = [naive.area(y, label) for y in experts for label in range(1, num_classes)]
    return {
        "volume_crps": areas["area_crps"] / 4,
        "volume_coverage": areas["area_coverage"],
        "volume_width": areas["area_width"] / (sum(marked) / len(marked)),
    }


def test_score_case_without_spacing_has_no_scores_in_ml_and_mm():
    probs, annotations = make_case(2, size=(3, 2, 5))
    known, unknown = score(probs, annotations, spacing_mm=(2, 1, 1)), score(probs, annotations)
    assert unknown == known | {"volume_crps": None, "surface_distance": None}
    assert known["volume_crps"] is not None
    assert known["surface_distance"] > 0


def test_score_case_of_empty_volumes_has_no_relative_width():
    probs, annotations = make_case(2, size=(3, 2, 5))
    assert score(probs, torch.zeros_like(annotations))["volume_width"] is None


def test_score_case_rejects_volumes_of_other_depth():
    probs, annotations = make_case(2, size=(3, 2, 5))
    with pytest.raises(DataError, match="do not match"):
        score(probs, annotations[:, :1])  # one slice does not broadcast


def test_score_case_dice_uses_reference_only():
    probs, annotations = make_case(3)
    prediction = probs.mean(0).argmax(0).tolist()
    everybody = score(probs, annotations)
    for chosen in ([0], [2], [0, 2]):
        found = score(probs, annotations, reference=annotations[chosen])
        wanted = [naive.dice(prediction, annotations[a].tolist(), 3) for a in chosen]
        assert found["dice"] == pytest.approx(sum(wanted) / len(wanted))
        assert found["dice"] != pytest.approx(everybody["dice"])
        assert {k: v for k, v in found.items() if k != "dice"} == {
            k: v for k, v in everybody.items() if k != "dice"
        }


def test_score_case_dice_is_undefined_without_reference():
    probs, annotations = make_case(2)
    assert score(probs, annotations, reference=annotations[:0])["dice"] is None


def test_score_case_with_one_annotator_has_no_distribution_scores():
    probs, annotations = make_case(2, num_annotators=1)
    found = score(probs, annotations)
    assert found["ged_unbiased"] is None
    assert found["ged_floor"] is None
    assert found["diversity_annotators"] is None
    assert found["hm_iou"] == pytest.approx(1 - found["ged_cross"])  # only one possible matching
    assert (found["ged"], found["s_ncc"]) == (None, None), "one annotation is no distribution"


def test_score_case_with_one_sample_has_no_unbiased_ged():
    probs, annotations = make_case(2, num_samples=1)
    found = score(probs, annotations)
    assert found["ged_unbiased"] is None
    assert found["ged_floor"] is not None
    assert (found["diversity"], found["area_crps"], found["area_width"]) == (None, None, 0)


def test_score_case_counts_constant_error_maps():
    probs = torch.full((3, 2, 4, 4), 0.5)
    found = score(probs, torch.ones(2, 4, 4, dtype=torch.uint8))
    assert (found["s_ncc"], found["s_ncc_constant"]) == (0.0, 2)


def test_score_case_predicts_argmax_of_mean_probs():
    # two samples slightly favour the background, the third strongly the foreground
    probs = torch.tensor([[0.55, 0.45], [0.55, 0.45], [0.0, 1.0]]).reshape(3, 2, 1, 1).expand(3, 2, 2, 2)
    assert score(probs, torch.ones(1, 2, 2, dtype=torch.uint8))["dice"] == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda labels, annotations: (labels, annotations[:, 1:]), "labels .* and annotations .* do not match"),
        (lambda labels, annotations: (labels[:0], annotations), "labels has shape .* no mask"),
        (lambda labels, annotations: (labels, annotations[:0]), "annotations has shape .* no mask"),
        (lambda labels, annotations: (labels, annotations + 200), "annotations contains labels .* missing"),
        (lambda labels, annotations: (labels.float(), annotations), "labels has dtype torch.float32"),
    ],
)
def test_score_case_rejects_invalid_input(change, message):
    probs, annotations = make_case(3)
    labels, annotations = change(probs.argmax(1), annotations)
    with pytest.raises(DataError, match=message):
        score_case(labels, probs.mean(0), mean_log_probs(probs), annotations)


def test_score_case_accepts_all_integer_dtypes():
    probs, annotations = make_case(3)
    assert score(probs, annotations.long()) == score(probs, annotations)
