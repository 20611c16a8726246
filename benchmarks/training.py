"""The training step, compared with the plain implementation and with the peak performance of the machine."""

from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measuring import COMPARISON, Scale, Section, comparison, in_turns, in_words
from benchmarks.tasks import training_step


def run(scale: Scale) -> list[Section]:
    """Time a step of both implementations, of phiseg with channels last, and a large matrix product in turns."""
    matrix = torch.randn(scale.matmul, scale.matmul)
    ways = ("plain", "phiseg", "channels_last", "checkpointed")
    actions = [*(training_step(way, scale) for way in ways), lambda: matrix @ matrix]
    *steps, product = in_turns(actions, scale.repeats)
    del actions  # free the memory of four networks before profiling
    plain, *ours = steps
    what = ("training step", "- with channels last always", "- with `train.checkpoint_activations`")
    targets = ("at least 2 x", "", "")
    table = Section("Training step", COMPARISON)
    table.rows = [comparison(*row) for row in zip(what, [plain] * 3, ours, targets, strict=True)]

    flops = {way: sum(step_flops(way, scale).values()) for way in ("plain", "phiseg")}
    peak = 2 * scale.matmul**3 / product.median
    share = Section(
        "Training step: share of peak performance", ("what", "GFLOP", "GFLOP/s", "share of peak", "target")
    )
    share.rows.append([f"{scale.matmul} x {scale.matmul} matrix product", "", f"{peak / 1e9:.0f}", "100 %", ""])
    timed = zip(("plain", *what), steps, strict=True)
    for (name, timing), target in zip(timed, ("", "at least 80 %", "", ""), strict=True):
        work = flops["plain" if name == "plain" else "phiseg"]  # recomputation counts once
        speed = work / timing.median
        share.rows.append([name, f"{work / 1e9:.0f}", f"{speed / 1e9:.0f}", f"**{speed / peak:.0%}**", target])
    share.notes.append("FLOPs counted by torch for convolutions and their gradients; a multiply-add counts as two.")
    return [table, share, where_the_time_goes(scale, peak)]


def step_flops(way: str, scale: Scale) -> dict[str, float]:
    """Return the FLOPs of a step by operator, counted on two images and scaled to the batch."""
    action = training_step(way, replace(scale, batch_size=2))
    with FlopCounterMode(display=False) as counter:
        action()
    counts = counter.get_flop_counts()["Global"]
    return {str(operator): flops * scale.batch_size / 2 for operator, flops in counts.items()}


OPERATORS = {
    "convolutions": ("aten::mkldnn_convolution", "aten::thnn_conv2d", "aten::_slow_conv2d_forward"),
    "- their gradients": ("aten::convolution_backward",),
    "batch norm and its gradient": ("aten::native_batch_norm", "aten::native_batch_norm_backward"),
    "ReLU and its gradient": ("aten::clamp_min_", "aten::threshold_backward"),
    "downsampling, upsampling and their gradients": (
        *("aten::avg_pool2d", "aten::avg_pool2d_backward"),
        *("aten::upsample_bilinear2d", "aten::upsample_bilinear2d_backward"),
    ),
}


def where_the_time_goes(scale: Scale, peak: float) -> Section:
    """Profile one step by operator, and compare the speed of convolutions with the matrix product."""
    action = training_step("phiseg", scale)
    action()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        for _ in range(scale.repeats):
            action()
    events = trace.key_averages()
    seconds = {event.key: event.self_cpu_time_total / 1e6 / scale.repeats for event in events}
    total = sum(seconds.values())
    flops = step_flops("phiseg", scale)
    work = {"convolutions": "aten.convolution", "- their gradients": "aten.convolution_backward"}
    section = Section("Training step: where the time goes", ("what", "time", "share of step", "share of peak"))
    for what, operators in OPERATORS.items():
        spent = sum(seconds.pop(operator, 0.0) for operator in operators)
        speed = f"{flops[work[what]] / spent / peak:.0%}" if what in work and spent else ""
        section.rows.append([what, in_words(spent), f"{spent / total:.0%}", speed])
    rest = sum(seconds.values())
    section.rows.append(["other: losses, latents, copies, optimiser", in_words(rest), f"{rest / total:.0%}", ""])
    section.notes.append(f"Mean of {scale.repeats} steps, measured with torch's profiler.")
    return section
