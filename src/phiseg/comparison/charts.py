"""The charts of a comparison: scores, terms of the GED, paired cases, calibration and training curves.

Every function returns a new matplotlib `Figure`. A method has the same colour in all charts.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from phiseg.comparison.tables import excess_ged, method_names
from phiseg.evaluation.evaluation_folder import Evaluation
from phiseg.evaluation.summary import defined
from phiseg.metrics.score_registry import SCORES
from phiseg.plotting.primitives import (
    legend_in,
    level_curves,
    method_colour,
    method_line,
    series,
    shortened,
    style,
    wrapped,
)

WIDTH = 11.4
"""Width of a chart in inches, about that of a panel with eight samples."""
_TERMS = ("ged", "ged_cross", "ged_within_samples", "ged_within_annotations", "ged_floor")
_LENGTH = 24
"""Maximum length of a name next to a small chart."""
_MINUS = "\N{MINUS SIGN}"


def ged_terms(evaluations: Sequence[Evaluation]) -> Figure:
    """Show the mean GED = 2 E d(s, y) - E d(s, s') - E d(y, y') of each method with its three terms.

    The length of a bar is the first term. The distances between samples and between annotations are subtracted from
    its right end. The remaining part is the GED, to be compared with the floor.
    """
    names = [wrapped(name, width=24, lines=2) for name in method_names(evaluations)]
    places = (0.22, 0.47, 0.72, 0.97)  # positions of the numbers next to the bars
    with style():
        figure = Figure(figsize=(WIDTH, 1.0 + 0.34 * len(names)), layout="constrained")
        axes, key = figure.subplots(1, 2, sharey=True, width_ratios=(1, 0.42))
        floors = []
        for place, evaluation in enumerate(evaluations):
            columns = [evaluation.cases[name] for name in _TERMS]
            known = [row for row in zip(*columns, strict=True) if None not in row]
            if not known:
                key.text(0, place, "no GED", va="center", color="#888888")
                continue
            ged, cross, samples, annotations, floor = np.mean(known, axis=0)
            floors.append(floor)
            colour = method_colour(place)
            axes.barh(place, ged, height=0.62, color=colour)
            axes.barh(place, samples, left=ged, height=0.62, color=_paler(colour))
            axes.barh(place, annotations, left=ged + samples, height=0.62, color="#dddddd")
            texts = f"{2 * cross:.3f}", f"{_MINUS} {samples:.3f}", f"{_MINUS} {annotations:.3f}", f"= {ged:.3f}"
            for x, text in zip(places, texts, strict=True):
                weight = "bold" if text.startswith("=") else "normal"
                key.text(x, place, text, va="center", ha="right", fontsize=8, fontweight=weight)
        for x, text in zip(places, ("2 E d(s, y)", "E d(s, s')", "E d(y, y')", "GED"), strict=True):
            key.text(x, -0.75, text, ha="right", va="center", fontsize=7, color="#444444")
        mark: dict[str, Any] = {"color": "black", "linewidth": 1.1, "linestyle": (0, (3, 2))}
        different = sorted({round(float(floor), 6) for floor in floors})
        for floor in different:
            axes.axvline(floor, **mark)
        axes.set_ylim(len(names) - 0.5, -1.05)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlim(left=0)
        axes.set_xlabel("mean over the cases")
        key.set_xlim(0, 1)
        key.set_axis_off()
        parts = [
            Patch(color="#777777", label="GED: the remainder"),
            Patch(color=_paler("#777777"), label=f"{_MINUS} E d(s, s'), between samples"),
            Patch(color="#dddddd", label=f"{_MINUS} E d(y, y'), between annotations"),
            Line2D([], [], label=" ".join(["floor of the GED", *(f"{floor:.3f}" for floor in different)]), **mark),
        ]
        title = "Length of a bar: 2 E d(s, y), between samples and annotations"
        figure.legend(handles=parts, loc="outside upper center", ncols=4, title=title, title_fontsize=8)
    return figure


def case_scatter(evaluations: Sequence[Evaluation], *, max_rivals: int = 4) -> Figure:
    """Show the excess GED per case, for the method with the lowest mean against the next best methods.

    Points above the diagonal are cases in which the best method is better. Methods without a GED are omitted.

    Args:
        evaluations: at least two evaluations with a GED, on the same cases.
        max_rivals: maximum number of other methods.
    """
    names = method_names(evaluations)
    scores = {
        place: dict(zip(evaluation.cases["case"], excess_ged(evaluation), strict=True))
        for place, evaluation in enumerate(evaluations)
    }
    means = {place: np.mean(known) for place, values in scores.items() if (known := defined([*values.values()]))}
    best, *rivals = sorted(means, key=means.__getitem__)[: 1 + max_rivals]
    pairs = {place: _pairs(scores[best], scores[place]) for place in rivals}
    everything = np.concatenate([*pairs.values()], axis=None)
    low, high = everything.min(initial=0), everything.max(initial=0.1)
    margin = 0.04 * (high - low)
    with style():
        figure = Figure(figsize=(0.3 + len(rivals) * (WIDTH - 0.3) / 4, 3.55), layout="constrained")
        all_axes = figure.subplots(1, len(rivals), sharex=True, sharey=True, squeeze=False)[0]
        for axes, place in zip(all_axes, rivals, strict=True):
            x, y = pairs[place]
            axes.axline((0, 0), slope=1, color="#888888", linewidth=0.8)
            opacity = float(np.clip(100 / (len(x) + 1), 0.2, 0.8))
            axes.scatter(x, y, s=9, color=method_colour(place), alpha=opacity, linewidths=0)
            axes.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin), box_aspect=1)
            shares = [(best, np.mean(x < y)), (place, np.mean(y < x))] if len(x) else []
            lines = [f"{shortened(names[at], _LENGTH)} better in {share:.0%}" for at, share in shares]
            axes.set_title("\n".join(lines), loc="left", fontsize=7)
            axes.set_xlabel(shortened(names[best], _LENGTH), color=method_colour(best), fontweight="bold")
            axes.set_ylabel(shortened(names[place], _LENGTH), color=method_colour(place), fontweight="bold")
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.yaxis.set_major_locator(MaxNLocator(5))
            axes.grid(color="#eeeeee", linewidth=0.5)
            axes.set_axisbelow(True)
        figure.suptitle("excess GED per case (lower is better)", fontsize=8)
    return figure


def reliability_diagram(evaluations: Sequence[Evaluation], *, max_classes: int = 3) -> Figure:
    """Show the share of annotators by the probability in the mean prediction, and the numbers of pixels below.

    A calibrated method is on the diagonal: at a probability of 0.3, three of ten annotators marked the pixel. Each
    foreground class has a separate diagram. The calibration error (ECE) next to the name of a method is over all
    classes.

    Args:
        evaluations: evaluations, at least one with a reliability table.
        max_classes: maximum number of foreground classes, those with the most annotated pixels.
    """
    names = [shortened(name, _LENGTH) for name in method_names(evaluations)]
    known = [(place, own.reliability) for place, own in enumerate(evaluations) if own.reliability is not None]
    areas = np.sum([table[:, :, 2].sum(axis=1) for _, table in known], axis=0)  # (K-1,)
    classes = sorted(np.argsort(-areas, kind="stable")[:max_classes])
    class_names = evaluations[0].examples.class_names
    with style():
        figure = Figure(figsize=(2.4 + 3.0 * len(classes), max(4.2, 0.3 + 0.29 * len(known))), layout="constrained")
        grid = figure.add_gridspec(
            2, len(classes) + 1, height_ratios=(3, 1), width_ratios=[3.0] * len(classes) + [2.4]
        )
        for column, k in enumerate(classes):
            curves = figure.add_subplot(grid[0, column])
            counts = figure.add_subplot(grid[1, column], sharex=curves)
            curves.plot([0, 1], [0, 1], color="#888888", linewidth=0.8)
            for place, table in known:
                pixels, probs, votes = table[k].T  # (B,) each
                filled = pixels > 0
                line = method_line(place) | {"linewidth": 1.2}
                error = evaluations[place].summary.ece
                label = names[place] if error is None else f"{names[place]}\nECE {error:.4f}"
                x, y = probs[filled] / pixels[filled], votes[filled] / pixels[filled]
                curves.plot(x, y, marker="o", markersize=2.6, label=label, **line)
                counts.stairs(pixels, np.linspace(0, 1, len(pixels) + 1), baseline=None, **line)
            curves.set(xlim=(0, 1), ylim=(0, 1), box_aspect=1)
            curves.set_title(shortened(class_names[k + 1], _LENGTH) if len(areas) > 1 else "")
            curves.set_ylabel("share of annotators" if column == 0 else "")
            curves.tick_params(labelbottom=False)
            counts.set(yscale="log", box_aspect=0.3)
            counts.set_xlabel("probability in the mean prediction")
            counts.set_ylabel("pixels" if column == 0 else "")
            for axes in (curves, counts):
                axes.grid(color="#eeeeee", linewidth=0.5)
                axes.set_axisbelow(True)
        legend_in(figure.add_subplot(grid[:, -1]), curves)
    return figure


def training_curves(evaluations: Sequence[Evaluation]) -> Figure:
    """Show the training curves, one row per method, because losses of different models are not comparable.

    A row has the validation loss, and the training cross entropy and KL per level. Below is the validation GED of
    all methods.
    """
    trained = [
        (place, name, evaluation.training)
        for place, (name, evaluation) in enumerate(zip(method_names(evaluations), evaluations, strict=True))
        if evaluation.training
    ]
    together = [(place, name, *series(log, "val", "ged")) for place, name, log in trained]
    together = [curve for curve in together if len(curve[2])]
    num_rows = max(1, len(trained) + bool(together))
    heights = [1.9 if len(trained) < 5 else 1.5] * len(trained)
    heights += [max(2.4, 0.6 + 0.15 * len(together))] if together else []
    with style():
        figure = Figure(figsize=(WIDTH, sum(heights) or 2.2), layout="constrained")
        grid = figure.add_gridspec(num_rows, 4, width_ratios=(1, 1, 1, 0.5), height_ratios=heights or None)
        for row, (place, name, log) in enumerate(trained):
            loss, entropy, divergence, key = (figure.add_subplot(grid[row, column]) for column in range(4))
            loss.plot(*series(log, "val", "loss"), color=method_colour(place), linewidth=1.2)
            loss.set_title("validation loss")
            loss.set_ylabel(wrapped(name), color=method_colour(place), fontweight="bold")
            level_curves(entropy, log, "cross_entropy", "training cross entropy")
            level_curves(divergence, log, "kl", "training KL")
            legend_in(key, divergence, entropy)
        if together:
            shared, key = figure.add_subplot(grid[-1, :3]), figure.add_subplot(grid[-1, 3])
            for place, name, steps, values in together:
                shared.plot(steps, values, **method_line(place), linewidth=1.4, label=shortened(name, _LENGTH))
            shared.set_title("validation GED, all methods")
            legend_in(key, shared)
        for axes in figure.axes:
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.grid(axis="y", color="#e6e6e6", linewidth=0.5)
            axes.set_axisbelow(True)
            if (position := axes.get_subplotspec()) and position.is_last_row():
                axes.set_xlabel("step")
    return figure


def score_distributions(evaluations: Sequence[Evaluation]) -> Figure:
    """Show the scores of all cases: a box plot (whiskers of 1.5 interquartile ranges) over one dot per case."""
    names = [wrapped(name) for name in method_names(evaluations)]
    panels = {"excess GED (lower is better)": [defined(excess_ged(e)) for e in evaluations]}
    for score in map(SCORES.__getitem__, ("s_ncc", "dice", "hm_iou")):
        title = f"{score.latex or score.heading} ({score.better} is better)"
        panels[title] = [defined(e.cases.get(score.name, [])) for e in evaluations]
    panels = {title: scores for title, scores in panels.items() if any(scores)}
    generator = np.random.default_rng(0)  # jitter of the dots
    with style():
        figure = Figure(figsize=(WIDTH, 0.8 + 0.45 * len(names)), layout="constrained")
        all_axes = figure.subplots(1, max(len(panels), 1), sharey=True, squeeze=False)[0]
        for axes, (title, scores) in zip(all_axes, panels.items(), strict=False):
            for place, values in enumerate(scores):
                colour = method_colour(place)
                heights = place + generator.uniform(-0.22, 0.22, len(values))
                opacity = min(0.5, 20 / (len(values) + 1))
                axes.scatter(values, heights, s=5, color=colour, alpha=opacity, linewidths=0)
                line = {"color": colour, "linewidth": 1.0}
                median = line | {"linewidth": 2.0}
                axes.boxplot(
                    [values], positions=[place], orientation="horizontal", widths=0.5, showfliers=False,
                    boxprops=line, whiskerprops=line, capprops=line, medianprops=median,
                )  # fmt: skip
            axes.set_title(title)
            axes.tick_params(axis="y", length=0)
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.grid(axis="x", color="#e6e6e6", linewidth=0.5)
            axes.set_axisbelow(True)
            axes.set_ylim(len(names) - 0.5, -0.5)
        all_axes[0].set_yticks(range(len(names)), names, fontsize=8)
    return figure


def _pairs(one: dict[str, float | None], two: dict[str, float | None]) -> np.ndarray:
    """Return the values of the common cases, (2, N)."""
    known = [(value, two[case]) for case, value in one.items() if None not in (value, two[case])]
    return np.array(known, dtype=np.float64).reshape(-1, 2).T


def _paler(colour: str) -> str:
    red, green, blue = (1 - 0.42 * (1 - part) for part in to_rgb(colour))
    return to_hex((red, green, blue))
