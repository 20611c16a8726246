"""Sampling of one image: time compared with the plain implementation and with the decoder alone, and memory."""

from dataclasses import asdict, replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measuring import COMPARISON, Scale, Section, comparison, in_own_process, in_turns, in_words
from benchmarks.tasks import sampling


def run(scale: Scale) -> list[Section]:
    """Measure time and memory of sampling one image."""
    few = replace(scale, num_samples=min(16, scale.num_samples))
    single = replace(scale, num_samples=1)
    actions = [
        *(sampling(way, scale) for way in ("plain", "phiseg", "decoder")),
        *(sampling(way, few) for way in ("tiled", "phiseg")),
        sampling("phiseg", single),
    ]
    plain, ours, decoder, tiled, ours_few, first = in_turns(actions, scale.repeats)
    table = Section("Sampling one image", COMPARISON)
    table.rows = [
        comparison(f"{scale.num_samples} samples (plain: one at a time)", plain, ours, "at least 8 x"),
        comparison(f"{few.num_samples} samples (plain: a batch of image copies)", tiled, ours_few),
    ]
    table.notes.append(_flops(scale))

    each = Section(
        "Sampling: cost of an additional sample", ("what", "time per sample", "relative to the decoder", "target")
    )
    number = scale.num_samples
    further = (ours.median - first.median) / (number - 1)
    for what, seconds, target in (
        ("decoder alone", decoder.median / number, ""),
        (f"phiseg, additional sample (of {number})", further, "near 100 %"),
        ("plain, additional sample", plain.median / number, ""),
    ):
        each.rows.append([what, in_words(seconds), f"{seconds * number / decoder.median:.0%}", target])

    memory = Section("Sampling: memory", ("samples", "chunk size", "peak MB", "MB above weights and torch"))
    for num_samples, chunk in ((number, scale.chunk_size), (4 * number, scale.chunk_size), (number, number)):
        settings = asdict(replace(scale, num_samples=num_samples, chunk_size=chunk))
        cost = in_own_process("sampling", repeats=0, way="streamed", scale=settings)
        memory.rows.append([str(num_samples), str(chunk), f"{cost.peak:.0f}", f"{cost.extra:.0f}"])
    memory.notes.append(
        "Memory depends on `chunk_size`, and hardly on the number of samples: only the labels of each sample "
        f"are kept, {scale.size**2 / 1024:.0f} KB."
    )
    return [table, each, memory]


def _flops(scale: Scale) -> str:
    """Return a note on the largest possible gain from running the encoder only once."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        sampling("plain", replace(scale, num_samples=1))()
    whole = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        sampling("phiseg", replace(scale, num_samples=1))()
        once = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        sampling("phiseg", replace(scale, num_samples=2, chunk_size=2))()
        further = counter.get_total_flops() - once
    return (
        f"A sample with the whole network takes {whole / 1e9:.2f} GFLOP; an additional sample without the encoder "
        f"takes {further / 1e9:.2f}. So running the encoder only once can gain at most {whole / further:.2f} x. "
        "The rest depends on the speed of the decoder's convolutions."
    )
