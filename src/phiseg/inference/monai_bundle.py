"""Export a trained model as a MONAI bundle, a folder that the tools of MONAI can run.

OUT/  configs/metadata.json  configs/inference.json   docs/README.md  LICENSE
      models/phiseg/ (the model folder)               models/model.pt (the same weights, for `monai.bundle.load`)

The network of the bundle is `MeanPrediction`, so phiseg must be installed where it runs. Everything else is from
MONAI: transforms apply the preprocessing of preprocessing.json, are inverted after the prediction, and write NIfTI
files. This module does not import MONAI.

Shapes: B images, C image channels, K classes, H W pixels. For a 3-D model, read D H W for H W.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from phiseg.core.bundled import find_model
from phiseg.core.errors import DataError, ModelError
from phiseg.core.files import AnyPath, atomic_file, atomic_folder, check_replaceable, write_json, write_text
from phiseg.data.neighbours import with_neighbours
from phiseg.inference.monai_config import inference_config, metadata
from phiseg.inference.monai_readme import LICENSE, readme
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sample_summary import summarise_samples
from phiseg.models import load_model
from phiseg.models.model_folder import CALIBRATION_FILE
from phiseg.models.noise import image_key, seeded_generator

MARKER = "models/phiseg/config.json"
"""The file that identifies a bundle written by phiseg."""


class MeanPrediction(nn.Module):
    """The network of the bundle: the mean probabilities of several samples.

    The noise depends on the seed and on `case`, which `Evaluator` sets: slices of one case have the same noise,
    different cases have independent noise.

    Args:
        folder: model folder.
        num_samples: number of samples.
        seed: seed of the samples.
        chunk_size: number of samples decoded at once. Affects memory use only, not results.
    """

    def __init__(self, folder: str, num_samples: int = 16, seed: int = 0, chunk_size: int = 16):
        super().__init__()
        self.model = load_model(Path(folder))
        self.num_samples, self.seed, self.chunk_size = num_samples, seed, chunk_size
        self.case = ""

    def forward(self, image: Tensor) -> Tensor:
        """Return mean probabilities (B, K, H, W) of preprocessed images (B, C, H, W)."""
        generators = [seeded_generator(self.seed, "mean prediction", self.case) for _ in range(len(image))]
        chunks = self.model.sample_chunks(image, self.num_samples, generator=generators, chunk_size=self.chunk_size)
        return torch.stack([summary.mean_probs for summary in summarise_samples(chunks)])


class StackNeighbours:
    """Adds the neighbours of each slice as channels, as `PreparedStack.images` does.

    Args:
        context: c, the number of neighbours on each side.
    """

    def __init__(self, context: int):
        self.context = context

    def __call__(self, image: Tensor) -> Tensor:
        """Return (C * (1 + 2c), slices, H, W) of a volume (C, slices, H, W)."""
        places = torch.from_numpy(with_neighbours(np.arange(image.shape[1]), image.shape[1], self.context))
        stacks = image[:, places]  # (C, slices, 1 + 2c, H, W)
        return stacks.movedim(2, 0).flatten(0, 1)


class Evaluator:
    """Run the network on a dataset, image by image. The evaluator of MONAI would require pytorch-ignite.

    Args:
        dataset: dataset of dictionaries with a preprocessed `image` (C, ...).
        network: network on `device`; its noise depends on the image.
        inferer: MONAI inferer, called with the image (1, C, ...) and the network.
        postprocessing: transform that takes the dictionary with the prediction (K, ...) as `pred` and writes files.
        device: device of the network.
    """

    def __init__(
        self,
        dataset: Sequence[dict[str, Any]],
        network: MeanPrediction,
        inferer: Callable[[Tensor, nn.Module], Tensor],
        postprocessing: Callable[[dict[str, Any]], Any],
        device: torch.device,
    ):
        self.dataset, self.network, self.inferer = dataset, network, inferer
        self.postprocessing, self.device = postprocessing, device

    def run(self) -> None:
        """Predict every image and write the results.

        Raises:
            DataError: there are no images.
        """
        if not len(self.dataset):
            raise DataError("there are no images; set --dataset_dir to the folder with the images")
        self.network.eval()
        for number in range(len(self.dataset)):
            item = self.dataset[number]
            self.network.case = image_key(item["image"])
            pred = self.inferer(item["image"][None].to(self.device), self.network)[0]
            self.postprocessing(item | {"pred": pred})


def write_monai_bundle(
    model_folder: AnyPath, out: AnyPath, *, calibrated: bool = True, overwrite: bool = False
) -> None:
    """Write a trained model as a MONAI bundle.

    Args:
        model_folder: model folder, or the run folder that contains it; the model is copied.
        out: folder of the bundle.
        calibrated: include the factors fitted by `phiseg calibrate`, if any.
        overwrite: replace an existing bundle.

    Raises:
        ModelError: the model folder cannot be read, or a bundle cannot apply its preprocessing.
        OutputError: the folder exists and `overwrite` is false, or it cannot be written.
    """
    out = Path(out)
    check_replaceable(out, overwrite=overwrite, marker=MARKER)
    source = find_model(Path(model_folder))
    model = load_model(source, calibrated=calibrated)
    preprocessing = Preprocessing.of(model)
    if preprocessing.plane == "auto":
        raise ModelError(
            f"{source} was trained on the acquisition plane of each volume ('auto'), which the fixed transforms of "
            "a bundle do not support; use `phiseg predict`, or train on a fixed plane"
        )
    names = [
        "config.json",
        "model.safetensors",
        "preprocessing.json",
        "README.md",
        *([CALIBRATION_FILE] * calibrated),
    ]
    with atomic_folder(out, overwrite=overwrite, marker=MARKER) as new:
        copied = new / "models" / "phiseg"
        copied.mkdir(parents=True)
        for name in names:
            if (source / name).is_file():  # the card and the calibration are optional
                shutil.copyfile(source / name, copied / name)
        with atomic_file(new / "models" / "model.pt") as file:
            torch.save(MeanPrediction(str(copied)).state_dict(), file)
        write_json(new / "configs" / "metadata.json", metadata(model, preprocessing))
        write_json(new / "configs" / "inference.json", inference_config(preprocessing, model.config))
        write_text(new / "docs" / "README.md", readme(model, preprocessing))
        write_text(new / "LICENSE", LICENSE)
