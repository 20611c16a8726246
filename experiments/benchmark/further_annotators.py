"""Samples of the best possible sampler of the phantom: 100 further annotators of every test case.

python experiments/benchmark/further_annotators.py DATA OUT.npz
"""

import sys
from pathlib import Path

import numpy as np

from phiseg.core.random import derive_seed
from phiseg.data.prepare.phantom import draw_scene
from phiseg.data.store import Dataset

NUM_SAMPLES = 100


def main(data: Path, out: Path) -> None:
    """Write the labels and the names of their cases."""
    dataset, labels = Dataset.open(data), []
    rows = dataset.rows("test").tolist()
    for row in rows:
        scene = draw_scene("lesion", seed=dataset.info.seed, index=row, size=dataset.info.size[0])
        assert np.allclose(scene.image, dataset.images[row][0], atol=1e-3), (
            "another version of the phantom made this"
        )
        labels.append(scene.annotate(NUM_SAMPLES, np.random.default_rng(derive_seed(0, "perfect", row))))
    names = [dataset.cases[row]["case"] for row in rows]
    np.savez_compressed(out, labels=np.stack(labels).astype(np.uint8), cases=np.array(names))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
