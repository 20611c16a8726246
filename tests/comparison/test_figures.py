"""Panels of pictures: complete, on shared scales, and readable."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from helpers.figure_checks import LONG, assert_readable, bars, evaluation, pictures, titles
from phiseg.comparison.figures import level_panel, sample_panel
from phiseg.plotting.primitives import scale_bar


def annotators(figure):
    return [title for title in titles(figure) if title.startswith("annotator")]


@pytest.mark.parametrize("num_classes", [2, 3])
def test_sample_panel_has_all_pictures(num_classes):
    methods = [evaluation("a", num_classes=num_classes), evaluation("b", 0.2, num_classes=num_classes, method=LONG)]
    figure = sample_panel(methods, "case-0000")
    assert len(pictures(figure)) == 1 + 4 + 2 * (1 + 8 + 1)  # image, annotations, two methods
    assert len(bars(figure)) == 2
    assert annotators(figure) == ["annotator 0", "annotator 1", "annotator 2", "annotator 3"]
    assert titles(figure).count("sample 8") == 1
    assert bool(figure.legends) == (num_classes > 2)
    texts = " ".join(text.get_text() for text in figure.texts)
    for method in methods:
        assert f"GED {method.cases['ged'][0]:.3f}" in texts
    assert_readable(figure)


def test_missing_annotation_is_omitted():
    shown = evaluation("a")
    index = shown.examples.cases.tolist().index("case-0001")
    shown.examples.valid[index] = [True, False, True, True]
    drawn = annotators(sample_panel([shown], "case-0001"))
    assert drawn == ["annotator 0", "annotator 2", "annotator 3"]  # the numbers of the dataset, not a new count


def with_names(method, **names):
    arrays = {key: np.array(value) for key, value in names.items()}
    return replace(method, examples=replace(method.examples, **arrays))


def test_panels_use_names_of_annotators_and_classes():
    long = "a radiologist with a very long name"
    method = with_names(
        evaluation("a", num_classes=3, num_levels=2),
        annotators=["1", "anna", "rater_$2$", long],
        classes=["background", "peripheral zone of the prostate", "disc"],
    )
    figure = sample_panel([method], "case-0000")
    assert titles(figure)[1:5] == ["annotator 1", "anna", r"rater_\$2\$", "a radio…ong name"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["peripheral …the prostate", "disc"]
    assert_readable(figure)
    levels = level_panel(method, "case-0000")
    assert [text.get_text() for text in levels.texts[1:]] == [
        "residuals\nperipheral zone of\nthe prostate",
        "residuals\ndisc",
    ]
    assert_readable(levels)


def test_maps_of_a_kind_share_one_scale():
    methods = [evaluation("a", 0.9), evaluation("b", 0.1)]
    figure = sample_panel(methods, "case-0000")
    maps = [axes.images[0] for axes in figure.axes if axes.images and axes.images[0].get_cmap().name == "magma"]
    tops = [max(getattr(m.examples, name)[0].max() for m in methods) for name in ("error", "gamma")]
    assert len(maps) == 4
    np.testing.assert_allclose([image.get_clim() for image in maps], [(0, top) for top in tops * 2])


def test_empty_mask_is_marked():
    method = evaluation("a")
    method.examples.samples[0, 0] = 0
    figure = sample_panel([method], "case-0000")
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert said == ["empty"]


def test_panel_grows_with_columns():
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


def test_levels_are_coarse_to_fine_on_symmetric_scales():
    method = evaluation("a", num_levels=3)
    figure = level_panel(method, "case-0000")
    assert [title.split(" (")[0] for title in titles(figure)[:3]] == ["level 3", "level 2", "level 1"]
    shown = [a.images[0] for a in figure.axes if a.images and a.images[0].get_cmap().name == "RdBu_r"]
    assert all(low == -high for low, high in (image.get_clim() for image in shown))
    assert shown[1].get_clim() == shown[2].get_clim()
    residuals = method.examples.level_residuals[0].astype(np.float32)
    coarsest = residuals[2, 1] - residuals[2].mean(0)
    np.testing.assert_allclose(shown[0].get_array(), coarsest, rtol=1e-5)


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_sample_panel_shows_reason():
    figure = sample_panel([evaluation("a")], "case-0000", reason="best of phiseg-small, most ambiguous")
    assert figure.texts[0].get_text() == "case-0000\nbest of\nphiseg-small\nmost ambiguous"
    assert_readable(figure)
    assert_readable(sample_panel([evaluation("a")], "case-0000", reason=f"best of {LONG}, worst of {LONG}"))


def test_image_with_spacing_has_scale_bar():
    method = evaluation("a")
    spacing = np.array([[0.7, 2.0], [0.7, 0.7]])  # 16 columns of 2 mm
    known = replace(method, examples=replace(method.examples, spacing_mm=spacing))
    first, *others = pictures(sample_panel([known], "case-0000"))
    assert texts(first) == ["10 mm"]
    (bar,) = first.lines
    assert np.ptp(bar.get_xdata()) * 32 == pytest.approx(10)
    assert not any(axes.lines for axes in others)
    assert not any(axes.lines for axes in sample_panel([method], "case-0000").axes)


@given(columns=st.integers(8, 2000), spacing=st.floats(1e-3, 50))
def test_scale_bar_has_round_length(columns, spacing):
    axes = Figure().add_subplot()
    scale_bar(axes, columns, spacing)
    length = float(texts(axes)[0].removesuffix(" mm"))
    assert f"{length:e}"[0] in "125"
    assert f"{length:e}"[1:8] == ".000000"
    assert 0.39 / 3 < length / (columns * spacing) < 1.01 / 3
    assert np.ptp(axes.lines[0].get_xdata()) == pytest.approx(length / (columns * spacing), rel=1e-4)


def test_windowed_image_is_shown_in_its_window():
    method = evaluation("a")
    image = method.examples.image
    assert np.percentile(image[0], 0.5) > -0.5
    assert pictures(sample_panel([method], "case-0000"))[0].images[0].get_clim() == (-0.5, 0.5)
    image *= 4  # as z-scores are: no window is known
    shown = pictures(sample_panel([method], "case-0000"))[0].images[0]
    np.testing.assert_allclose(shown.get_clim(), np.percentile(image[0], [0.5, 99.5]), rtol=1e-6)
