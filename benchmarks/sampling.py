"""Samples of one image: against the plain way, against the decoder alone, and their memory."""

from dataclasses import asdict, replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measuring import COMPARISON, Scale, Section, comparison, in_own_process, in_turns, in_words
from benchmarks.tasks import sampling


def run(scale: Scale) -> list[Section]:
    """Time and weigh the sampling of one image."""
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
        comparison(f"{scale.num_samples} samples, one after the other", plain, ours, "at least 8 x"),
        comparison(f"{few.num_samples} samples, copies of the image as a batch", tiled, ours_few),
    ]
    table.notes.append(_flops(scale))

    each = Section("Sampling: what a further sample costs", ("what", "a sample", "of the decoder alone", "wanted"))
    number = scale.num_samples
    further = (ours.median - first.median) / (number - 1)
    for what, seconds, target in (
        ("the decoder alone", decoder.median / number, ""),
        (f"phiseg, a further sample (of {number})", further, "near 100 %"),
        ("plain, a further sample", plain.median / number, ""),
    ):
        each.rows.append([what, in_words(seconds), f"{seconds * number / decoder.median:.0%}", target])

    memory = Section("Sampling: memory", ("samples", "decoded at once", "peak MB", "MB beyond weights and torch"))
    for num_samples, chunk in ((number, scale.chunk_size), (4 * number, scale.chunk_size), (number, number)):
        settings = asdict(replace(scale, num_samples=num_samples, chunk_size=chunk))
        cost = in_own_process("sampling", repeats=0, way="streamed", scale=settings)
        memory.rows.append([str(num_samples), str(chunk), f"{cost.peak:.0f}", f"{cost.extra:.0f}"])
    memory.notes.append(
        "`chunk_size` bounds the memory, the number of samples does not: what is kept of a sample is its labels, "
        f"{scale.size**2 / 1024:.0f} KB."
    )
    return [table, each, memory]


def _flops(scale: Scale) -> str:
    """Say how much a sample's work can shrink at most when the encoder runs once."""
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
        f"A sample by the whole network is {whole / 1e9:.2f} GFLOP; a further one without the encoder "
        f"{further / 1e9:.2f}. So, at equal speed of the machine, not running the encoder again can gain "
        f"{whole / further:.2f} x and no more; the rest is how fast the decoder's convolutions run."
    )
