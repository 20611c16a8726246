"""The entry point of `phiseg`. Each command is a dataclass in a separate module that is imported on demand.

Exit codes: 0 success, 2 user error (one line on stderr), 130 interrupted, 141 output pipe closed, and for trainings
and servers 143 ended by SIGTERM (servers also 129, by SIGHUP).
"""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

from phiseg import __version__
from phiseg.core.errors import Interrupted, PhisegError, nearest

COMMANDS = {
    "prepare phantom": ("prepare_phantom", "Generate a synthetic dataset of lesions or zones."),
    "prepare lidc": ("prepare_lidc", "Prepare lung nodules from the DICOM and XML files of LIDC-IDRI."),
    "prepare nifti": ("prepare_nifti", "Prepare NIfTI volumes with one label file per annotator."),
    "prepare images": ("prepare_images", "Prepare pictures (PNG, JPEG, TIFF, BMP) with one mask per annotator."),
    "prepare table": ("prepare_table", "Prepare images and labels that a CSV file lists."),
    "prepare arrays": ("prepare_arrays", "Prepare images and masks from an .npz file."),
    "prepare legacy": ("prepare_legacy", "Prepare published LIDC crops: data_lidc.hdf5, data_lidc.pickle, PNG."),
    "data check": ("data_check", "Check a dataset for errors and report annotator agreement."),
    "data show": ("data_show", "Draw images and outlines of a dataset on a contact sheet."),
    "data split": ("data_split", "Assign patients to new splits, or read or write a published split."),
    "train": ("train", "Train a model on a prepared dataset, or resume training."),
    "combine": ("combine", "Combine several trained PHiSeg models into an ensemble."),
    "calibrate": ("calibrate", "Calibrate the spread and confidence of a model's samples."),
    "evaluate": ("evaluate", "Evaluate a model on a split: GED, S_NCC, Dice and more."),
    "score": ("score", "Score samples from any program as phiseg evaluate does."),
    "compare": ("compare", "Compare evaluations in a table with figures and a report."),
    "experiment table1": ("experiment", "Train, evaluate and compare all methods, as in the paper's table."),
    "sample": ("sample", "Draw samples for a split and save them as NumPy arrays."),
    "example": ("example", "Write a synthetic scan to try `predict` and `view`."),
    "predict": (
        "predict",
        "Segment NIfTI, DICOM, .mha, .nrrd or picture files: samples, uncertainty maps, report.",
    ),
    "batch": ("batch", "Segment all scans of a folder tree as challenges require, and write .mha and JSON files."),
    "view": ("view", "Open the viewer: click a lesion in the browser and see plausible segmentations."),
    "serve": ("serve", "Serve models to 3D Slicer and OHIF through their MONAI Label plug-ins."),
    "export": ("export", "Export a model as ONNX or as a MONAI bundle."),
    "push": ("push", "Upload a model to the Hugging Face Hub."),
    "demo": ("demo", "Run a complete example on synthetic data in a few minutes."),
    "info": ("info", "Show information about a recipe, model, run, dataset or this installation."),
}

COLLECTED_AFTER = 50_000
"""New objects after which Python looks for unreachable cycles. With 700, the default of Python 3.11, imports take
15 % longer, and highdicom takes three times as long to read its tables: they create many objects that stay."""
LONGEST_ERROR = 2000
"""Maximum length of an error in characters. The middle of a longer error is omitted."""

USAGE = """usage: phiseg COMMAND ...

Draw plausible expert segmentations of medical images and show where experts would disagree.

Commands:
{commands}

Getting started:
  phiseg prepare phantom lesion data --size 64
  phiseg train phiseg-small --data data --out runs/phiseg --train.steps 1000
  phiseg evaluate runs/phiseg --data data --out runs/phiseg-eval
  phiseg compare runs/phiseg-eval --out report

Run `phiseg COMMAND --help` for details and examples, `phiseg --version` for the version.
"""
GROUP_USAGE = """usage: phiseg {group} COMMAND ...

Commands:
{commands}

Run `phiseg {group} COMMAND --help` for details and examples.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    gc.set_threshold(COLLECTED_AFTER, *gc.get_threshold()[1:])
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names that the terminal cannot encode
    try:
        sys.exit(_run(words))
    except PhisegError as error:
        print(f"phiseg: error: {_in_one_line(str(error))}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the output pipe was closed, as by `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # a file or disk error that was not handled where it occurred
        reason = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        print(f"phiseg: error: {_in_one_line(reason)}", file=sys.stderr)
        sys.exit(2)
    except MemoryError as error:
        print(f"phiseg: error: not enough memory: {_in_one_line(str(error)) or 'none is left'}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as stopped:
        print(f"phiseg: {stopped}", file=sys.stderr)
        sys.exit(128 + stopped.signal)
    except KeyboardInterrupt:
        print("phiseg: interrupted", file=sys.stderr)
        sys.exit(130)


def _in_one_line(text: str) -> str:
    r"""Return an error message as one printable line, with control characters from untrusted files escaped.

    >>> _in_one_line("case 'a\x1b[2J\n' is damaged")
    "case 'a\\x1b[2J\\n' is damaged"
    """
    shown = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    half = LONGEST_ERROR // 2
    return shown if len(shown) <= LONGEST_ERROR else f"{shown[:half]} ... {shown[-half:]}"


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE.format(commands=_listed(COMMANDS)), end="")
        return 0
    if words[0] == "--version":
        print(f"phiseg {__version__}")
        return 0
    for number in (2, 1):
        name = " ".join(words[:number])
        if name in COMMANDS and len(words) >= number:
            module = import_module(f"phiseg.cli.{COMMANDS[name][0]}")
            module.run(words[number:], prog=f"phiseg {name}")
            return 0
    inner = {name: entry for name, entry in COMMANDS.items() if name.startswith(f"{words[0]} ")}
    if inner and (len(words) == 1 or words[1] in ("-h", "--help")):
        print(GROUP_USAGE.format(group=words[0], commands=_listed(inner)), end="")
        return 0 if len(words) > 1 else 2
    tried = " ".join(words[:2]) if inner else words[0]
    print(f"phiseg: error: unknown command '{tried}' ({nearest(tried, inner or COMMANDS)})", file=sys.stderr)
    return 2


def _listed(commands: dict[str, tuple[str, str]]) -> str:
    width = max(map(len, commands))
    return "\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in commands.items())
