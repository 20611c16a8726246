"""Growth of time and memory with the size of the problem: a table and a figure."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from math import log
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measuring import Cost, Scale, Section, in_own_process, in_words

PICTURE, PICTURE_3D = "growth.png", "growth3d.png"


class Axis(NamedTuple):
    """A varied setting of a task, and the expected growth of time."""

    what: str
    task: str
    first: int
    """Smallest value; each further value is twice the previous one."""
    expected: str
    settings: dict[str, Any]
    """Arguments of the task; `...` is the varied value."""
    scale: dict[str, Any]
    """Changes to the default scale; `...` is the varied value."""


NETWORK = {"small": True}
AXES = (
    Axis(
        "training step by image side",
        "training_step",
        64,
        "2 (pixels)",
        {"way": "phiseg", **NETWORK},
        {"size": ...},
    ),
    Axis(
        "training step by classes",
        "training_step",
        2,
        "near 0 (only the last layers)",
        {"way": "phiseg", **NETWORK, "num_classes": ...},
        {},
    ),
    Axis(
        "16 samples by image side",
        "sampling",
        64,
        "2 (pixels)",
        {"way": "streamed", **NETWORK},
        {"size": ..., "num_samples": 16},
    ),
    Axis(
        "sampling by number of samples",
        "sampling",
        32,
        "1; memory bounded by `chunk_size`",
        {"way": "streamed", **NETWORK},
        {"num_samples": ...},
    ),
    Axis(
        "scoring by samples, including drawing",
        "streamed_scoring",
        64,
        "1, then 2 (all pairs of samples)",
        {},
        {"num_samples": ...},
    ),
    Axis(
        "scoring by annotators, including drawing",
        "streamed_scoring",
        2,
        "near 0 (few additional pairs)",
        {},
        {"num_annotators": ...},
    ),
    Axis("scoring by classes, including drawing", "streamed_scoring", 2, "1", {"num_classes": ...}, {}),
    Axis("evaluation by cases", "evaluation", 8, "1; constant memory", {}, {"num_cases": ..., "num_samples": 16}),
)
SLICES = {"batch_size": 2, "depth": ...}
SAMPLES = {"num_samples": 4, "chunk_size": 4, "depth": ...}
VOLUMES = {"volumes": True}
AXES_3D = (
    Axis("training step by slices", "training_step", 8, "1 (voxels)", {"way": "phiseg", **VOLUMES}, SLICES),
    Axis(
        "training step by slices, checkpointing",
        "training_step",
        8,
        "1 (voxels)",
        {"way": "checkpointed", **VOLUMES},
        SLICES,
    ),
    Axis("training step by slices, 2-D", "training_step", 8, "1 (images)", {"way": "phiseg", **NETWORK}, SLICES),
    Axis(
        "training step by side, 8 slices",
        "training_step",
        32,
        "2 (voxels)",
        {"way": "phiseg", **VOLUMES},
        {"batch_size": 2, "depth": 8, "size": ...},
    ),
    Axis("4 samples by slices", "sampling", 8, "1 (voxels)", {"way": "streamed", **VOLUMES}, SAMPLES),
    Axis("4 samples by slices, 2-D", "sampling", 8, "1 (images)", {"way": "streamed", **NETWORK}, SAMPLES),
)
"""Volumes with `phiseg3d-small`, and their slices with `phiseg-small`."""
STANDARD = {"batch_size": 4, "size": 64, "num_samples": 100, "chunk_size": 16}
"""Upper limit of the scale; smaller scales are kept."""


def run(scale: Scale, folder: Path) -> list[Section]:
    """Measure every axis of images and draw `growth.png` in `folder`."""
    scale = standard(scale)
    title = (
        f"Growth (phiseg-small, {scale.size} x {scale.size} pixels, batches of {scale.batch_size}, "
        "unless stated otherwise)"
    )
    return [section(title, AXES, scale, folder / PICTURE)]


def run_volumes(scale: Scale, folder: Path) -> list[Section]:
    """Measure every axis of volumes and draw `growth3d.png` in `folder`."""
    scale = standard(scale)
    title = f"Growth in 3-D (phiseg3d-small, {scale.size} x {scale.size} pixels, 2 volumes in a training step)"
    table = section(title, AXES_3D, scale, folder / PICTURE_3D)
    table.notes.append("Rows with 2-D are phiseg-small on the same slices, each as an image of the batch.")
    return [table]


def standard(scale: Scale) -> Scale:
    """Return the scale with the upper limits of `STANDARD`."""
    return replace(scale, **{name: min(most, getattr(scale, name)) for name, most in STANDARD.items()})


def section(title: str, all_axes: Sequence[Axis], scale: Scale, picture: Path) -> Section:
    """Measure axes and draw them in `picture`."""
    table = Section(title, ("what", "values", "time", "MB above start", "exponent of time", "expected"))
    curves = []
    for axis in all_axes:
        values = [axis.first * 2**point for point in range(scale.growth)]
        costs = [measure(axis, value, scale) for value in values]
        curves.append((axis, values, costs))
        power = exponent(values, [cost.seconds for cost in costs])
        table.rows.append(
            [
                axis.what,
                ", ".join(map(str, values)),
                ", ".join(in_words(cost.seconds) for cost in costs),
                ", ".join(f"{cost.extra:.0f}" for cost in costs),
                f"{power:.2f}",
                axis.expected,
            ]
        )
    draw(curves, picture)
    table.notes.append(f"![time and memory]({picture.name})")
    table.notes.append(
        "The exponent p of time ~ n^p comes from the last two points, where fixed costs matter least."
    )
    return table


def measure(axis: Axis, value: int, scale: Scale) -> Cost:
    """Return the time and memory of one point, measured in a separate process."""

    def filled(settings: dict[str, Any]) -> dict[str, Any]:
        return {key: value if setting is ... else setting for key, setting in settings.items()}

    changed = replace(scale, **filled(axis.scale))
    return in_own_process(axis.task, repeats=2, scale=asdict(changed), **filled(axis.settings))


def exponent(values: Sequence[float], seconds: Sequence[float]) -> float:
    """Return p of seconds ~ values^p between the last two points.

    >>> exponent([1, 2, 4], [1.0, 3.0, 12.0])
    2.0
    """
    return log(seconds[-1] / seconds[-2]) / log(values[-1] / values[-2])


def draw(curves: Sequence[tuple[Axis, Sequence[int], Sequence[Cost]]], path: Path) -> None:
    """Draw time and memory of each axis on logarithmic scales, with lines of proportional growth."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(2, (len(curves) + 1) // 2, figsize=(16, 7), layout="constrained")
    for axes, (axis, values, costs) in zip(grid.flat, curves, strict=False):
        seconds = [cost.seconds for cost in costs]
        axes.loglog(values, seconds, "o-", color="tab:blue")
        axes.loglog(values, [seconds[0] * value / values[0] for value in values], ":", color="tab:gray")
        axes.set(title=axis.what, xticks=values, xticklabels=values)
        axes.minorticks_off()
        axes.tick_params(axis="y", colors="tab:blue")
        axes.set_ylabel("seconds", color="tab:blue")
        memory = axes.twinx()
        memory.plot(values, [cost.extra for cost in costs], "s--", color="tab:orange")
        memory.set_ylim(bottom=0)
        memory.tick_params(axis="y", colors="tab:orange")
        memory.set_ylabel("MB", color="tab:orange")
    figure.suptitle("Time (blue; dotted: proportional) and memory above the start (orange)")
    figure.savefig(path, dpi=80)
    plt.close(figure)
