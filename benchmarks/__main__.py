"""Run the benchmarks and write benchmarks/results.md.

python -m benchmarks                     # all benchmarks; needs an otherwise idle machine
python -m benchmarks scoring memory      # some benchmarks; prints the results only
python -m benchmarks --quick             # toy sizes, to check that everything runs; prints the results only
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import clicks, growth, loader, memory, sampling, scoring, startup, training
from benchmarks.measuring import QUICK, Scale, Section, machine

FOLDER = Path(__file__).parent
BENCHMARKS: dict[str, Callable[[Scale, Path], list[Section]]] = {
    "training": lambda scale, _: training.run(scale),
    "sampling": lambda scale, _: sampling.run(scale),
    "scoring": lambda scale, _: scoring.run(scale),
    "loader": lambda scale, _: loader.run(scale),
    "memory": lambda scale, _: memory.run(scale),
    "startup": lambda scale, _: startup.run(scale),
    "clicks": lambda scale, _: clicks.run(scale),
    "growth": growth.run,
    "growth3d": growth.run_volumes,
}
HEAD = """# Benchmark results

Speed and memory of phiseg compared with a plain implementation, measured by `make bench`. [README.md](README.md)
explains the tables. Times are medians over rounds; ± is half the range from the fastest to the slowest round.

{machine}
"""


def main() -> None:
    """Run the requested benchmarks."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"Benchmarks to run: {', '.join(BENCHMARKS)}; default: all."
    )
    parser.add_argument("--quick", action="store_true", help="Use toy sizes; the numbers are not meaningful.")
    options = parser.parse_args()
    unknown = sorted({*options.names} - {*BENCHMARKS})
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}")
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
            except Exception as error:  # keep the results of the other benchmarks
                failed.append(name)
                found = [Section(f"{name}: failed", ("error",), [[f"{type(error).__name__}: {error}"]])]
            print(f"    {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
            for section in found:
                print(f"{section.markdown()}\n", flush=True)
            sections += found
    if writes:
        text = "\n\n".join([HEAD.format(machine=machine()).strip(), *(part.markdown() for part in sections)])
        (FOLDER / "results.md").write_text(f"{text}\n", encoding="utf-8")
        print(f"results: {FOLDER.name}/results.md", file=sys.stderr)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
