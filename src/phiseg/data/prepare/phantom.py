"""Phantoms: synthetic datasets with a known distribution of annotators, generated from a seed.

    phiseg prepare phantom lesion DATA

They imitate the two datasets of the paper: `lesion` lung lesions with 4 annotators, `zones` the zones of the
prostate with 6 annotators. `phantom_scenes` describes what annotators disagree about.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator
from tqdm import tqdm

from phiseg.core.errors import ConfigError, nearest
from phiseg.core.files import AnyPath
from phiseg.core.random import derive_seed
from phiseg.data.intensity import Intensity
from phiseg.data.prepare.phantom_scenes import Scene, draw_lesion, draw_zones
from phiseg.data.splits import SPLIT_NAMES
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset

MIN_SIZE = 16


@dataclass(frozen=True)
class _Phantom:
    draw: Callable[[Generator, Generator, int], Scene]
    classes: tuple[str, ...]
    num_annotators: int
    size: int
    spacing_mm: float
    num_cases: int


PHANTOMS: dict[str, _Phantom] = {
    "lesion": _Phantom(draw_lesion, ("background", "lesion"), 4, 128, 0.7, 1000),
    "zones": _Phantom(draw_zones, ("background", "transition zone", "peripheral zone"), 6, 192, 0.6, 400),
}


def draw_scene(kind: str, *, seed: int, index: int, size: int | None = None) -> Scene:
    """Draw scene `index` of a phantom. The scene does not depend on the size of the image or of the dataset.

    Args:
        kind: "lesion" or "zones".
        seed: seed of the phantom.
        index: number of the scene.
        size: height and width of the image; None uses the size in the paper.

    Raises:
        ConfigError: the phantom is unknown, or the size is too small.
    """
    phantom = _phantom(kind)
    size = phantom.size if size is None else size
    _check_size(size)
    return phantom.draw(_stream(seed, "scene", index), _stream(seed, "noise", index), size)


def prepare_phantom(
    kind: str,
    out: AnyPath,
    *,
    seed: int = 0,
    size: int | None = None,
    num_cases: int | None = None,
    overwrite: bool = False,
    command: str = "",
    progress: bool = True,
) -> Dataset:
    """Generate a phantom as a prepared dataset, split 60/20/20.

    Args:
        kind: "lesion" or "zones".
        out: folder of the dataset to write.
        seed: random seed.
        size: height and width of the images; None uses the size in the paper.
        num_cases: number of images, each a separate patient; None is 1,000 for lesion, 400 for zones.
        overwrite: replace an existing dataset.
        command: command line to store in the dataset.
        progress: show a progress bar.

    Raises:
        ConfigError: the phantom is unknown, or the size or number is too small.
        OutputError: `out` exists and `overwrite` is false, or it cannot be written.
    """
    phantom = _phantom(kind)
    size = phantom.size if size is None else size
    num_cases = phantom.num_cases if num_cases is None else num_cases
    _check_size(size)
    if num_cases < len(SPLIT_NAMES):
        raise ConfigError(
            f"num_cases {num_cases} is too small; use at least {len(SPLIT_NAMES)}, for {', '.join(SPLIT_NAMES)}"
        )
    spacing = phantom.spacing_mm * phantom.size / size

    def cases() -> Iterator[Case]:
        for index in tqdm(range(num_cases), desc=f"phantom {kind}", unit="case", disable=not progress):
            yield _case(kind, phantom, seed, index, size)

    return write_dataset(
        Path(out),
        name=f"phantom-{kind}",
        classes=phantom.classes,
        num_annotators=phantom.num_annotators,
        image_shape=(1, size, size),
        image_dtype=np.float16,
        intensity=Intensity(kind="window", low=0, high=1),
        cases=cases(),
        seed=seed,
        spacing_mm=(spacing, spacing),
        source={"kind": "phantom", "phantom": kind, "size": size, "num_cases": num_cases},
        command=command,
        overwrite=overwrite,
    )


def _case(kind: str, phantom: _Phantom, seed: int, index: int, size: int) -> Case:
    scene = draw_scene(kind, seed=seed, index=index, size=size)
    name = f"{kind}-{index:05d}"
    return Case(
        case=name,
        patient=name,
        image=scene.image[None],
        labels=scene.annotate(phantom.num_annotators, _stream(seed, "annotators", index)),
        valid=np.ones(phantom.num_annotators, dtype=np.bool_),
        columns={f"p_{decision}": round(p, 4) for decision, p in scene.probabilities.items()},
    )


def _check_size(size: int) -> None:
    if size < MIN_SIZE:
        raise ConfigError(f"size {size} is too small for a phantom; use at least {MIN_SIZE}")


def _phantom(kind: str) -> _Phantom:
    if kind not in PHANTOMS:
        raise ConfigError(f"unknown phantom '{kind}' ({nearest(kind, PHANTOMS)})")
    return PHANTOMS[kind]


def _stream(seed: int, purpose: str, index: int) -> Generator:
    return np.random.default_rng(derive_seed(seed, purpose, index))
