import io
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread
from synthetic_evaluations import make_cases, make_evaluation

from phiseg.evaluation.charts import score_distributions, training_curves
from phiseg.evaluation.drawing import to_png
from phiseg.evaluation.figures import level_panel, sample_panel


def evaluation(name, quality=0.8, **changes):
    return make_evaluation(Path(f"/evals/{name}"), changes.pop("method", name), quality, size=16, **changes)


def pictures(figure):
    return [axes for axes in figure.axes if axes.images]


def titles(figure):
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def bars(figure):
    return [axes for axes in figure.axes if not axes.images]


def boxes_of_text(figure):
    """Return everything written in the figure with its extent in pixels."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    texts = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        texts += [axes.title, *axes.texts]
        for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
            low, high = sorted(axis.get_view_interval())
            texts += [axis.label, *(t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high)]
    return [
        (t.get_text(), t.get_window_extent(renderer)) for t in texts if t.get_text().strip() and t.get_visible()
    ]


def assert_readable(figure):
    boxes = boxes_of_text(figure)
    assert boxes
    for text, box in boxes:
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1
        assert inside, f"'{text}' leaves the figure"
    for (one, box), (two, other) in combinations(boxes, 2):
        overlap = min(box.x1, other.x1) - max(box.x0, other.x0), min(box.y1, other.y1) - max(box.y0, other.y0)
        assert min(overlap) < 2, f"'{one}' overlaps '{two}'"


LONG = "unet-deterministic-trained-with-annotator-2-and-a-very-long-name-that-goes-on"


@pytest.mark.parametrize("num_classes", [2, 3])
def test_sample_panel_has_a_picture_for_everything(num_classes):
    methods = [evaluation("a", num_classes=num_classes), evaluation("b", 0.2, num_classes=num_classes, method=LONG)]
    figure = sample_panel(methods, "case-0000")
    assert len(pictures(figure)) == 1 + 4 + 2 * (1 + 8 + 1)  # image, annotations, two methods
    assert len(bars(figure)) == 2
    assert titles(figure).count("annotation 4") == 1
    assert titles(figure).count("sample 8") == 1
    assert bool(figure.legends) == (num_classes > 2)
    texts = " ".join(text.get_text() for text in figure.texts)
    for method in methods:
        assert f"GED {method.cases['ged'][0]:.3f}" in texts
    assert_readable(figure)


def test_a_missing_annotation_is_left_out():
    figure = sample_panel([evaluation("a")], "case-0001")  # its annotator 4 did not look
    assert "annotation 3" in titles(figure)
    assert "annotation 4" not in titles(figure)


def test_maps_of_all_methods_share_one_scale_a_kind():
    methods = [evaluation("a", 0.9), evaluation("b", 0.1)]
    figure = sample_panel(methods, "case-0000")
    maps = [axes.images[0] for axes in figure.axes if axes.images and axes.images[0].get_cmap().name == "magma"]
    tops = [max(getattr(m.examples, name)[0].max() for m in methods) for name in ("error", "gamma")]
    assert len(maps) == 4
    np.testing.assert_allclose([image.get_clim() for image in maps], [(0, top) for top in tops * 2])


def test_an_empty_mask_says_so():
    method = evaluation("a")
    method.examples.samples[0, 0] = 0
    figure = sample_panel([method], "case-0000")
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert said == ["empty"]


def test_a_panel_grows_with_its_columns():
    narrow, wide = evaluation("a"), evaluation("b")
    object.__setattr__(narrow.examples, "samples", narrow.examples.samples[:, :3])
    small, large = (sample_panel([e], "case-0000").get_size_inches() for e in (narrow, wide))
    assert small[0] < large[0]
    both = sample_panel([narrow, wide], "case-0000")
    assert len(pictures(both)) == 1 + 4 + (2 + 3) + (2 + 8)


@pytest.mark.parametrize(("num_classes", "num_levels"), [(2, 1), (2, 5), (3, 3), (6, 2)])
def test_level_panel_shows_outputs_and_residuals(num_classes, num_levels):
    figure = level_panel(evaluation("a", num_classes=num_classes, num_levels=num_levels), "case-0000")
    rows = 1 + min(num_classes - 1, 3)
    assert len(pictures(figure)) == rows * num_levels
    assert len(bars(figure)) == 1 + (num_levels > 1)
    assert_readable(figure)


def test_levels_go_from_coarse_to_fine_on_symmetric_scales():
    method = evaluation("a", num_levels=3)
    figure = level_panel(method, "case-0000")
    assert [title.split(" (")[0] for title in titles(figure)[:3]] == ["level 3", "level 2", "level 1"]
    shown = [a.images[0] for a in figure.axes if a.images and a.images[0].get_cmap().name == "RdBu_r"]
    assert all(low == -high for low, high in (image.get_clim() for image in shown))
    assert shown[1].get_clim() == shown[2].get_clim()
    residuals = method.examples.level_residuals[0].astype(np.float32)
    coarsest = residuals[2, 1] - residuals[2].mean(0)
    np.testing.assert_allclose(shown[0].get_array(), coarsest, rtol=1e-5)


def test_training_curves_give_every_method_axes_of_its_own():
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


def test_curves_of_a_very_short_training_are_drawn():
    method = evaluation("a", num_levels=2, training=True)
    method.training[:] = [{"step": 1, "kind": "train", "loss": 2.0, "cross_entropy/0": 1.0, "kl/0": -1.0}]
    assert to_png(training_curves([method]))


def test_scores_have_one_box_a_method_and_leave_out_what_nobody_has():
    cases = make_cases(0.5) | {"dice": [None] * 40}
    methods = [evaluation("a", cases=cases), evaluation("b", cases=cases, method=LONG)]
    figure = score_distributions(methods)
    assert len(titles(figure)) == 2
    excess = figure.axes[0].collections[0].get_offsets()[:, 0]
    np.testing.assert_allclose(excess, np.subtract(cases["ged"], cases["ged_floor"]))
    assert len(figure.axes[0].collections) == 2
    assert_readable(figure)


def test_a_name_is_never_read_as_mathematics():
    method = evaluation("a", method=r"$\frac{$ and $x_1$", num_levels=2, training=True)
    for figure in (sample_panel([method], "case-0000"), training_curves([method]), score_distributions([method])):
        assert to_png(figure)


def test_a_png_is_white_and_the_same_every_time():
    first, second = (to_png(score_distributions([evaluation("a")])) for _ in range(2))
    assert first == second
    image = imread(io.BytesIO(first))
    np.testing.assert_array_equal(image[0, 0, :3], [1, 1, 1])
