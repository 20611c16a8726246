"""Charts show the numbers of the evaluations, and can be read with many methods and long names."""

import io
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread

from helpers.figure_checks import LONG, assert_readable, evaluation, titles
from helpers.synthetic_evaluations import make_cases
from phiseg.comparison.charts import (
    case_scatter,
    ged_terms,
    reliability_diagram,
    score_distributions,
    training_curves,
)
from phiseg.comparison.compare import draw_pictures
from phiseg.comparison.figures import sample_panel
from phiseg.plotting.primitives import method_line, to_png


def table(bias, num_classes=2):
    """Return a reliability table of five bins, the fourth of them empty."""
    pixels = np.array([1000.0, 40, 20, 0, 30])
    probs = pixels * [0.05, 0.3, 0.5, 0.7, 0.95]
    votes = np.clip(probs + bias * pixels, 0, pixels)
    return np.stack([np.stack([pixels, probs, votes / k], axis=1) for k in range(1, num_classes)])


def with_table(method, bias=0.02, ece=0.02, num_classes=2):
    summary = method.summary.model_copy(update={"ece": ece})
    return replace(method, summary=summary, reliability=table(bias, num_classes))


def without_table(method):
    return replace(method, reliability=None)


def many(number, **options):
    """Return methods of which every third has a very long name."""
    names = [f"{LONG}-{place}" if place % 3 == 2 else f"method-{place}" for place in range(number)]
    return [
        with_table(evaluation(name, 0.2 + 0.06 * place, **options), num_classes=options.get("num_classes", 2))
        for place, name in enumerate(names)
    ]


@pytest.mark.parametrize("number", [2, 12])
@pytest.mark.parametrize(
    "chart", [ged_terms, case_scatter, score_distributions, training_curves, reliability_diagram]
)
def test_charts_are_readable(chart, number):
    assert_readable(chart(many(number, training=True, num_levels=2)))


def test_method_lines_are_distinct():
    assert len({method_line(place)["color"] for place in range(12)}) == 12
    assert len({tuple(map(str, method_line(place).values())) for place in range(24)}) == 24


# The terms of the GED


def test_ged_bars_sum_to_first_term():
    methods = [evaluation("a", 0.9), evaluation("b", 0.2)]
    axes, numbers = ged_terms(methods).axes
    ends = {}
    for bar in axes.patches:
        ends.setdefault(round(bar.get_y() + bar.get_height() / 2), []).append(bar.get_x() + bar.get_width())
    for place, method in enumerate(methods):
        mean = {name: np.mean(values) for name, values in method.cases.items() if name.startswith("ged")}
        parts = np.cumsum([mean["ged"], mean["ged_within_samples"], mean["ged_within_annotations"]])
        np.testing.assert_allclose(ends[place], parts)
        assert ends[place][-1] == pytest.approx(2 * mean["ged_cross"])
        assert f"= {mean['ged']:.3f}" in [text.get_text() for text in numbers.texts]
    (floor,) = axes.lines
    assert floor.get_xdata()[0] == pytest.approx(np.mean(methods[0].cases["ged_floor"]), abs=1e-5)


def test_ged_terms_are_means_over_cases_with_floor():
    cases = make_cases(0.5)
    cases["ged_floor"][0] = None
    axes, _ = ged_terms([evaluation("a", cases=cases)]).axes
    assert axes.patches[0].get_width() == pytest.approx(np.mean(cases["ged"][1:]))


def test_method_without_ged_is_marked():
    cases = make_cases(0.5) | {"ged": [None] * 40, "ged_floor": [None] * 40}
    axes, numbers = ged_terms([evaluation("a", cases=cases), evaluation("b")]).axes
    assert len(axes.patches) == 3
    assert "no GED" in [text.get_text() for text in numbers.texts]


# Case against case


def scored(name, excess, order=None):
    order = range(len(excess)) if order is None else order
    cases = make_cases(0.5, num_cases=len(excess))
    cases |= {"ged_floor": [0.25] * len(excess), "ged": [None if e is None else e + 0.25 for e in excess]}
    cases = {column: [values[place] for place in order] for column, values in cases.items()}
    return evaluation(name, cases=cases, num_cases=len(excess))


def test_scatter_compares_best_method_per_case():
    worse = scored("worse", [0.5, 0.5, 0.25, 0.0], order=[3, 1, 0, 2])
    best = scored("best", [0.25, 0.0, 0.25, 0.125])
    (axes,) = case_scatter([worse, best]).axes
    points = axes.collections[0].get_offsets()
    np.testing.assert_allclose(points, [[0.25, 0.5], [0.0, 0.5], [0.25, 0.25], [0.125, 0.0]])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("best", "worse")
    assert axes.get_title(loc="left") == "best better in 50%\nworse better in 25%"
    assert axes.get_xlim() == axes.get_ylim()
    assert axes.get_box_aspect() == 1


def test_scatter_omits_cases_missing_in_a_method():
    (axes,) = case_scatter([scored("a", [0.5, None, 0.25]), scored("b", [0.0, 0.125, 0.0])]).axes
    np.testing.assert_allclose(axes.collections[0].get_offsets(), [[0.0, 0.5], [0.0, 0.25]])


def test_scatter_shows_next_best_methods_with_ged():
    means = [0.5, 0.125, 0.25, None, 0.75, 0.375, 0.625]
    methods = [scored(f"m{place}", [mean] * 3) for place, mean in enumerate(means)]
    figure = case_scatter(methods)
    assert [axes.get_ylabel() for axes in figure.axes] == ["m2", "m5", "m0", "m6"]
    assert {axes.get_xlabel() for axes in figure.axes} == {"m1"}


# Reliability


def test_reliability_curve_uses_bins_with_pixels():
    figure = reliability_diagram([with_table(evaluation("a"), 0.02, ece=0.0208), without_table(evaluation("old"))])
    curves, counts, _ = figure.axes
    _, curve = curves.lines  # the first is the diagonal
    np.testing.assert_allclose(curve.get_xdata(), [0.05, 0.3, 0.5, 0.95])
    np.testing.assert_allclose(curve.get_ydata(), [0.07, 0.32, 0.52, 0.97])
    assert curve.get_label() == "a\nECE 0.0208"
    (stairs,) = counts.patches
    np.testing.assert_array_equal(stairs.get_data().values, [1000, 40, 20, 0, 30])
    np.testing.assert_allclose(stairs.get_data().edges, [0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert counts.get_yscale() == "log"


def test_reliability_diagrams_show_largest_classes():
    method = with_table(evaluation("a", num_classes=6), num_classes=6)
    swapped = replace(method, reliability=method.reliability[::-1])  # class 5 is the largest, then 4, ...
    assert titles(reliability_diagram([method])) == ["class 1", "class 2", "class 3"]
    assert titles(reliability_diagram([swapped])) == ["class 3", "class 4", "class 5"]
    assert_readable(reliability_diagram([method]))
    names = np.array(["background", "disc", "cup", "a", "b", "c"])
    named = replace(method, examples=replace(method.examples, classes=names))
    assert titles(reliability_diagram([named])) == ["disc", "cup", "a"]


# Scores and training


def test_training_curves_have_axes_per_method():
    methods = [
        evaluation("a", num_levels=5, training=True),
        evaluation("b", training=True, method=LONG),
        evaluation("c"),
    ]
    figure = training_curves(methods)
    shown = titles(figure)
    assert shown.count("validation loss") == 2  # the third has no training
    assert sum("running mean of" in title for title in shown) == 3  # two cross entropies, one KL
    shared = next(axes for axes in figure.axes if "GED" in axes.get_title())
    assert len(shared.lines) == 2
    kl = next(axes for axes in figure.axes if "KL" in axes.get_title())
    assert len(kl.lines) == 2 * 5  # raw and smoothed


def test_training_curves_of_short_training():
    method = evaluation("a", num_levels=2, training=True)
    method.training[:] = [{"step": 1, "kind": "train", "loss": 2.0, "cross_entropy/0": 1.0, "kl/0": -1.0}]
    assert to_png(training_curves([method]))


def test_validation_terms_are_not_training_curves():
    method = evaluation("a", num_levels=2, training=True)
    method.training[:] = [{"step": 1, "kind": "val", "loss": 2.0, "cross_entropy/0": 1.0, "kl/0": 1.0}]
    assert to_png(training_curves([method]))


def test_score_boxes_omit_missing_scores():
    cases = make_cases(0.5) | {"dice": [None] * 40, "hm_iou": [None] * 40}
    methods = [evaluation("a", cases=cases), evaluation("b", cases=cases, method=LONG)]
    figure = score_distributions(methods)
    assert len(titles(figure)) == 2
    excess = figure.axes[0].collections[0].get_offsets()[:, 0]
    np.testing.assert_allclose(excess, np.subtract(cases["ged"], cases["ged_floor"]))
    assert len(figure.axes[0].collections) == 2
    assert_readable(figure)


def test_names_are_not_mathematics():
    method = evaluation("a", method=r"$\frac{$ and $x_1$", num_levels=2, training=True)
    for figure in (sample_panel([method], "case-0000"), training_curves([method]), score_distributions([method])):
        assert to_png(figure)


def test_missing_data_is_not_drawn():
    one = {"num_cases": 1}
    unscored = make_cases(0.5, **one) | {"ged": [None], "ged_floor": [None]}
    bare = without_table(evaluation("a", cases=unscored, **one))
    assert draw_pictures([bare], {}).keys() == {"samples.png", "scores.png"}
    drawn = draw_pictures([with_table(evaluation("a", training=True, **one)), evaluation("b", 0.4, **one)], {})
    charts = {"terms.png", "scatter.png", "reliability.png", "curves.png"}
    assert drawn.keys() == {"samples.png", "scores.png"} | charts
    alone = draw_pictures([without_table(evaluation("a", **one))], {})
    assert drawn.keys() - alone.keys() == charts - {"terms.png"}


def test_png_is_white_and_deterministic():
    first, second = (to_png(score_distributions([evaluation("a")])) for _ in range(2))
    assert first == second
    image = imread(io.BytesIO(first))
    np.testing.assert_array_equal(image[0, 0, :3], [1, 1, 1])
