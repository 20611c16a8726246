"""Sample volumes with a 2-D model, slice by slice, with noise that is correlated along the slices.

slicewise.py MODEL VOLUMES OUT.npz --noise-length 5 --split test --num-samples 100

OUT.npz receives one array of labels per case, as `phiseg score` reads them.
"""

import argparse
from math import inf
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import phiseg
from phiseg.core.files import atomic_file
from phiseg.data.neighbours import with_neighbours
from phiseg.data.store import Dataset
from phiseg.inference.slice_noise import SliceNoise


@torch.no_grad()
def sample_volume(network, image: np.ndarray, spacing_mm: float, noise: SliceNoise) -> np.ndarray:
    """Return labels (S, D, H, W) of a volume (C, D, H, W)."""
    depth = image.shape[1]
    stacks = with_neighbours(np.arange(depth), depth, network.config.context)
    labels = []
    for number, neighbours in enumerate(stacks):
        x = torch.from_numpy(image[:, neighbours].swapaxes(0, 1).reshape(1, -1, *image.shape[2:]))
        draws = network.temper(noise.at(number * spacing_mm))
        logits = network.decode_samples(network.encode(x), draws, noise.num_samples)  # (1, S, K, H, W)
        labels.append(logits[0].argmax(1).to(torch.uint8).numpy())
    return np.stack(labels, axis=1)


def main() -> None:
    """Sample every case of a split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("volumes", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--noise-length", type=float, default=inf, help="in mm; inf shares the noise of all slices")
    parser.add_argument("--split", default="test")
    parser.add_argument("--num-samples", type=int, default=100)
    options = parser.parse_args()
    network = phiseg.load(options.model).network
    volumes = Dataset.open(options.volumes)
    drawn = {}
    for row in tqdm(volumes.rows(options.split), unit="volume"):
        name, size = volumes.cases[row]["case"], volumes.size(row)
        noise = SliceNoise(
            network.noise_shapes(size[1:]),
            options.num_samples,
            seed=0,
            keys=(name,),
            length_mm=options.noise_length,
        )
        drawn[name] = sample_volume(network, volumes.image(row), volumes.voxel_spacing_mm(row)[0], noise)
    with atomic_file(options.out) as file:
        np.savez_compressed(file, **drawn)


if __name__ == "__main__":
    main()
