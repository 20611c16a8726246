"""Does a larger crop tell better whether a reader outlines anything on a slice?

    python experiments/lidc_nodule/surroundings.py DATA OUT.csv --inputs near --seed 0

DATA are slices of 128 x 128 pixels (`experiments/lidc_slices/run.sh 128`). The classifier of `model.presence` is
trained alone, on the share of readers who outlined anything. It sees the slice and its neighbours in one of three
ways, each with 64 x 64 pixels:

    near   the central half of the crop
    wide   the whole crop at half the resolution
    both   near and wide as channels

OUT.csv receives the predicted probability, the share of readers and the cross-entropy of every validation slice.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR
from tqdm import tqdm

from phiseg.compute.devices import keep_freed_memory
from phiseg.core.files import write_text
from phiseg.data.store import Dataset
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.presence import PresenceNetwork, presence_loss
from phiseg.training.recipe import load_recipe
from phiseg.training.step import training_stream

CONTEXT = 1
CHANNELS = [32, 32, 32, 64, 64, 64]
SETTINGS = [
    f"--model.context={CONTEXT}",
    "--model.presence=true",
    "--train.annotations_per_image=4",
    "--train.batch_size=24",
]


def view(images: Tensor, inputs: str) -> Tensor:
    """Return what the classifier sees of images (B, C, 128, 128): (B, C or 2 C, 64, 64)."""
    near, wide = images[:, :, 32:96, 32:96], F.avg_pool2d(images, 2)
    return {"near": near, "wide": wide, "both": torch.cat([near, wide], 1)}[inputs]


def share_of_readers(labels: Tensor) -> Tensor:
    """Return the share (B,) of the masks (B, A, H, W) that are not empty in the central half."""
    return (labels[:, :, 32:96, 32:96] > 0).flatten(2).any(2).float().mean(1)


def train_classifier(dataset: Dataset, inputs: str, *, steps: int, seed: int) -> PresenceNetwork:
    """Return a classifier after `steps` steps of 24 slices."""
    torch.manual_seed(seed)
    recipe = load_recipe("phiseg", [*SETTINGS, f"--train.seed={seed}"]).for_dataset(dataset)
    stream = training_stream(recipe, dataset)
    channels = dataset.info.image_channels * (1 + 2 * CONTEXT) * (2 if inputs == "both" else 1)
    pyramid = PHiSegConfig(channels=tuple(CHANNELS)).pyramid
    network = PresenceNetwork(channels, CHANNELS, pyramid=pyramid, norm="batch")
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0)
    schedule = OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.05)
    for step in tqdm(range(steps), desc=f"{inputs}, seed {seed}"):
        batch = stream.batch(step)
        loss = presence_loss(network(view(batch.image, inputs)), share_of_readers(batch.labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network.eval()


def main(data: Path, out: Path, *, inputs: str, steps: int, seed: int) -> None:
    """Train a classifier and write its predictions for the validation slices."""
    keep_freed_memory()
    dataset = Dataset.open(data)
    network = train_classifier(dataset, inputs, steps=steps, seed=seed)
    rows = dataset.rows("val").tolist()
    images = torch.from_numpy(np.stack([dataset.image(row, context=CONTEXT) for row in rows]))
    labels = torch.from_numpy(np.stack([dataset.annotations(row) for row in rows]))
    shares = share_of_readers(labels)
    with torch.inference_mode():
        logits = torch.cat([network(view(part, inputs)) for part in images.split(64)])
    losses = F.binary_cross_entropy_with_logits(logits, shares, reduction="none")
    lines = ["case,patient,share_of_readers,probability,cross_entropy"]
    for row, *values in zip(rows, shares.tolist(), logits.sigmoid().tolist(), losses.tolist(), strict=True):
        case = dataset.cases[row]
        lines.append(",".join([case["case"], case["patient"], *(f"{value:.5g}" for value in values)]))
    write_text(out, "\n".join(lines) + "\n")
    print(f"{inputs}, seed {seed}: cross-entropy {losses.mean():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--inputs", choices=["near", "wide", "both"], required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
