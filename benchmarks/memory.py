"""Peak memory of a training step, measured in separate processes."""

from dataclasses import asdict

from benchmarks.measuring import Scale, Section, in_own_process


def run(scale: Scale) -> list[Section]:
    """Measure the memory of two training steps; the state of the optimiser exists from the second step on."""
    table = Section(
        f"Memory of a training step ({scale.batch_size} images of {scale.size} x {scale.size})",
        ("what", "peak MB", "relative to plain", "MB above weights and torch", "relative to plain", "target"),
    )
    names = {
        "plain": "plain",
        "phiseg": "phiseg",
        "checkpointed": "phiseg with `train.checkpoint_activations`",
    }
    costs = {way: in_own_process("training_step", repeats=1, way=way, scale=asdict(scale)) for way in names}
    plain = costs["plain"]
    for way, cost in costs.items():
        peak, extra = (f"{a:.0f}" for a in (cost.peak, cost.extra))
        shares = (f"{cost.peak / plain.peak:.0%}", f"{cost.extra / plain.extra:.0%}")
        target = "at most 50 %" if way == "checkpointed" else ""
        table.rows.append([names[way], peak, f"**{shares[0]}**", extra, shares[1], target])
    return [table]
