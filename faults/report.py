"""The page that tells what was tried and what was lost."""

from collections.abc import Sequence

from .record import Part

PAGE = """\
# Faults survived

What happens to phiseg when processes are killed, disks fill up, files are damaged and numbers make no sense, tried
out by a program (`faults/` in the repository), which wrote this page:

```sh
make faults
```

Run on: {where}, seed {seed}. In all: **{tried:,} faults, {lost}**.

{parts}
## What this does not show

Power cuts and network file systems, which may lose what was flushed; GPUs; several machines; faults of memory;
Windows and macOS. Damage is drawn at random from good files: that none of thousands of inputs did harm does not
prove that none can. What is trusted and what is not:
[the threat model](../SECURITY.md#what-is-trusted-and-what-is-not).
"""


def describe(parts: Sequence[Part], seed: int, where: str) -> str:
    """Return the page."""
    tried = sum(row.times for part in parts for row in part.rows)
    losses = sum(len(part.losses) for part in parts)
    lost = f"{losses:,} lost" if losses else "nothing lost"
    return PAGE.format(where=where, seed=seed, tried=tried, lost=lost, parts="\n".join(map(_describe, parts)))


def _describe(part: Part) -> str:
    lines = [f"## {part.title}", "", part.how, "", "| what | times | seen | lost |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.times:,} | {row.seen} | {row.lost} |" for row in part.rows]
    if part.losses:
        lines += [
            "",
            "Lost:",
            "",
            *(f"- {loss}".replace("|", "/").replace("<", "\\<") for loss in part.losses[:50]),
        ]
    return "\n".join(lines) + "\n"
