"""Tiny models as MONAI bundles, and MONAI's tools that run them."""

import nibabel
import numpy as np
import torch

from phiseg.imaging.volume import Volume
from phiseg.models.model_folder import save_calibration, save_model
from phiseg.models.noise import image_key, seeded_generator
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.registry import build_model

WINDOW = {"kind": "window", "low": -100.0, "high": 300.0}
AXES = np.array([[0, -2.0, 0, 30], [0, 0, 5.0, -20], [0.5, 0, 0, 7], [0, 0, 0, 1]])
"""Of a volume whose axes go towards Superior, Left and Anterior, with three spacings."""


def save_tiny_model(folder, *, channels=1, context=0, axes=None, calibration=None, **preprocessing):
    """Write the folder of a tiny model with three classes, and return it."""
    torch.manual_seed(0)
    config = PHiSegConfig(
        channels=(3, 4),
        num_levels=2,
        blocks_per_level=1,
        num_classes=3,
        image_channels=channels,
        context=context,
        head_init=1.0,
        **(axes or {}),
    )
    values = {
        "classes": ["background", "core", "rim"],
        "image_channels": channels,
        "size": [10, 8],
        "intensity": WINDOW,
    }
    model = build_model(config)
    save_model(
        folder,
        model,
        preprocessing=values | preprocessing,
        provenance={"recipe": "tiny"},
        card="# A card\n",
    )
    if calibration:
        save_calibration(folder, calibration, fit={})
    return folder


def run(bundle, images, out, **options):
    """Run the bundle in this process and return what it wrote, by name."""
    from monai.bundle import run

    run(
        config_file=str(bundle / "configs" / "inference.json"),
        meta_file=str(bundle / "configs" / "metadata.json"),
        workflow_type="infer",
        bundle_root=str(bundle),
        dataset_dir=str(images),
        output_dir=str(out),
        **options,
    )
    return {path.name: nibabel.load(path) for path in out.iterdir()}


def prepared(bundle, images):
    """Return the first image as the bundle shows it to the network."""
    from monai.bundle import ConfigParser

    parser = ConfigParser()
    parser.read_config(str(bundle / "configs" / "inference.json"))
    parser.update({"dataset_dir": str(images), "bundle_root": str(bundle)})
    return parser.get_parsed_content("dataset")[0]["image"]


def random_volume(shape, affine=AXES):
    values = np.random.default_rng(3).normal(100, 200, shape).astype(np.float32)
    return Volume(values, np.asarray(affine, dtype=np.float64))


def mean_of_samples(model, image, num_samples, seed=0, *, case):
    """Return mean probabilities (B, K, H, W) of images, each sampled with the noise of `case`, a prepared image."""
    generators = [seeded_generator(seed, "mean prediction", image_key(case)) for _ in image]
    return model.sample(torch.as_tensor(image), num_samples, generator=generators).softmax(2).mean(1).numpy()
