"""The training step: against the plain way, and against what the machine can multiply."""

from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measuring import COMPARISON, Scale, Section, comparison, in_turns
from benchmarks.tasks import training_step


def run(scale: Scale) -> list[Section]:
    """Time a step of both, of phiseg in the other memory layout, and a large product of matrices, in turns."""
    matrix = torch.randn(scale.matmul, scale.matmul)
    ways = ("plain", "phiseg", "channels_last", "checkpointed")
    actions = [*(training_step(way, scale) for way in ways), lambda: matrix @ matrix]
    *steps, product = in_turns(actions, scale.repeats)
    plain, *ours = steps
    what = ("a training step", "- with channels last in any case", "- with `train.checkpoint_activations`")
    targets = ("at least 2 x", "", "")
    table = Section("Training step", COMPARISON)
    table.rows = [comparison(*row) for row in zip(what, [plain] * 3, ours, targets, strict=True)]

    flops = {way: step_flops(way, scale) for way in ("plain", "phiseg")}
    peak = 2 * scale.matmul**3 / product.median
    share = Section(
        "Training step: share of the machine's peak", ("what", "GFLOP", "GFLOP/s", "of the peak", "wanted")
    )
    share.rows.append([f"matrix product of side {scale.matmul}", "", f"{peak / 1e9:.0f}", "100 %", ""])
    timed = zip(("plain", *what), steps, strict=True)
    for (name, timing), target in zip(timed, ("", "at least 80 %", "", ""), strict=True):
        work = flops["plain" if name == "plain" else "phiseg"]  # of use: what is computed twice counts once
        speed = work / timing.median
        share.rows.append([name, f"{work / 1e9:.0f}", f"{speed / 1e9:.0f}", f"**{speed / peak:.0%}**", target])
    share.notes.append("FLOPs by torch's counter: convolutions and their gradients, a multiply-add counts two.")
    return [table, share]


def step_flops(way: str, scale: Scale) -> float:
    """Return the FLOPs of a step, counted on two images: they grow with the batch in proportion."""
    action = training_step(way, replace(scale, batch_size=2))
    with FlopCounterMode(display=False) as counter:
        action()
    return float(counter.get_total_flops()) * scale.batch_size / 2
