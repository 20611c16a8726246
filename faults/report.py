"""The page that tells what was tried and what was lost."""

from collections.abc import Sequence

from .record import Part

PAGE = """\
# Faults survived

What happens to phiseg when processes are killed, disks fill up, files are damaged and numbers make no sense, tried
out by a program (`faults/` in the repository), which wrote this page:

```sh
{command}
```

Run on: {where}, seed {seed}. In all: **{tried:,} faults, {lost}**.{left_out}

{parts}
## What this does not show

Power cuts and network file systems, which may lose what was flushed; GPUs; several machines; faults of memory;
Windows and macOS. Damage is drawn at random from good files: that none of these inputs did harm does not
prove that none can. What is trusted and what is not:
[the threat model](../SECURITY.md#what-is-trusted-and-what-is-not).
"""


def describe(parts: Sequence[Part], *, command: str, seed: int, where: str, left_out: Sequence[str] = ()) -> str:
    """Return the page; `left_out` are the parts that were not run."""
    losses = sum(part.lost for part in parts)
    return PAGE.format(
        command=command,
        where=where,
        seed=seed,
        tried=sum(part.tried for part in parts if part.of_faults),
        lost=f"{losses:,} lost" if losses else "nothing lost",
        left_out=f" Not run: {', '.join(left_out)}." if left_out else "",
        parts="\n".join(map(_describe, parts)),
    )


def _describe(part: Part) -> str:
    lines = [f"## {part.title}", "", part.how, "", "| what | times | seen | lost |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.times:,} | {row.seen} | {row.lost} |" for row in part.rows]
    if part.tried < part.asked:
        lines += ["", f"It was to try {part.asked:,}; there was time for {part.tried:,}."]
    if part.losses:
        lines += [
            "",
            "Lost:",
            "",
            *(f"- {loss}".replace("|", "/").replace("<", "\\<") for loss in part.losses[:50]),
        ]
    return "\n".join(lines) + "\n"
