"""Fit the classifier for presence of a trained PHiSeg again, to the share of readers who outlined each slice.

    python experiments/lidc_nodule/fit_presence.py MODEL DATA OUT

The classifier shares no weights with the rest of the network, so it can be trained alone: with larger batches, the
shares of all readers as targets, and weight decay. MODEL is a run or model folder, DATA the dataset of
`with_margins.py`, and OUT the new model folder. Of several copies of a nodule, the first is used. The weights with
the lowest loss on the val split are kept.

Some samples stay empty although the classifier wants a nodule. A shift of its logits makes up for them: with it, as
many samples as readers of the val split outline anything.
"""

import argparse
import copy
import json
from math import cos, pi
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from phiseg.core.random import derive_seed
from phiseg.data.augment import AugmentConfig, apply_augmentation, draw_augmentation
from phiseg.data.store import Dataset
from phiseg.models import build_model, save_model
from phiseg.models.blocks import BatchNorm
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.phiseg import PHiSeg, PHiSegConfig
from phiseg.models.presence import is_present
from phiseg.models.pretrained import find_model

AUGMENTATION = AugmentConfig(probability=0.8, rotation_degrees=180, flip_vertical=True, quarter_turns=True)


def main() -> None:
    """Fit the classifier and save the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = find_model(options.model)
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(options.seed, "presence"))
        model = build_model(PHiSegConfig(**stored["model"]))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({k: v for k, v in weights.items() if not k.startswith("presence.")}, strict=False)
    dataset = Dataset.open(options.data)
    fit(model.presence, dataset, options)
    shift = match_shares(model.eval(), dataset)
    print(f"logits shifted by {shift:.3f}")
    save_model(
        options.out,
        model.eval(),
        preprocessing=json.loads((folder / "preprocessing.json").read_text(encoding="utf-8")),
        provenance=stored["provenance"],
        card=(folder / "README.md").read_text(encoding="utf-8"),
    )


def fit(network: torch.nn.Module, dataset: Dataset, options: argparse.Namespace) -> None:
    """Train the classifier, and leave it with the weights of the lowest validation loss."""
    (images, shares), (val_images, val_shares) = (load(dataset, split) for split in ("train", "val"))
    for layer in network.modules():
        if isinstance(layer, BatchNorm):
            layer.momentum = 0.05
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=options.weight_decay)
    generator = torch.Generator().manual_seed(derive_seed(options.seed, "batches"))
    best = (float("inf"), network.state_dict())
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * 0.5 * (1 + cos(pi * step / options.steps))
        rows = torch.randint(len(images), (options.batch_size,), generator=generator)
        size = (images.shape[-2], images.shape[-1])
        matrices = draw_augmentation(AUGMENTATION, options.batch_size, size=size, generator=generator)
        labels = torch.zeros(options.batch_size, *size, dtype=torch.long)
        image, _ = apply_augmentation(images[rows], labels, matrices, num_classes=2)
        loss = F.binary_cross_entropy_with_logits(network.train()(image), shares[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % max(1, options.steps // 8) == 0:
            with torch.no_grad():
                logits = torch.cat([network.eval()(part) for part in val_images.split(200)])
            value = F.binary_cross_entropy_with_logits(logits, val_shares).item()
            excess = 2 * ((logits.sigmoid() - val_shares).square() - val_shares * (1 - val_shares) / 3)
            print(f"step {step + 1}: val loss {value:.4f}, presence part of GED {excess.mean():.4f}", flush=True)
            if value < best[0]:
                best = (value, copy.deepcopy(network.state_dict()))
    network.load_state_dict(best[1])


@torch.no_grad()
def match_shares(model: PHiSeg, dataset: Dataset, *, num_cases: int = 300, num_samples: int = 8) -> float:
    """Shift the logits of the classifier so that as many samples as readers are not empty; return the shift."""
    rows = [int(row) for row in dataset.rows("val") if first_copy(dataset.cases[row]["nodule"])]
    logits, outlined, shares = [], [], []
    for row in rows[:: max(1, len(rows) // num_cases)]:
        image = torch.from_numpy(dataset.image(row, context=model.config.context))[None]
        encoding = model.encode(image)
        noise = draw_noise(model.noise_shapes(encoding.size), 1, num_samples, seeded_generator(0, "presence", row))
        noise[-1].fill_(-10.0)  # present in every sample
        samples = model.decode_samples(encoding, noise, num_samples)[0].argmax(1)
        logits.append(encoding.features[-1])
        outlined.append(is_present(samples).mean())
        shares.append(is_present(torch.from_numpy(dataset.annotations(row))).mean())
    found, target = torch.stack(outlined), torch.stack(shares).mean()
    low, high = -5.0, 5.0
    for _ in range(40):
        shift = (low + high) / 2
        too_few = ((torch.cat(logits) + shift).sigmoid() * found).mean() < target
        low, high = (shift, high) if too_few else (low, shift)
    model.presence.output.bias += shift
    return shift


def load(dataset: Dataset, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images (N, 1, H, W) of a split and the share of readers (N,) who outlined each."""
    rows = [int(row) for row in dataset.rows(split) if first_copy(dataset.cases[row]["nodule"])]
    images = torch.from_numpy(np.stack([dataset.image(row) for row in rows]))
    shares = [is_present(torch.from_numpy(dataset.annotations(row))).mean() for row in rows]
    return images, torch.stack(shares)


def first_copy(nodule: str) -> bool:
    """Return whether a nodule is no further copy; see `with_margins.py`."""
    return "copy" not in nodule or nodule.endswith("copy 0")


if __name__ == "__main__":
    main()
