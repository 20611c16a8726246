"""A phiseg command under Python's profiler, in a process that has imported nothing before it.

    python -m benchmarks.profiled predict lidc-nodule scan.nii.gz    # any command that has an --out

prints the seconds of its parts as JSON.
"""

import cProfile
import json
import pstats
import sys
import tempfile
import time
from collections.abc import Sequence

PARTS = {
    "importing": (("<frozen importlib._bootstrap>", "_find_and_load"),),
    "reading the model": (("models/pretrained.py", "load_model"),),
    "the network": (
        ("models/phiseg.py", "encode"),
        ("models/phiseg.py", "sample_latents"),
        ("models/phiseg.py", "decode"),
    ),
    "writing the case": (("inference/cohort.py", "_write_case"),),
    "the report": (("evaluation/prediction_report.py", "write_prediction_report"),),
}
"""Where the time of a prediction goes, by file and function."""


def main() -> None:
    """Run the command twice, and print the seconds of its parts: importing is that of the first."""
    first, second = (_profiled(sys.argv[1:]) for _ in range(2))
    importing = first["importing"]
    print(json.dumps({**second, "all": second["all"] - second["importing"] + importing, "importing": importing}))


def _profiled(words: Sequence[str]) -> dict[str, float]:
    """Run a phiseg command under the profiler and return the seconds of its parts."""
    from phiseg.cli.main import main as phiseg

    profiler = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        try:
            profiler.runcall(phiseg, [*words, "--out", f"{folder}/out"])
        except SystemExit as ended:
            if ended.code:
                raise
        seconds = {"all": time.perf_counter() - start}
    functions = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    for name, wanted in PARTS.items():
        seconds[name] = sum(
            cumulative
            for (file, _, function), (_, _, _, cumulative, _) in functions.items()
            if any(file.endswith(suffix) and function == called for suffix, called in wanted)
        )
    return seconds


if __name__ == "__main__":
    main()
