"""The configuration files of a MONAI bundle: metadata, and the steps of `python -m monai.bundle run`."""

from typing import Any

import nibabel
import numpy as np
import torch

from phiseg import __version__
from phiseg.data.neighbours import neighbour_offsets
from phiseg.imaging.volume import PLANES
from phiseg.inference.export import INTENDED_USE
from phiseg.inference.preprocessing import Preprocessing
from phiseg.models import Segmenter, SegmenterConfig

SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
MONAI_VERSION = "1.6.1"
"""The version of MONAI that bundles are tested with."""
CLASSES = "phiseg.inference.monai_bundle"
"""The module with the classes of phiseg that a bundle uses; written bundles contain its name."""
_SLICE_ZSCORE = (
    "$lambda image: (image - image.mean((-2, -1), keepdim=True))"
    " / image.std((-2, -1), correction=0, keepdim=True).clamp(min=1e-6)"
)


def metadata(model: Segmenter, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the metadata required by the schema of MONAI."""
    windowed = preprocessing.intensity.kind == "window"
    classes = preprocessing.classes
    context = 0 if preprocessing.plane is None else model.config.context
    channels = [
        f"image {channel}" + (f", slice {offset:+d}" if offset else "")
        for offset in neighbour_offsets(context)
        for channel in range(preprocessing.image_channels)
    ]
    of_volumes = model.config.dims == 3
    common = {
        "type": "image",
        "spatial_shape": list(preprocessing.inference_patch_size if of_volumes else preprocessing.size),
        "dtype": "float32",
        "is_patch_data": of_volumes,
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
    spacing = spacing_text(preprocessing)
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
        "description": f"Draws plausible segmentations of {'volumes' if of_volumes else '2-D images'} and gives "
        "their mean probabilities.",
        "authors": "those who trained the model",
        "copyright": "of those who trained the model",
        "data_source": preprocessing.dataset.name,
        "data_type": "numpy" if preprocessing.plane is None else "nibabel",
        "image_classes": f"{preprocessing.image_channels} channel(s), {image['format']}"
        + (f", pixels of {spacing}" if spacing else ""),
        "pred_classes": f"{len(classes)} channels: the mean probabilities of {', '.join(classes)}",
        "intended_use": INTENDED_USE,
        "references": [
            "Baumgartner et al., PHiSeg: Capturing Uncertainty in Medical Image Segmentation, MICCAI 2019"
        ],
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": pred}},
    }


def spacing_text(preprocessing: Preprocessing) -> str | None:
    """Return the pixel spacing of the training images; None if it is unknown."""
    if preprocessing.spacing_mm is not None:
        return "{} x {} mm".format(*preprocessing.spacing_mm)
    if preprocessing.spacing_range_mm is not None:
        return "{:.3g} to {:.3g} mm".format(*preprocessing.spacing_range_mm)
    return None


def inference_config(preprocessing: Preprocessing, model: SegmenterConfig) -> dict[str, Any]:
    """Return the configuration for `python -m monai.bundle run`."""
    from_nifti = preprocessing.plane is not None
    return {
        "imports": ["$import glob"],
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/images'",
        "output_dir": "$@bundle_root + '/predictions'",
        "num_samples": 16,
        "seed": 0,
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "datalist": f"$sorted(glob.glob(@dataset_dir + '/{'*.nii*' if from_nifti else '*.npy'}'))",
        "network_def": {
            "_target_": f"{CLASSES}.MeanPrediction",
            "folder": "$@bundle_root + '/models/phiseg'",
            "num_samples": "@num_samples",
            "seed": "@seed",
        },
        "network": "$@network_def.to(@device)",
        "preprocessing": {"_target_": "Compose", "transforms": _transforms(preprocessing, model)},
        "dataset": {
            "_target_": "Dataset",
            "data": "$[{'image': path} for path in @datalist]",
            "transform": "@preprocessing",
        },
        "inferer": _inferer(preprocessing, model),
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
            "_target_": f"{CLASSES}.Evaluator",
            "dataset": "@dataset",
            "network": "@network",
            "inferer": "@inferer",
            "postprocessing": "@postprocessing",
            "device": "@device",
        },
        "run": ["$@evaluator.run()"],
    }


def _inferer(preprocessing: Preprocessing, model: SegmenterConfig) -> dict[str, Any]:
    """Return MONAI's inferer: volumes in overlapping patches, slices and images whole."""
    if model.dims == 3:  # the ends of a volume that is smaller than a patch are repeated, as in training
        patches = {"roi_size": list(preprocessing.inference_patch_size), "overlap": 0.5, "mode": "gaussian"}
        return {"_target_": "SlidingWindowInferer", **patches, "sw_batch_size": 1, "padding_mode": "replicate"}
    whole = {"roi_size": [-1, -1], "sw_batch_size": 4}
    if preprocessing.plane is None:
        return {"_target_": "SlidingWindowInferer", **whole}
    return {"_target_": "SliceInferer", "spatial_dim": 0, **whole}


def _transforms(preprocessing: Preprocessing, model: SegmenterConfig) -> list[dict[str, Any]]:
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
    of_the_crop = intensity.kind == "image_zscore" and preprocessing.centred_on is not None
    transforms = []
    if plane is None:  # arrays (H, W) or (C, H, W), with slices before H for a 3-D model
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
    if not of_the_crop:
        transforms += zscore
    if plane is not None and preprocessing.spacing_mm is not None:
        transforms.append(transform("Spacingd", pixdim=[-1.0, *preprocessing.spacing_mm], mode="bilinear"))
    if preprocessing.centred_on is not None:
        has_slices = plane is not None or model.dims == 3
        size = [*([-1] if has_slices else []), *preprocessing.size]
        value = intensity.low if windowed else 0.0
        padding = {"mode": "edge"} if of_the_crop else {"mode": "constant", "constant_values": value}
        transforms.append(transform("ResizeWithPadOrCropd", spatial_size=size, **padding))
    if of_the_crop:
        transforms += zscore
    if windowed:
        limits = {"a_min": intensity.low, "a_max": intensity.high, "b_min": -0.5, "b_max": 0.5}
        transforms.append(transform("ScaleIntensityRanged", **limits, clip=True))
    if plane is not None and model.context:
        neighbours = {"_target_": f"{CLASSES}.StackNeighbours", "context": model.context}
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
