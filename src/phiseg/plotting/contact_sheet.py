"""The contact sheet of a dataset: many cases with the outlines of all annotators.

With one foreground class, a case is one picture with an outline per annotator, each in a different colour. With
several classes, a case is a row with one picture per annotator in the colours of the classes, because overlapping
outlines would hide each other. A volume is shown in three planes, through the slices with most foreground.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from phiseg.core.errors import ConfigError
from phiseg.core.random import derive_seed
from phiseg.data.check import disagreement
from phiseg.data.store import Dataset
from phiseg.plotting.plane_views import PlaneView, plane_views
from phiseg.plotting.primitives import (
    CLASS_COLOURS,
    PictureGrid,
    class_colour,
    outline,
    outline_mask,
    overlay,
    plain,
    shortened,
    show,
    show_image,
    style,
    text_width,
    wrapped,
)

Order = Literal["row", "random", "disagreement"]

ANNOTATOR_COLOURS = (*CLASS_COLOURS, "#2f6bff", "#ffff66", "#ffffff", "#00b389")

MAX_PIXELS = 400
"""Maximum side of an image in pixels; larger images are subsampled to the resolution of the picture."""


def choose_cases(
    dataset: Dataset, number: int, *, split: str | None = None, order: Order = "row", seed: int = 0
) -> list[int]:
    """Return the rows to show.

    Args:
        dataset: dataset to choose from.
        number: maximum number of cases.
        split: split to choose from; None for all splits.
        order: `row` chooses evenly spaced rows, `random` draws them at random, `disagreement` chooses those whose
            annotators disagree most, in descending order.
        seed: seed of `random`.

    Raises:
        ConfigError: the number is not positive.
        DataError: the split does not exist.
    """
    if number < 1:
        raise ConfigError(f"cannot show {number} cases; use 1 or more")
    rows = np.arange(dataset.num_cases) if split is None else dataset.rows(split)
    number = min(number, len(rows))
    if order == "disagreement":
        return sorted(rows.tolist(), key=partial(disagreement, dataset), reverse=True)[:number]
    if order == "random":
        chosen = np.random.default_rng(derive_seed(seed, "sheet")).permutation(rows)[:number]
    else:
        chosen = rows[np.linspace(0, len(rows) - 1, number).round().astype(int)]
    return [int(row) for row in chosen]


def contact_sheet(dataset: Dataset, rows: Sequence[int]) -> Figure:
    """Draw the cases in `rows`, which must not be empty."""
    views = [view for row in rows for view in plane_views(dataset, row)]
    with style():
        draw = _one_picture_a_view if len(dataset.info.classes) == 2 else _one_row_a_view
        return draw(dataset, views)


def _one_picture_a_view(dataset: Dataset, views: Sequence[PlaneView]) -> Figure:
    columns = max(3, min(6, len(views)))
    num_annotators = dataset.info.num_annotators
    colours = _annotator_colours(num_annotators)
    widths = np.linspace(1.8, 0.7, num_annotators)  # lower outlines are wider, so that they stay visible
    grid = PictureGrid(columns, [0.36] * -(-len(views) // columns), left=0.1, panel=1.6)
    for place, view in enumerate(views):
        axes = grid.picture(*divmod(place, columns))
        name = shortened(dataset.cases[view.row]["case"], 28)
        _show(axes, dataset, view, title=f"{name}\n{_describe(dataset, view)}")
        for annotator in np.flatnonzero(dataset.valid[view.row]).tolist():
            mask = _thinned(view.of(dataset.annotation(view.row, annotator))) == 1
            outline_mask(axes, mask, colours[annotator], width=float(widths[annotator]))
    _legend(grid, dict(zip(map(plain, dataset.annotator_names), colours, strict=True)))
    return grid.figure


def _one_row_a_view(dataset: Dataset, views: Sequence[PlaneView]) -> Figure:
    classes, num_annotators = dataset.info.classes, dataset.info.num_annotators
    names = [f"{wrapped(dataset.cases[view.row]['case'])}\n{_describe(dataset, view)}" for view in views]
    spaces = [0.25, *[0.0] * (len(views) - 1)]
    grid = PictureGrid(1 + num_annotators, spaces, left=text_width(names), panel=1.3)
    for place, (view, name) in enumerate(zip(views, names, strict=True)):
        grid.label(place, name)
        titles = ["image", *(plain(shortened(name, 20)) for name in dataset.annotator_names)]
        titles = titles if place == 0 else [""] * len(titles)
        _show(grid.picture(place, 0), dataset, view, title=titles[0])
        for annotator in range(num_annotators):
            axes = grid.picture(place, 1 + annotator)
            if dataset.valid[view.row, annotator]:
                _show(axes, dataset, view, title=titles[1 + annotator])
                labels = _thinned(view.of(dataset.annotation(view.row, annotator)))
                overlay(axes, np.stack([labels == k for k in range(len(classes))]))
                outline(axes, labels, len(classes))
            else:
                axes.set_axis_off()
                axes.set_title(titles[1 + annotator], pad=2.5, fontsize=7, color="#444444")
                axes.text(0.5, 0.5, "missing", ha="center", va="center", color="#888888")
    _legend(grid, {plain(name): class_colour(k) for k, name in enumerate(classes) if k})
    return grid.figure


def _show(axes: Axes, dataset: Dataset, view: PlaneView, *, title: str) -> None:
    """Show a picture with its colours, otherwise the first channel, in the window of the dataset if it has one."""
    if dataset.has_colours:
        show_image(axes, _thinned(np.moveaxis(dataset.image(view.row), 0, 2)), title=title)
        return
    image = _thinned(view.of(dataset.image(view.row)[0]))
    if dataset.info.intensity.kind == "window":
        show(axes, image, "gray", -0.5, 0.5, title=title)
    else:
        show_image(axes, image, title=title)
    axes.set_aspect(view.aspect(dataset))


def _thinned(picture: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    step = -(-max(picture.shape) // MAX_PIXELS)
    return picture[::step, ::step]


def _describe(dataset: Dataset, view: PlaneView) -> str:
    """Return the plane, if there are several, or who drew."""
    if view.axis:
        return view.plane(dataset)
    annotations = dataset.annotations(view.row)
    missing = dataset.info.num_annotators - len(annotations)
    drew = sum(bool(drawn.any()) for drawn in annotations)
    who = f"{drew} of {len(annotations)} drew" + (f", {missing} missing" if missing else "")
    return who if view.axis is None else f"{view.plane(dataset)}, {who}"


def _annotator_colours(number: int) -> list[str]:
    """Return colours that differ from grey and, as far as possible, from each other."""
    if number <= len(ANNOTATOR_COLOURS):
        return [*ANNOTATOR_COLOURS[:number]]
    return [to_hex(colormaps["gist_rainbow"](place)) for place in np.linspace(0, 1, number)]


def _legend(grid: PictureGrid, colours: dict[str, str]) -> None:
    fitting = max(1, int(grid.width / (0.45 + 0.06 * max(map(len, colours)))))
    columns = -(-len(colours) // -(-len(colours) // fitting))  # balanced lines
    lines = [Line2D([], [], color=colour, linewidth=2, label=name) for name, colour in colours.items()]
    grid.figure.legend(
        handles=[line for column in range(columns) for line in lines[column::columns]],  # filled by columns
        loc="lower center",
        ncols=columns,
        borderaxespad=0.3,
        handlelength=1.2,
        columnspacing=1.2,
        facecolor="#555555",
        labelcolor="white",
        frameon=True,
    )
