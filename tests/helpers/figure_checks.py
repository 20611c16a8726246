"""Helpers of figure tests: small evaluations, and checks that figures are readable."""

from itertools import combinations
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg

from helpers.synthetic_evaluations import make_evaluation


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
        texts += [axes.title, axes._left_title, *axes.texts]
        texts += axes.get_legend().get_texts() if axes.get_legend() else []
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
