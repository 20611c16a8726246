"""Measure everything and write benchmarks/results.md.

python -m benchmarks                     # all of it; wants a machine that does nothing else
python -m benchmarks scoring memory      # some of it, printed only
python -m benchmarks --quick             # at toy sizes, to see whether it runs; printed only
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import growth, loader, memory, sampling, scoring, startup, training
from benchmarks.measuring import QUICK, Scale, Section, machine

FOLDER = Path(__file__).parent
BENCHMARKS: dict[str, Callable[[Scale, Path], list[Section]]] = {
    "training": lambda scale, _: training.run(scale),
    "sampling": lambda scale, _: sampling.run(scale),
    "scoring": lambda scale, _: scoring.run(scale),
    "loader": lambda scale, _: loader.run(scale),
    "memory": lambda scale, _: memory.run(scale),
    "startup": lambda scale, _: startup.run(scale),
    "growth": growth.run,
}
HEAD = """# What phiseg costs

Made by `make bench`; [README.md](README.md) says how to read it. Times are medians of turns, ± half of what lies
between the fastest and the slowest.

{machine}
"""


def main() -> None:
    """Run the benchmarks that are asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="toy sizes; the numbers mean nothing")
    options = parser.parse_args()
    unknown = sorted({*options.names} - {*BENCHMARKS})
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}")
    scale = QUICK if options.quick else Scale()
    names = options.names or list(BENCHMARKS)
    writes = not options.quick and names == list(BENCHMARKS)
    sections: list[Section] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        for number, name in enumerate(names, start=1):
            start = time.perf_counter()
            print(f"[{number}/{len(names)}] {name} ...", file=sys.stderr, flush=True)
            try:
                found = BENCHMARKS[name](scale, FOLDER if writes else Path(temporary))
            except Exception as error:  # what the others found is kept
                failed.append(name)
                found = [Section(f"{name}: failed", ("error",), [[f"{type(error).__name__}: {error}"]])]
            print(f"    {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
            for section in found:
                print(f"{section.markdown()}\n", flush=True)
            sections += found
    if writes:
        text = "\n\n".join([HEAD.format(machine=machine()).strip(), *(part.markdown() for part in sections)])
        (FOLDER / "results.md").write_text(f"{text}\n", encoding="utf-8")
        print(f"written to {FOLDER.name}/results.md", file=sys.stderr)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
