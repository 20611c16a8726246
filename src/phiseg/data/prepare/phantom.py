"""Phantoms: synthetic datasets with a known distribution of annotators, generated from a seed.

    phiseg prepare phantom lesion DATA

`lesion` and `zones` imitate the two datasets of the paper: lung lesions with 4 annotators and the zones of the
prostate with 6 annotators. `phantom_scenes` describes what annotators disagree about. `lesion3d` has volumes of
lung lesions, see `phantom_volumes`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from tqdm import tqdm

from phiseg.core.errors import ConfigError, DataError, nearest
from phiseg.core.files import AnyPath
from phiseg.core.random import derive_seed
from phiseg.data.intensity import Intensity
from phiseg.data.prepare.phantom_scenes import Scene, draw_lesion, draw_zones
from phiseg.data.prepare.phantom_volumes import SLICE_SPACING_MM, WIDTH_MM, draw_lesion3d
from phiseg.data.spacing import SLICES
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
    dims: Literal[2, 3] = 2


PHANTOMS: dict[str, _Phantom] = {
    "lesion": _Phantom(draw_lesion, ("background", "lesion"), 4, 128, 0.7, 1000),
    "zones": _Phantom(draw_zones, ("background", "transition zone", "peripheral zone"), 6, 192, 0.6, 400),
    "lesion3d": _Phantom(draw_lesion3d, ("background", "lesion"), 4, 64, WIDTH_MM / 64, 400, dims=3),
}


def draw_scene(kind: str, *, seed: int, index: int, size: int | None = None) -> Scene:
    """Draw scene `index` of a phantom. The scene does not depend on the size of the image or of the dataset.

    Args:
        kind: "lesion", "zones" or "lesion3d".
        seed: seed of the phantom.
        index: number of the scene.
        size: height and width of the image; None uses the default of the phantom.

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
        kind: "lesion", "zones" or "lesion3d".
        out: folder of the dataset to write.
        seed: random seed.
        size: height and width of the images; None is 128 for lesion, 192 for zones, 64 for lesion3d.
        num_cases: number of images or volumes, each a separate patient; None is 1,000 for lesion, otherwise 400.
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
        dims=phantom.dims,
        seed=seed,
        spacing_mm=(spacing, spacing),
        plane="axial" if phantom.dims == 3 else None,
        source={"kind": "phantom", "phantom": kind, "size": size, "num_cases": num_cases},
        command=command,
        overwrite=overwrite,
    )


def draw_further_annotations(
    dataset: Dataset, row: int, num: int, *, seed: int = 0, chunk_size: int = 16
) -> Iterator[NDArray[np.uint8]]:
    """Draw further annotators of a case of a phantom, from the distribution of its own annotators.

    Args:
        dataset: a phantom written by `prepare_phantom`.
        row: row of the dataset.
        num: number of annotators.
        seed: seed of the annotators, who are independent of those in the dataset.
        chunk_size: number of annotators drawn at a time.

    Yields:
        (at most `chunk_size`, *size) class indices.

    Raises:
        DataError: the dataset is not a phantom.
    """
    kind, size = (dataset.info.source.get(key) for key in ("phantom", "size"))
    if not isinstance(kind, str) or not isinstance(size, int) or dataset.info.seed is None:
        raise DataError(f"{dataset.path} is not a phantom, so its annotators cannot be drawn again")
    scene = draw_scene(kind, seed=dataset.info.seed, index=row, size=size)
    generator = np.random.default_rng(derive_seed(dataset.info.seed, "further annotators", row, seed))
    for start in range(0, num, chunk_size):
        yield scene.annotate(min(chunk_size, num - start), generator)


def true_volumes_ml(dataset: Dataset, row: int, num: int = 1000, *, seed: int = 0) -> NDArray[np.float64]:
    """Return the volumes drawn by `num` further annotators of a phantom volume in ml, (num,).

    This is a sample of the true distribution of volumes, against which the intervals of a model can be tested.

    Args:
        dataset: a phantom of volumes.
        row: row of the dataset.
        num: number of annotators.
        seed: seed of the annotators, who are independent of those in the dataset.

    Raises:
        DataError: the dataset is not a phantom of volumes.
    """
    spacing = dataset.voxel_spacing_mm(row)
    if dataset.dims != 3 or spacing is None:
        raise DataError(f"{dataset.path} has no volumes with spacing; use a phantom such as lesion3d")
    voxel_ml = float(np.prod(spacing)) / 1000
    chunks = draw_further_annotations(dataset, row, num, seed=seed)
    return voxel_ml * np.concatenate([np.count_nonzero(chunk, axis=(1, 2, 3)) for chunk in chunks])


def _case(kind: str, phantom: _Phantom, seed: int, index: int, size: int) -> Case:
    scene = draw_scene(kind, seed=seed, index=index, size=size)
    person = f"{kind}-seed{seed}" if seed else kind  # the index of another seed is another patient
    return Case(
        case=f"{kind}-{index:05d}",
        patient=f"{person}-{index:05d}",
        image=scene.image[None],
        labels=scene.annotate(phantom.num_annotators, _stream(seed, "annotators", index)),
        valid=np.ones(phantom.num_annotators, dtype=np.bool_),
        columns={
            **{f"p_{decision}": round(p, 4) for decision, p in scene.probabilities.items()},
            **({SLICES: SLICE_SPACING_MM} if phantom.dims == 3 else {}),
        },
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
