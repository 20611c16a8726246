"""Reproduce one damaged input of the fault tests, and print the command that reads it.

For example: python -m faults.again "YAML recipe" 19 OUT --seed 0
"""

import argparse
import shlex
from pathlib import Path

import numpy as np

from .fuzzing import SHARES
from .inputs import FILES, Bench
from .processes import import_all
from .specimens import make_specimens


def main() -> None:
    """Create the valid inputs and the damaged input in a new folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=FILES, help="kind of input, as in the report")
    parser.add_argument("number", type=int, help="number of the input, as in the report")
    parser.add_argument("out", type=Path, help="folder to create")
    parser.add_argument("--seed", type=int, default=0, help="seed of the fault tests")
    options = parser.parse_args()
    out = options.out.resolve()
    for folder in ("good", "input"):
        (out / folder).mkdir(parents=True)
    import_all()
    rng = np.random.default_rng([options.seed, list(SHARES).index(options.kind), options.number])
    bench = Bench(make_specimens(out / "good"), out / "input", out / "canary", rng)
    words = FILES[options.kind][1](bench)
    print(shlex.join(["phiseg", *map(str, words)]))


if __name__ == "__main__":
    main()
