"""Run a phiseg command under Python's profiler in a new process.

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
    "load the model": (("models/model_folder.py", "load_model"),),
    "network": (
        ("models/phiseg.py", "encode"),
        ("models/phiseg.py", "sample_latents"),
        ("models/phiseg.py", "decode"),
    ),
    "write the case": (("inference/case_folders.py", "_write_case"),),
    "report": (("plotting/prediction_report.py", "write_prediction_report"),),
}
"""Parts of a prediction by file and function."""


def main() -> None:
    """Run the command three times, the last time under the profiler, and print the times of its parts."""
    first, second = (timed(sys.argv[1:]) for _ in range(2))
    parts = {"total": first, "import and warm-up": first - second, **profiled(sys.argv[1:])}
    print(json.dumps(parts))


def timed(words: Sequence[str]) -> float:
    """Run a phiseg command and return its time in seconds."""
    start = time.perf_counter()
    run(words)
    return time.perf_counter() - start


def profiled(words: Sequence[str]) -> dict[str, float]:
    """Run a phiseg command under the profiler and return the seconds of its parts."""
    profiler = cProfile.Profile()
    profiler.runcall(run, words)
    functions = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    return {
        name: sum(
            cumulative
            for (file, _, function), (_, _, _, cumulative, _) in functions.items()
            if any(file.endswith(suffix) and function == called for suffix, called in wanted)
        )
        for name, wanted in PARTS.items()
    }


def run(words: Sequence[str]) -> None:
    """Run a phiseg command, including its imports."""
    from phiseg.cli.main import main as phiseg

    with tempfile.TemporaryDirectory() as folder:
        try:
            phiseg([*words, "--out", f"{folder}/out"])
        except SystemExit as ended:
            if ended.code:
                raise


if __name__ == "__main__":
    main()
