"""Phantoms: datasets that are generated from a seed, with annotators whose distribution is known.

    phiseg prepare phantom lesion DATA

They mirror the paper's two datasets, and need no download: `lesion` the lung lesions with 4 annotators, `zones`
the zones of the prostate with 6. `phantom_scenes` says what annotators disagree about.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator
from tqdm import tqdm

from phiseg.core.errors import ConfigError, nearest
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
    """Draw scene `index` of a phantom: the same scene at every size, and with every length of the dataset.

    Args:
        kind: "lesion" or "zones".
        seed: the phantom's seed.
        index: number of the scene.
        size: height and width of the image; that of the paper's dataset by default.

    Raises:
        ConfigError: no such phantom, or a size that is too small.
    """
    phantom = _phantom(kind)
    size = phantom.size if size is None else size
    _check_size(size)
    return phantom.draw(_stream(seed, "scene", index), _stream(seed, "noise", index), size)


def prepare_phantom(
    kind: str,
    out: Path,
    *,
    seed: int = 0,
    size: int | None = None,
    num_cases: int | None = None,
    overwrite: bool = False,
    command: str = "",
    progress: bool = True,
) -> Dataset:
    """Write a phantom as a prepared dataset, split 60/20/20.

    Args:
        kind: "lesion" or "zones".
        out: folder to make.
        seed: seed of everything.
        size: height and width of the images; that of the paper's dataset by default.
        num_cases: number of images, each of its own patient; 1,000 lesions or 400 glands by default.
        overwrite: replace an existing folder.
        command: the command line, for the record.
        progress: show a progress bar.

    Raises:
        ConfigError: no such phantom, or a size or number that is too small.
        OutputError: `out` exists, or cannot be written.
    """
    phantom = _phantom(kind)
    size = phantom.size if size is None else size
    num_cases = phantom.num_cases if num_cases is None else num_cases
    _check_size(size)
    if num_cases < len(SPLIT_NAMES):
        raise ConfigError(
            f"num_cases {num_cases} is too small; use {len(SPLIT_NAMES)} or more, for {', '.join(SPLIT_NAMES)}"
        )
    spacing = phantom.spacing_mm * phantom.size / size

    def cases() -> Iterator[Case]:
        for index in tqdm(range(num_cases), desc=f"phantom {kind}", unit="case", disable=not progress):
            yield _case(kind, phantom, seed, index, size)

    return write_dataset(
        out,
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
        raise ConfigError(f"size {size} is too small for a phantom; use {MIN_SIZE} or more")


def _phantom(kind: str) -> _Phantom:
    if kind not in PHANTOMS:
        raise ConfigError(f"there is no phantom '{kind}' ({nearest(kind, PHANTOMS)})")
    return PHANTOMS[kind]


def _stream(seed: int, purpose: str, index: int) -> Generator:
    return np.random.default_rng(derive_seed(seed, purpose, index))
