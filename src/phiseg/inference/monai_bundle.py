"""Export a trained model as a MONAI bundle, a folder that the tools of MONAI can run.

OUT/  configs/metadata.json  configs/inference.json   docs/README.md  LICENSE
      models/phiseg/ (the model folder)               models/model.pt (the same weights, for `monai.bundle.load`)

The network of the bundle is `MeanPrediction`, so phiseg must be installed where it runs. Everything else is from
MONAI: transforms apply the preprocessing of preprocessing.json, are inverted after the prediction, and write NIfTI
files. This module does not import MONAI.

Shapes: B images, C image channels, K classes, H W pixels.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
from torch import Tensor, nn

from phiseg import __version__
from phiseg.core.errors import DataError, ModelError
from phiseg.core.files import AnyPath, atomic_file, atomic_folder, check_replaceable, write_json, write_text
from phiseg.core.shipped import find_model
from phiseg.data.neighbours import neighbour_offsets, with_neighbours
from phiseg.imaging.volume import PLANES
from phiseg.inference.export import INTENDED_USE
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sample_summary import summarise_samples
from phiseg.models import Segmenter, load_model
from phiseg.models.noise import seeded_generator
from phiseg.models.pretrained import CALIBRATION_FILE

MARKER = "models/phiseg/config.json"
"""The file that identifies a bundle written by phiseg."""
SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
MONAI_VERSION = "1.6.1"
"""The version of MONAI that bundles are tested with."""
_SLICE_ZSCORE = (
    "$lambda image: (image - image.mean((-2, -1), keepdim=True))"
    " / image.std((-2, -1), correction=0, keepdim=True).clamp(min=1e-6)"
)


class MeanPrediction(nn.Module):
    """The network of the bundle: the mean probabilities of several samples.

    The noise depends only on the seed, so all images, and all slices of a volume, have the same noise.

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

    def forward(self, image: Tensor) -> Tensor:
        """Return mean probabilities (B, K, H, W) of preprocessed images (B, C, H, W)."""
        generators = [seeded_generator(self.seed, "mean prediction") for _ in range(len(image))]
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
        network: network on `device`.
        inferer: MONAI inferer, called with the image (1, C, ...) and the network.
        postprocessing: transform that takes the dictionary with the prediction (K, ...) as `pred` and writes files.
        device: device of the network.
    """

    def __init__(
        self,
        dataset: Sequence[dict[str, Any]],
        network: nn.Module,
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
        write_json(new / "configs" / "metadata.json", _metadata(model, preprocessing))
        write_json(new / "configs" / "inference.json", _inference(preprocessing, model.config.context))
        write_text(new / "docs" / "README.md", _readme(model, preprocessing))
        write_text(new / "LICENSE", _LICENSE)


def _metadata(model: Segmenter, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the metadata required by the schema of MONAI."""
    windowed = preprocessing.intensity.kind == "window"
    classes = preprocessing.classes
    context = 0 if preprocessing.plane is None else model.config.context
    channels = [
        f"image {channel}" + (f", slice {offset:+d}" if offset else "")
        for offset in neighbour_offsets(context)
        for channel in range(preprocessing.image_channels)
    ]
    common = {
        "type": "image",
        "spatial_shape": list(preprocessing.size),
        "dtype": "float32",
        "is_patch_data": False,
    }
    image = {
        **common,
        "format": "windowed to [-0.5, 0.5]" if windowed else "z-scored",
        "num_channels": len(channels),
        "value_range": [-0.5, 0.5] if windowed else [],
        "channel_def": {str(number): name for number, name in enumerate(channels)},
    }
    pred = {
        **common,
        "format": "mean probabilities",
        "num_channels": len(classes),
        "value_range": [0, 1],
        "channel_def": {str(number): name for number, name in enumerate(classes)},
    }
    return {
        "schema": SCHEMA,
        "version": "0.1.0",
        "changelog": {"0.1.0": f"written by phiseg {__version__}"},
        "monai_version": MONAI_VERSION,
        "pytorch_version": torch.__version__.partition("+")[0],
        "numpy_version": np.__version__,
        "required_packages_version": {"phiseg": __version__, "nibabel": nibabel.__version__},
        "name": f"phiseg {model.provenance.get('recipe', model.config.name)}",
        "task": f"Segmentation of {', '.join(classes[1:])} with the disagreement of annotators",
        "description": "Draws plausible segmentations of 2-D images and gives their mean probabilities.",
        "authors": "those who trained the model",
        "copyright": "of those who trained the model",
        "data_source": preprocessing.dataset.name,
        "data_type": "numpy" if preprocessing.plane is None else "nibabel",
        "image_classes": f"{preprocessing.image_channels} channel(s), {image['format']}",
        "pred_classes": f"{len(classes)} channels: the mean probabilities of {', '.join(classes)}",
        "intended_use": INTENDED_USE,
        "references": [
            "Baumgartner et al., PHiSeg: Capturing Uncertainty in Medical Image Segmentation, MICCAI 2019"
        ],
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": pred}},
    }


def _inference(preprocessing: Preprocessing, context: int) -> dict[str, Any]:
    """Return the configuration for `python -m monai.bundle run`."""
    sliced = preprocessing.plane is not None
    return {
        "imports": ["$import glob"],
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/images'",
        "output_dir": "$@bundle_root + '/predictions'",
        "num_samples": 16,
        "seed": 0,
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "datalist": f"$sorted(glob.glob(@dataset_dir + '/{'*.nii*' if sliced else '*.npy'}'))",
        "network_def": {
            "_target_": f"{__name__}.MeanPrediction",
            "folder": "$@bundle_root + '/models/phiseg'",
            "num_samples": "@num_samples",
            "seed": "@seed",
        },
        "network": "$@network_def.to(@device)",
        "preprocessing": {"_target_": "Compose", "transforms": _transforms(preprocessing, context)},
        "dataset": {
            "_target_": "Dataset",
            "data": "$[{'image': path} for path in @datalist]",
            "transform": "@preprocessing",
        },
        "inferer": {
            **({"_target_": "SliceInferer", "spatial_dim": 0} if sliced else {"_target_": "SlidingWindowInferer"}),
            "roi_size": [-1, -1],  # the whole image
            "sw_batch_size": 4,
        },
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                {
                    "_target_": "Invertd",
                    "keys": "pred",
                    "orig_keys": "image",
                    "transform": "@preprocessing",
                    "nearest_interp": False,
                },
                {"_target_": "CopyItemsd", "keys": "pred", "names": "labels"},
                {"_target_": "AsDiscreted", "keys": "labels", "argmax": True},
                _saved("pred", postfix="mean", dtype="float32", mode="bilinear"),
                _saved("labels", postfix="labels", dtype="uint8", mode="nearest"),
            ],
        },
        "evaluator": {
            "_target_": f"{__name__}.Evaluator",
            "dataset": "@dataset",
            "network": "@network",
            "inferer": "@inferer",
            "postprocessing": "@postprocessing",
            "device": "@device",
        },
        "run": ["$@evaluator.run()"],
    }


def _transforms(preprocessing: Preprocessing, context: int) -> list[dict[str, Any]]:
    """Return MONAI's transforms that do what `PreparedStack.images` does: spacing, crop, and the values.

    As there, a window clips the resampled image; z-scores are computed from the volume or the slice before
    resampling, or from the crop.
    """

    def transform(name: str, **options: Any) -> dict[str, Any]:
        return {"_target_": name, "keys": "image", **options}

    intensity, plane, several = preprocessing.intensity, preprocessing.plane, preprocessing.image_channels > 1
    windowed = intensity.kind == "window"
    zscore = {
        "window": [],
        "zscore": [transform("NormalizeIntensityd", channel_wise=True)],
        "image_zscore": [transform("Lambdad", func=_SLICE_ZSCORE)],
    }[intensity.kind]
    of_the_cut = intensity.kind == "image_zscore" and preprocessing.centred_on is not None
    transforms = []
    if plane is None:  # arrays (H, W) or (C, H, W)
        channel = 0 if several else "no_channel"
        transforms += [
            transform("LoadImaged", reader="NumpyReader", channel_dim=channel),
            transform("EnsureChannelFirstd", channel_dim=channel),
        ]
    else:  # volumes, or single slices without a third dimension; (C, slices, H, W) from here on
        assert plane != "auto"
        transforms += [
            transform("LoadImaged", reader="NibabelReader"),
            transform("EnsureChannelFirstd"),
            transform("Lambdad", func="$lambda image: image if image.ndim == 4 else image[..., None]"),
            transform("Orientationd", axcodes=PLANES[plane]),
        ]
    if not of_the_cut:
        transforms += zscore
    if plane is not None and preprocessing.spacing_mm is not None:
        transforms.append(transform("Spacingd", pixdim=[-1.0, *preprocessing.spacing_mm], mode="bilinear"))
    if preprocessing.centred_on is not None:
        size = [*([-1] if plane is not None else []), *preprocessing.size]
        value = intensity.low if windowed else 0.0
        padding = {"mode": "edge"} if of_the_cut else {"mode": "constant", "constant_values": value}
        transforms.append(transform("ResizeWithPadOrCropd", spatial_size=size, **padding))
    if of_the_cut:
        transforms += zscore
    if windowed:
        limits = {"a_min": intensity.low, "a_max": intensity.high, "b_min": -0.5, "b_max": 0.5}
        transforms.append(transform("ScaleIntensityRanged", **limits, clip=True))
    if plane is not None and context:
        neighbours = {"_target_": f"{__name__}.{StackNeighbours.__name__}", "context": context}
        transforms.append(transform("Lambdad", func=neighbours))
    return transforms


def _saved(key: str, *, postfix: str, dtype: str, mode: str) -> dict[str, Any]:
    return {
        "_target_": "SaveImaged",
        "keys": key,
        "output_dir": "@output_dir",
        "output_postfix": postfix,
        "output_dtype": f"$numpy.{dtype}",
        "resample": True,  # has no effect, but MONAI 1.6 needs it to write 2-D labels
        "mode": mode,
        "separate_folder": False,
    }


def _readme(model: Segmenter, preprocessing: Preprocessing) -> str:
    height, width = preprocessing.size
    several = preprocessing.image_channels > 1
    if preprocessing.plane is None:
        shape = f"({preprocessing.image_channels}, H, W)" if several else "(H, W)"
        images = f".npy files with one array {shape} each, rows first, as the training images were stored"
    else:
        images = f"NIfTI files; {preprocessing.plane} slices are segmented one at a time"
        images += f", and the {preprocessing.image_channels} channels are the fourth dimension" if several else ""
    context = model.config.context
    if not context:
        neighbours = "not used"
    elif preprocessing.plane is None:
        neighbours = f"the model takes {context} on each side, but a single image has none and stands in for them"
    else:
        neighbours = f"{context} on each side; the slice stands in for them where the file ends"
    if preprocessing.spacing_mm is None:
        spacing = "that of the image; not resampled"
    elif preprocessing.plane is None:
        spacing = "{} x {} mm in training; arrays must already have this spacing".format(*preprocessing.spacing_mm)
    else:
        spacing = "resampled to {} x {} mm".format(*preprocessing.spacing_mm)
    intensity = preprocessing.intensity
    whole = "file" if intensity.kind == "zscore" else "slice"
    values = (
        f"{intensity.low:g} to {intensity.high:g} is mapped to [-0.5, 0.5]; values outside are clipped"
        if intensity.kind == "window"
        else f"minus the mean, divided by the standard deviation of the {whole}, for each channel separately"
    )
    part = (
        f"the central {height} x {width} pixels. **The model was trained on images centred on a "
        f"{preprocessing.centred_on}: crop your images in the same way.** Outside this part, nothing is predicted "
        "and the mean is 0 for every class"
        if preprocessing.centred_on is not None
        else f"the whole slice; {height} x {width} pixels in training"
    )
    return f"""# {model.provenance.get("recipe", model.config.name)}: a MONAI bundle written by phiseg {__version__}

This bundle samples plausible segmentations of each image and writes their mean probabilities and the most probable
labels.
**{INTENDED_USE}**

It requires phiseg {__version__} (which contains the network), MONAI (tested: {MONAI_VERSION}), nibabel and fire.
The model and its card are in `models/phiseg`. To get single samples instead of their mean, use
`phiseg.load("models/phiseg")`. `models/model.pt` contains the same weights for tools that expect this name.

```
python -m monai.bundle run --config_file configs/inference.json --meta_file configs/metadata.json \\
    --bundle_root . --dataset_dir IMAGES --output_dir PREDICTIONS --num_samples 16 --seed 0
```

| | |
|---|---|
| images | {images} |
| modality | {preprocessing.modality or "not specified"} |
| intensities | {values} |
| spacing | {spacing} |
| network input | {part} |
| neighbouring slices | {neighbours} |
| classes | {", ".join(preprocessing.classes)} |

`NAME_mean.nii.gz` (classes in the last dimension) and `NAME_labels.nii.gz` have the grid of the image `NAME`.

To check the bundle, run the following commands. The second one downloads MONAI's schema to SCHEMA.json, unless this
file exists:

```
python -m monai.bundle verify_net_in_out network_def --config_file configs/inference.json \\
    --meta_file configs/metadata.json
python -m monai.bundle verify_metadata --meta_file configs/metadata.json --filepath SCHEMA.json
```
"""


_LICENSE = """The configuration files and texts of this bundle were written by phiseg and may be used under the
Apache License, Version 2.0 (https://www.apache.org/licenses/LICENSE-2.0).

The weights in models/ belong to those who trained them, and may be subject to the terms of the training data. State
their licence here before you share the bundle.
"""
