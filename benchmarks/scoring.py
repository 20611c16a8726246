"""GED, S_NCC and HM-IoU: time compared with loops over pairs, and memory with many samples."""

from dataclasses import asdict, replace

from benchmarks.measuring import COMPARISON, Scale, Section, Timing, comparison, in_own_process, in_turns, in_words
from benchmarks.tasks import Action, scoring

TIMES = 5
"""Repetitions per round, because a single run takes only milliseconds."""


def run(scale: Scale) -> list[Section]:
    """Time the three scores of one image in both implementations, and measure memory with many samples."""
    actions = [scoring(way, scale) for way in ("plain", "phiseg", "logits")]
    timings = in_turns([_again(action) for action in actions], scale.repeats)
    plain, ours, from_logits = (Timing(tuple(time / TIMES for time in timing.seconds)) for timing in timings)
    table = Section("Scoring one image", COMPARISON)
    what = f"GED, S_NCC and HM-IoU of {scale.num_samples} samples and {scale.num_annotators} annotators"
    table.rows.append(comparison(what, plain, ours, "at least 50 x"))
    table.rows.append(
        comparison("the same; phiseg starts from logits, as in `phiseg evaluate`", plain, from_logits)
    )
    expected, *others = (action() for action in actions)
    worst = max(abs(expected[name] - found[name]) for name in expected for found in others)
    table.notes.append(f"Largest difference between plain and phiseg scores: {worst:.1e} (target: at most 1e-6).")

    memory = Section(
        "Scoring many samples",
        ("samples", "time, including drawing", "peak MB", "MB above torch and one image"),
    )
    for number in (scale.num_samples, scale.many_samples):
        settings = asdict(replace(scale, num_samples=number))
        cost = in_own_process("streamed_scoring", repeats=1, scale=settings)
        memory.rows.append([str(number), in_words(cost.seconds), f"{cost.peak:.0f}", f"{cost.extra:.0f}"])
    memory.notes.append(
        "All scores of `phiseg evaluate`. Samples are reduced as they are drawn: only the labels of each sample "
        "(one byte per pixel) and two maps are kept. Pairs are compared by matrix products over a fixed number of "
        "pixels."
    )
    return [table, memory]


def _again(action: Action) -> Action:
    return lambda: [action() for _ in range(TIMES)]
