"""The command `phiseg`. Each command is a small typed object in a file of its own, imported when it is called.

Exit codes: 0 success, 2 an error that the user can mend (one line on stderr), 130 interrupted, 141 nobody
reads the output any more.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

from phiseg import __version__
from phiseg.core.errors import PhisegError, nearest

COMMANDS = {
    "prepare phantom": ("prepare_phantom", "Make a dataset from nothing: lesions or zones with known annotators."),
    "prepare lidc": ("prepare_lidc", "LIDC-IDRI as the archive ships it: DICOM with the readers' XML."),
    "prepare nifti": ("prepare_nifti", "NIfTI images with one label file per rater, slice by slice."),
    "prepare arrays": ("prepare_arrays", "One .npz file with images and masks."),
    "prepare legacy": ("prepare_legacy", "LIDC as others made it: data_lidc.hdf5, data_lidc.pickle, PNG crops."),
    "data check": ("data_check", "Check a dataset: hashes, labels, leaks between splits; how annotators agree."),
    "data show": ("data_show", "Draw a contact sheet of a dataset with every annotator's outline."),
    "data split": ("data_split", "Split a dataset's patients anew into train, val and test."),
    "train": ("train", "Train a model on a prepared dataset; resumes bit for bit."),
    "combine": ("combine", "Join several trained PHiSegs into one model that samples from each."),
    "calibrate": ("calibrate", "Fit temperatures on validation data: how far samples spread, how sure they are."),
    "evaluate": ("evaluate", "Score a model's samples on a split: GED and its floor, S_NCC, Dice."),
    "compare": ("compare", "Put evaluations into one table with significance, figures and a report."),
    "experiment table1": (
        "experiment",
        "The paper's table: train and score every method in both regimes, and report.",
    ),
    "sample": ("sample", "Draw samples of a split and write them as plain arrays."),
    "predict": (
        "predict",
        "Segment NIfTI, DICOM or PNG with a trained model: samples, maps, millilitres, a report.",
    ),
    "view": ("view", "Look at scans in the browser: click a lesion, see what experts would have drawn."),
    "export": ("export", "Write a model as ONNX or as a MONAI bundle."),
    "demo": ("demo", "See it all work: PHiSeg against the Probabilistic U-Net, in minutes."),
    "info": ("info", "Tell about recipes, a model, a run, a dataset or this installation."),
}

LONGEST_ERROR = 2000
"""Characters; of a longer error the beginning and the end are shown, which is where the cure stands."""

USAGE = """usage: phiseg COMMAND ...

Draws plausible expert segmentations of a medical image, and tells where experts would disagree.

{commands}

A first tour:
  phiseg prepare phantom lesion data --size 64
  phiseg train phiseg-small --data data --out runs/phiseg --train.steps 1000
  phiseg evaluate runs/phiseg --data data --out runs/phiseg-eval
  phiseg compare runs/phiseg-eval runs/other-eval --out report

`phiseg COMMAND --help` explains a command. `phiseg --version` prints the version.
"""
GROUP_USAGE = """usage: phiseg {group} COMMAND ...

{commands}

`phiseg {group} COMMAND --help` explains a command.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show ends nothing
    try:
        sys.exit(_run(words))
    except PhisegError as error:
        print(f"phiseg: error: {_in_one_line(str(error))}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # a file or a disk, whatever the place that did not expect it
        reason = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        print(f"phiseg: error: {_in_one_line(reason)}", file=sys.stderr)
        sys.exit(2)
    except MemoryError as error:
        print(f"phiseg: error: not enough memory: {_in_one_line(str(error)) or 'none is left'}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("phiseg: interrupted", file=sys.stderr)
        sys.exit(130)


def _in_one_line(text: str) -> str:
    r"""Return an error as a line that can be read, whatever a stranger's file put into it.

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
