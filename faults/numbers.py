"""Invalid numbers: NaN pixels, images without contrast, values far out of range, labels with gaps."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray

from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume
from phiseg.training import loop

from .processes import Command
from .record import Part, always
from .specimens import SIZE, Specimens
from .trees import visible_files

PATIENCE = 300.0
HOW = """\
Each invalid value is put into an otherwise valid input of `phiseg prepare` ("prepared"), `phiseg predict` \
("predicted") or `phiseg train` (the loss). A trial passes in one of these cases:

- The command stops with an error line that names the problem.
- The command reports the case and skips it.
- The command completes, and every number in the result is finite.

The table quotes part of the message."""
Change = Callable[[NDArray[Any]], NDArray[Any]]
AFFINE = np.diag([0.8, 0.9, 2.0, 1.0])


@dataclass(frozen=True)
class Case:
    """A test with its expected outcome."""

    name: str
    words: list[Any]
    says: str | None = None
    """Part of the error or message; None if the command must succeed."""
    code: int = 2
    limit: Callable[[], None] = lambda: None


def numbers(good: Specimens, work: Path, *, seed: int) -> Part:
    """Run every test once."""
    part = Part("Invalid numbers", HOW)
    rng = np.random.default_rng(seed)
    for number, case in enumerate(_cases(good, work, rng)):
        folder = work / f"case-{number}"
        folder.mkdir(parents=True)
        with Command(case.words, folder, folder.with_suffix(".log"), case.limit) as command:
            code = command.wait(PATIENCE)
        losses = _judge(case, code, command, folder)
        seen = "completed, all numbers finite" if case.says is None else f'"{case.says}"'
        part.add(case.name, 1, always(seen, [losses]), [losses])
    return part


def _judge(case: Case, code: int, command: Command, folder: Path) -> list[str]:
    expected = 0 if case.says is None else case.code
    if code != expected or "Traceback" in command.said:
        return [f"exit code {code} instead of {expected}: {command.last_line}"]
    if case.says is not None and case.says not in command.said:
        return [f"last line: {command.last_line}"]
    return [f"{name} has numbers that are not finite" for name, path in visible_files(folder) if _not_finite(path)]


def _not_finite(path: Path) -> bool:
    """Return whether a result contains NaN or infinity."""
    if path.suffix == ".npy":
        values = np.load(path)
        return values.dtype.kind == "f" and not np.isfinite(values).all()
    if path.suffix in {".nii", ".gz"}:
        image: Any = nibabel.load(path)
        return not np.isfinite(image.get_fdata()).all()
    text = path.read_text() if path.suffix in {".json", ".jsonl", ".csv"} else ""
    return re.search(r"(^|[ ,:\[-])(NaN|nan|Infinity|inf)\s*([,\]}]|$)", text, re.MULTILINE) is not None


def _cases(good: Specimens, work: Path, rng: np.random.Generator) -> list[Case]:
    image = rng.normal(100, 20, (SIZE, SIZE, 3)).astype(np.float32)
    labels = (rng.random((SIZE, SIZE, 3)) > 0.7).astype(np.int16)

    def source(name: str, image: NDArray[Any], labels: NDArray[Any]) -> list[Any]:
        """Return the command that prepares five good cases and one with this image and these labels."""
        root = work / "sources" / name
        root.mkdir(parents=True)
        for case in sorted(good.nifti.iterdir()):
            (root / case.name).symlink_to(case)
        (root / "invalid").mkdir()
        write_nifti(root / "invalid" / "image.nii.gz", Volume(image, AFFINE))
        for rater in ("one", "two"):
            write_nifti(root / "invalid" / f"rater-{rater}.nii.gz", Volume(labels, AFFINE))
        return ["prepare", "nifti", root, "out", "--workers", 1]

    def scan(name: str, values: NDArray[Any]) -> list[Any]:
        """Return the command that predicts a scan of these values."""
        path = work / "scans" / f"{name}.nii.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_nifti(path, Volume(values, AFFINE))
        return ["predict", good.run, path, "--num-samples", 2, "--level-draws", 1, "--out", "out"]

    def crops(name: str, change: Change) -> list[Any]:
        """Return the command that prepares arrays whose images are changed."""
        path = work / "crops" / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = dict(np.load(good.npz))
        arrays["images"] = change(arrays["images"])
        np.savez(path, **arrays)
        return ["prepare", "arrays", path, "out"]

    with_nan, with_inf = image.copy(), image.copy()
    with_nan[3, 3, 1], with_inf[3, 3, 1] = math.nan, math.inf
    gaps, invalid, fractions = labels.copy(), labels.copy(), labels.astype(np.float32)
    gaps[gaps == 1], invalid[0, 0, 0], fractions[0, 0, 0] = 3, -7, 0.5
    full = np.ones_like(image)
    train = ["train", good.recipe, "--data", good.data, "--out", "out", "--train.max_skipped_steps", 3]
    return [
        Case("NaN voxel, prepared", source("nan", with_nan, labels), "NaN or infinite voxels", code=0),
        Case("infinite voxel, prepared", source("inf", with_inf, labels), "NaN or infinite voxels", code=0),
        Case("constant volume, prepared", source("constant", 0 * image + 7, labels)),
        Case("values of 1e30, prepared", source("far", image * np.float32(1e30), labels)),
        Case("values of 1e300, prepared", source("farther", image.astype(np.float64) * 1e300, labels)),
        Case("labels 0 and 3, prepared", source("gaps", image, gaps), "label"),
        Case("label -7, prepared", source("negative", image, invalid), "labels are 0, -7, 1"),
        Case("label 0.5, prepared", source("fraction", image, fractions), "not a class index", code=0),
        Case("NaN pixels in arrays", crops("nan", lambda images: np.where(images > 0.99, np.nan, images)), "NaN"),
        Case("constant images in arrays", crops("constant", lambda images: 0 * images + 3)),
        Case("images of 1e38 in arrays", crops("far", lambda images: (images + 0.5) * np.float32(1e38))),
        Case("NaN voxel, predicted", scan("spoilt", with_nan), "NaN or infinite voxels"),
        Case("infinite voxel, predicted", scan("overflown", with_inf), "NaN or infinite voxels"),
        Case("constant scan, predicted", scan("constant", 7 * full), "every voxel is 7"),
        Case(
            "HU of -32768 and 32767, predicted", scan("hu", np.where(image > 100, 32767, -32768).astype(np.int16))
        ),
        Case("values of 1e30, predicted", scan("far", image * np.float32(1e30))),
        Case(
            "values of 1e300, predicted",
            scan("farther", image.astype(np.float64) * 1e300),
            "beyond the range of 32 bits",
        ),
        Case("NaN loss in one step", train, limit=lambda: _spoil_loss(3, 4)),
        Case(
            "NaN loss in all steps from the third",
            train,
            "not finite",
            limit=lambda: _spoil_loss(2, 99),
        ),
    ]


def _spoil_loss(first: int, last: int) -> None:
    """Make the loss of the steps from `first` to `last` - 1 NaN."""
    original = loop._Training._optimise

    def optimise(self: Any, batch: Any) -> Any:
        if first <= self.step < last:
            batch.image.fill_(math.nan)
        return original(self, batch)

    loop._Training._optimise = optimise  # type: ignore[method-assign]
