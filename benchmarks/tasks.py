"""The measured tasks. A task prepares its data from a seed and returns the action to time.

    python -m benchmarks.tasks sampling '{"way": "phiseg", "scale": {"num_samples": 400}}'

runs a task in this process and prints its cost as JSON. This is used to measure memory.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import plain
from benchmarks.measuring import Scale, resident
from phiseg.compute.devices import make_fabric
from phiseg.data.loader import Batch
from phiseg.data.prepare.phantom import prepare_phantom
from phiseg.data.store import Dataset
from phiseg.inference.sample_summary import summarise_probs, summarise_samples
from phiseg.inference.sampling import sample_cases
from phiseg.metrics.case import score_case
from phiseg.models import Segmenter, build_model
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.phiseg import PHiSeg, PHiSegConfig
from phiseg.models.pyramid import plan_pyramid
from phiseg.training.memory_format import set_memory_format
from phiseg.training.recipe import TrainConfig, load_recipe
from phiseg.training.step import TrainingStep

Action = Callable[[], Any]


def small_model(num_classes: int = 2) -> PHiSegConfig:
    """Return the network of the recipe phiseg-small."""
    config = load_recipe("phiseg-small").model
    assert isinstance(config, PHiSegConfig)
    return config.model_copy(update={"num_classes": num_classes})


def volume_model() -> PHiSegConfig:
    """Return the network of the recipe phiseg3d-small for slices 2 mm apart and pixels of 0.7 mm."""
    config = load_recipe("phiseg3d-small").model
    assert isinstance(config, PHiSegConfig)
    plan = plan_pyramid((2.0, 0.7, 0.7), len(config.channels), (16, 64, 64))
    return config.model_copy(update=plan._asdict())


def build(config: PHiSegConfig) -> PHiSeg:
    """Return the network of phiseg with weights from seed 0."""
    torch.manual_seed(0)
    model = build_model(config)
    assert isinstance(model, PHiSeg)
    return model


def build_plain(config: PHiSegConfig) -> plain.PlainPHiSeg:
    """Return the plain network with the same weights in contiguous layout, as in ports."""
    network = plain.PlainPHiSeg(config)
    network.load_state_dict(build(config).state_dict())
    return network


def images(config: PHiSegConfig, batch_size: int, scale: Scale) -> tuple[Tensor, Tensor]:
    """Return random images and labels, (B, C, H, W) and (B, H, W); the cost does not depend on their content.

    A 3-D network gets volumes (B, C, D, H, W), a 2-D network their slices (B * D, C, H, W).
    """
    generator = torch.Generator().manual_seed(1)
    plane = (scale.size, scale.size)
    number, size = (batch_size, (scale.depth, *plane)) if config.dims == 3 else (batch_size * scale.depth, plane)
    image = torch.randn(number, config.image_channels, *size, generator=generator)
    return image, torch.randint(config.num_classes, (number, *size), generator=generator)


class Training:
    """The training step of `phiseg train`, on given images."""

    def __init__(self, model: Segmenter, *, checkpointing: bool = False, channels_last: bool = False):
        settings = TrainConfig(accelerator="cpu", checkpoint_activations=checkpointing)
        fabric = make_fabric(settings)
        if not channels_last:
            set_memory_format(model, fabric.device)
        self.training = TrainingStep(model, settings, fabric)
        self.training.set_up()

    def step(self, image: Tensor, labels: Tensor) -> float:
        """Run a training step and return the loss."""
        batch = Batch(image, labels, np.arange(len(image)))
        return float(self.training.take(batch, 0).values["loss"])


def training_step(way: str, scale: Scale, config: PHiSegConfig | None = None) -> Action:
    """Run a training step: `plain`, `phiseg`, `channels_last` (forced) or `checkpointed`."""
    config = config or scale.model
    image, labels = images(config, scale.batch_size, scale)
    if way == "plain":
        plainly = plain.PlainTraining(build_plain(config), TrainConfig().learning_rate)
        return lambda: plainly.step(image, labels)
    training = Training(build(config), checkpointing=way == "checkpointed", channels_last=way == "channels_last")
    return lambda: training.step(image, labels)


def sampling(way: str, scale: Scale, config: PHiSegConfig | None = None) -> Action:
    """Draw samples of one image, or of all slices of one volume.

    `plain` runs the whole network for each sample, `tiled` for a batch of copies of the image. `phiseg` encodes
    once and decodes in chunks. `streamed` keeps only what `phiseg evaluate` keeps of each chunk. `decoder` only
    decodes.
    """
    config = config or scale.model
    image, _ = images(config, 1, scale)
    number, chunk = scale.num_samples, scale.chunk_size
    if way in ("plain", "tiled"):
        network = build_plain(config).eval()
        draw = network.sample if way == "plain" else network.sample_tiled
        return lambda: draw(image, number)
    model = build(config).eval()
    if way == "phiseg":
        return lambda: model.sample(image, number, generator=seeded_generator(0), chunk_size=chunk)
    if way == "streamed":
        return lambda: summarise_samples(
            model.sample_chunks(image, number, generator=seeded_generator(0), chunk_size=chunk)
        )
    with torch.no_grad():
        shapes = model.noise_shapes((scale.size, scale.size))
        encoding = model.encode(image)
        latents = [
            model.sample_latents(
                encoding, draw_noise(shapes, 1, min(chunk, number - start), seeded_generator(start))
            )
            for start in range(0, number, chunk)
        ]

    @torch.no_grad()
    def decode() -> None:
        for part in latents:
            model.decode(part, encoding.size)

    return decode


def soft_samples(scale: Scale, num_classes: int = 2) -> tuple[Tensor, Tensor]:
    """Return softmax samples (S, K, H, W) and annotations (A, H, W) that partly overlap: moving blobs."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.cat(list(blobs(scale.num_samples, scale.size, num_classes, generator=generator)))
    annotations = torch.cat(list(blobs(scale.num_annotators, scale.size, num_classes, generator=generator)))
    return logits.softmax(1), annotations.argmax(1).to(torch.uint8)  # storage type


def blobs(number: int, size: int, num_classes: int, *, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield logits (1, K, H, W) with a round blob of each foreground class."""
    axis = torch.linspace(-1, 1, size)
    for _ in range(number):
        centres = 0.6 * torch.rand(num_classes - 1, 2, generator=generator) - 0.3
        squared = (axis[:, None] - centres[:, :1, None]) ** 2 + (axis - centres[:, 1:, None]) ** 2  # (K-1, H, W)
        yield torch.cat([torch.zeros(1, size, size), 4 - 30 * squared])[None]


def scoring(way: str, scale: Scale, num_classes: int = 2) -> Action:
    """Score the samples of one image: `plain` computes GED, S_NCC and HM-IoU in loops, the others all scores.

    `phiseg` starts from the same softmax samples, `logits` from the output of the network, as `phiseg evaluate`
    does.
    """
    probs, annotations = soft_samples(scale, num_classes)
    if way == "plain":
        arrays = probs.numpy(), annotations.numpy()
        return lambda: plain.scores(*arrays)
    samples, summarise = (probs, summarise_probs) if way == "phiseg" else (probs.log(), summarise_samples)

    def score() -> dict[str, float | None]:
        (summary,) = summarise(samples[None].split(scale.chunk_size, dim=1))
        return score_case(*summary, annotations)

    return score


def streamed_scoring(scale: Scale, num_classes: int = 2) -> Action:
    """Compute all scores of `phiseg evaluate` from samples that are drawn one by one and not kept."""
    _, annotations = soft_samples(replace(scale, num_samples=1), num_classes)

    def score() -> dict[str, float | None]:
        chunks = blobs(scale.num_samples, scale.size, num_classes, generator=torch.Generator().manual_seed(3))
        (summary,) = summarise_samples(chunk[None] for chunk in chunks)
        return score_case(*summary, annotations, spacing_mm=(1.0, 1.0))

    return score


def evaluation(scale: Scale) -> Action:
    """Sample and score `num_cases` cases of a phantom, as `phiseg evaluate` does."""
    folder = tempfile.TemporaryDirectory()
    dataset: Dataset = prepare_phantom(
        "lesion", Path(folder.name) / "data", size=scale.size, num_cases=scale.num_cases, progress=False
    )
    model = build(small_model()).eval()

    def evaluate() -> None:
        assert folder  # keeps the temporary folder alive
        rows = list(range(dataset.num_cases))
        for case in sample_cases(model, dataset, rows, num_samples=scale.num_samples, seed=0):
            annotations = torch.from_numpy(dataset.annotations(case.row))
            score_case(*case.summary, annotations, spacing_mm=(1.0, 1.0))

    return evaluate


TASKS: dict[str, Callable[..., Action]] = {
    "training_step": training_step,
    "sampling": sampling,
    "scoring": scoring,
    "streamed_scoring": streamed_scoring,
    "evaluation": evaluation,
}


def prepare(name: str, settings: dict[str, Any]) -> Action:
    """Return the action of a task from JSON settings."""
    settings = {**settings, "scale": Scale(**settings.get("scale", {}))}
    if settings.pop("small", False):
        settings["config"] = small_model(settings.pop("num_classes", 2))
    if settings.pop("volumes", False):
        settings["config"] = volume_model()
    return TASKS[name](**settings)


def main() -> None:
    """Run one task and print its cost. With one thread, it is CPU time, which other programs hardly affect."""
    name, settings = sys.argv[1], json.loads(sys.argv[2])
    repeats = settings.pop("repeats", 1)
    action = prepare(name, settings)
    before, seconds = resident("VmRSS"), []
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for _ in range(1 + repeats):
        start = clock()
        action()
        seconds.append(clock() - start)
    print(json.dumps({"seconds": min(seconds[-repeats:]), "before": before, "peak": resident("VmHWM")}))


if __name__ == "__main__":
    main()
