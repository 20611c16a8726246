"""Building blocks of figures: style, a grid of pictures, outlines of labels, curves.

pyplot is not used, so figures are freed after use and no display is needed.
"""

import io
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib
import numpy as np
from contourpy import contour_generator
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

CLASS_COLOURS = ("#ffb000", "#00d5ff", "#ff4fa3", "#7dff5a", "#b388ff", "#ff6b35")
METHOD_COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
    *("#555555", "#6a3fb5", "#8c5a2b", "#95950a", "#8b0f3c", "#00305a"),
)
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (4, 1.2, 1, 1.2)))
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.fontsize": 7,
    "legend.frameon": False,
    "figure.facecolor": "white",
}
PANEL = 1.05
"""Size of a picture in a panel in inches."""


def style() -> AbstractContextManager[None]:
    """Return a context with the style of our figures."""
    return matplotlib.rc_context(STYLE)


def to_png(figure: Figure, *, dpi: int = 160) -> bytes:
    """Return `figure` as PNG. The same figure gives the same bytes."""
    file = io.BytesIO()
    FigureCanvasAgg(figure)
    with style():
        figure.savefig(file, format="png", dpi=dpi, metadata={"Software": None})
    return file.getvalue()


class PictureGrid:
    """A figure with rows of square pictures at fixed positions in inches, without overlaps.

    Colour bars are below the last row. The legend of the classes, if there are several, is below the colour bars.

    Args:
        columns: number of pictures in the longest row.
        spaces: space above each row in inches; titles need 0.25.
        left: space for the labels of rows in inches.
        classes: names of the classes for the legend, including the background; by default none.
        panel: size of a picture in inches.
    """

    def __init__(
        self,
        columns: int,
        spaces: Sequence[float],
        *,
        left: float,
        classes: Sequence[str] = (),
        panel: float = PANEL,
    ) -> None:
        self.left, self.panel = left, panel
        self.tops = np.cumsum(spaces) + panel * np.arange(len(spaces))  # distance from the top of the figure
        self.width = left + columns * panel + 0.1
        named = [shortened(name, 24) for name in classes[1:]] if len(classes) > 2 else []
        ncols = max(1, min(len(named), int(self.width / (0.2 + text_width(named or [""])))))
        self.height = float(self.tops[-1]) + panel + 0.5 + 0.16 * -(-len(named) // ncols)
        self.figure = Figure(figsize=(self.width, self.height))
        if named:
            lines = [Line2D([], [], color=class_colour(k), label=name) for k, name in enumerate(named, start=1)]
            self.figure.legend(
                handles=lines,
                loc="lower center",
                ncols=ncols,
                borderaxespad=0.2,
                handlelength=1.2,
                columnspacing=1.2,
            )

    def picture(self, row: int, column: int) -> Axes:
        """Add and return the axes of a picture."""
        return self._axes(self.left + column * self.panel, float(self.tops[row]), self.panel, self.panel)

    def label(self, row: int, text: str) -> None:
        """Write `text` to the left of a row."""
        x, y = self.left - 0.1, self.height - self.tops[row] - self.panel / 2
        self.figure.text(x / self.width, y / self.height, text, ha="right", va="center", linespacing=1.4)

    def colour_bar(self, drawn: AxesImage, column: int, label: str, *, span: int = 1) -> None:
        """Add a colour bar below the last row, starting at `column`, with the width of `span` pictures."""
        x, y = self.left + column * self.panel, float(self.tops[-1]) + self.panel + 0.02
        axes = self._axes(x, y, span * self.panel, 0.12)
        bar = self.figure.colorbar(drawn, cax=axes, orientation="horizontal", ticks=MaxNLocator(2 + span))
        bar.outline.set_visible(False)
        axes.tick_params(length=2, width=0.5, pad=1.5)
        axes.set_xlabel(label, fontsize=7, labelpad=1.5)

    def _axes(self, x: float, y: float, width: float, height: float) -> Axes:
        """Add axes with the upper left corner (x, y), slightly smaller than the given space."""
        pad = 0.025
        left, bottom = x + pad, self.height - y - height + pad
        size = ((width - 2 * pad) / self.width, (height - 2 * pad) / self.height)
        return self.figure.add_axes((left / self.width, bottom / self.height, *size))


def level_curves(axes: Axes, log: list[dict[str, Any]], term: str, title: str) -> None:
    """Plot the training curves `term/0`, `term/1`, ...: raw values in the background, smoothed in front.

    Levels are numbered as in the paper: level 1 is the finest.
    """
    steps_taken = [record for record in log if record["kind"] == "train"]
    names = sorted({key for record in steps_taken for key in record if key.startswith(f"{term}/")}, key=_level)
    if not names:
        axes.text(
            0.5, 0.5, f"no {title} terms", ha="center", va="center", transform=axes.transAxes, color="#888888"
        )
        axes.set_axis_off()
        return
    window, positive = 1, True
    for name, shade in zip(names, np.linspace(0.05, 0.85, len(names)), strict=True):
        steps, values = series(log, "train", name)
        window = max(1, len(values) // 25)
        positive = positive and bool((values > 0).all())
        colour = matplotlib.colormaps["viridis"](shade)
        level = f"level {_level(name) + 1}{' (finest)' if name == names[0] else ''}" if len(names) > 1 else None
        axes.plot(steps, values, color=colour, linewidth=0.4, alpha=0.35)
        axes.plot(steps, _running_mean(values, window), color=colour, linewidth=1.1, label=level)
    axes.set_title(f"{title} (running mean of {window})" if window > 1 else title)
    if positive:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def legend_in(key: Axes, *plots: Axes) -> None:
    """Put the legend of the first of `plots` with curves into the empty axes `key`."""
    key.set_axis_off()
    lines = next((lines for plot in plots if (lines := plot.get_legend_handles_labels()[0])), [])
    key.legend(handles=lines, loc="upper left", handlelength=2.2, borderaxespad=0)


def series(log: Iterable[dict[str, Any]], kind: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps and values of a quantity in the log."""
    pairs = [(record["step"], record[name]) for record in log if record["kind"] == kind and name in record]
    steps, values = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return steps, values


def _level(name: str) -> int:
    number = name.rpartition("/")[2]
    return int(number) if number.isdecimal() else 0


def _running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Return the running mean over `window` values, fewer at the ends."""
    kernel = np.ones(window)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")


def method_colour(place: int) -> str:
    """Return the colour of the method at this position of a comparison."""
    return METHOD_COLOURS[place % len(METHOD_COLOURS)]


def method_line(place: int) -> dict[str, Any]:
    """Return the line style of a method; the first six are solid, the next six dashed, and so on."""
    return {"color": method_colour(place), "linestyle": _DASHES[place // 6 % len(_DASHES)]}


def show(axes: Axes, values: np.ndarray, colours: str, low: float, high: float, *, title: str) -> AxesImage:
    """Show a map (H, W) without ticks and interpolation."""
    drawn = axes.imshow(values, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    axes.set_axis_off()
    axes.set_title(title, y=1, pad=2.5, fontsize=7, color="#444444")  # without y, matplotlib lays out hidden ticks
    return drawn


def show_image(axes: Axes, image: np.ndarray, *, title: str) -> AxesImage:
    """Show an image in the window -0.5 to 0.5, or clipped at the percentiles 0.5 and 99.5.

    Args:
        axes: axes of the picture.
        image: grey (H, W), or with colours (H, W, 3), which always have the window -0.5 to 0.5.
        title: text above the picture.
    """
    if image.ndim == 3:
        return show(axes, np.clip(image + 0.5, 0, 1), "gray", 0, 1, title=title)
    low, high = (-0.5, 0.5) if np.abs(image).max() <= 0.5 else np.percentile(image, [0.5, 99.5])
    return show(axes, image, "gray", float(low), float(max(high, low + 1e-6)), title=title)


def scale_bar(axes: Axes, columns: int, spacing_mm: float) -> None:
    """Draw a scale bar of a round number of millimetres in the lower left corner, at most a third of the width.

    Args:
        axes: axes of a picture.
        columns: width of the picture in pixels.
        spacing_mm: horizontal pixel spacing.
    """
    longest = columns * spacing_mm / 3 * (1 + 1e-9)  # tolerance for rounding
    power = 10.0 ** np.floor(np.log10(longest))
    length = power * max(step for step in (1, 2, 5) if step * power <= longest)
    left, share = 0.06, length / (columns * spacing_mm)
    edge = [withStroke(linewidth=3.2, foreground="black")]
    axes.plot(
        [left, left + share], [0.07, 0.07], color="white", linewidth=1.8, transform=axes.transAxes,
        solid_capstyle="butt", path_effects=edge, scalex=False, scaley=False,
    )  # fmt: skip
    axes.text(
        left, 0.11, f"{length:g} mm", transform=axes.transAxes, fontsize=6.5, color="white",
        path_effects=[withStroke(linewidth=1.4, foreground="black")],
    )  # fmt: skip


def outline(axes: Axes, labels: np.ndarray, num_classes: int) -> None:
    """Draw the outline of every foreground class of `labels` (H, W); an empty mask is marked as such."""
    for k in range(1, num_classes):
        outline_mask(axes, labels == k, class_colour(k), edge=True)
    if not ((labels > 0) & (labels < num_classes)).any():
        dark = [withStroke(linewidth=1.4, foreground="black")]
        axes.text(0.06, 0.06, "empty", transform=axes.transAxes, fontsize=6.5, color="white", path_effects=dark)


def outline_mask(axes: Axes, mask: np.ndarray, colour: str, *, width: float = 1.1, edge: bool = False) -> None:
    """Draw the outline of a mask (H, W), see `outline_masks`."""
    outline_masks(axes, mask[None], colour, width=width, edge=edge)


def outline_masks(axes: Axes, masks: np.ndarray, colour: str, *, width: float = 1.1, edge: bool = False) -> None:
    """Draw the outlines of masks (N, H, W), closed at the border of the picture, except those of empty masks.

    A dark `edge` on both sides keeps them visible on a bright picture.
    """
    rows, columns = masks.shape[1:]
    x, y = np.arange(-1, columns + 1), np.arange(-1, rows + 1)
    padded = [np.pad(mask, 1).astype(float) for mask in masks if mask.any()]
    lines = [np.asarray(line) for mask in padded for line in contour_generator(x, y, mask).lines(0.5)]
    if lines:
        drawn = LineCollection(lines, colors=[colour], linewidths=width)
        if edge:
            drawn.set_path_effects([withStroke(linewidth=width + 0.9, foreground="#000000a0")])
        axes.add_collection(drawn, autolim=False)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))


def overlay(axes: Axes, probs: np.ndarray) -> None:
    """Tint a picture by the probability of every foreground class; `probs` is (K, H, W)."""
    for k in range(1, len(probs)):
        tint = np.empty((*probs.shape[1:], 4))
        tint[..., :3] = to_rgb(class_colour(k))
        tint[..., 3] = 0.45 * np.clip(probs[k], 0, 1)
        axes.imshow(tint, interpolation="nearest", aspect=axes.get_aspect())


def class_colour(k: int) -> str:
    """Return the colour of foreground class `k`, counted from 1."""
    return CLASS_COLOURS[(k - 1) % len(CLASS_COLOURS)]


def plain(text: str) -> str:
    """Escape dollar signs, which matplotlib would interpret as mathematics."""
    return text.replace("$", r"\$")


def wrapped(text: str, *, width: int = 18, lines: int = 4) -> str:
    """Break a name into a few short lines, after hyphens only if necessary."""
    hyphens = any(len(word) > width for word in text.split())
    broken = textwrap.wrap(text, width, max_lines=lines, placeholder=" …", break_on_hyphens=hyphens)
    return plain("\n".join(broken))


def shortened(name: str, length: int) -> str:
    """Shorten a long name in the middle, because names often differ at the end."""
    return plain(name if len(name) <= length else f"{name[: length // 2 - 1]}…{name[-(length // 2) :]}")


def text_width(texts: Iterable[str]) -> float:
    """Estimate the width of the longest line of `texts` in inches."""
    return 0.2 + 0.06 * max(len(line) for text in texts for line in text.split("\n"))
