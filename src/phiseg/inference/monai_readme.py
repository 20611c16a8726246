"""The texts of a MONAI bundle: README and licence."""

from phiseg import __version__
from phiseg.inference.export import INTENDED_USE
from phiseg.inference.monai_config import MONAI_VERSION, spacing_text
from phiseg.inference.preprocessing import Preprocessing
from phiseg.models import Segmenter, SegmenterConfig

LICENSE = """The configuration files and texts of this bundle were written by phiseg and may be used under the
Apache License, Version 2.0 (https://www.apache.org/licenses/LICENSE-2.0).

The weights in models/ belong to those who trained them, and may be subject to the terms of the training data. State
their licence here before you share the bundle.
"""


def readme(model: Segmenter, preprocessing: Preprocessing) -> str:
    """Return the README of a bundle: how to run it, and the images that it takes."""
    config = model.config
    return f"""# {model.provenance.get("recipe", config.name)}: a MONAI bundle written by phiseg {__version__}

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
| images | {_images(preprocessing, config)} |
| modality | {preprocessing.modality or "not specified"} |
| intensities | {_values(preprocessing)} |
| spacing | {_spacing(preprocessing)} |
| network input | {_part(preprocessing, config)} |
| neighbouring slices | {_neighbours(preprocessing, config)} |
| classes | {", ".join(preprocessing.classes)} |

Different images have independent noise. {_sharing(config)}

`NAME_mean.nii.gz` (classes in the last dimension) and `NAME_labels.nii.gz` have the grid of the image `NAME`.

To check the bundle, run the following commands. The second one downloads MONAI's schema to SCHEMA.json, unless this
file exists:

```
python -m monai.bundle verify_net_in_out network_def --config_file configs/inference.json \\
    --meta_file configs/metadata.json
python -m monai.bundle verify_metadata --meta_file configs/metadata.json --filepath SCHEMA.json
```
"""


def _images(preprocessing: Preprocessing, config: SegmenterConfig) -> str:
    several = preprocessing.image_channels > 1
    if preprocessing.plane is None:
        axes = "H, W" if config.dims == 2 else "D, H, W"
        shape = f"({preprocessing.image_channels}, {axes})" if several else f"({axes})"
        first = "rows" if config.dims == 2 else "slices"
        return f".npy files with one array {shape} each, {first} first, as the training images were stored"
    how = "are segmented one at a time" if config.dims == 2 else "are segmented together, as a volume"
    channels = f", and the {preprocessing.image_channels} channels are the fourth dimension" if several else ""
    return f"NIfTI files; {preprocessing.plane} slices {how}{channels}"


def _values(preprocessing: Preprocessing) -> str:
    intensity = preprocessing.intensity
    if intensity.kind == "window":
        return f"{intensity.low:g} to {intensity.high:g} is mapped to [-0.5, 0.5]; values outside are clipped"
    whole = "file" if intensity.kind == "zscore" else "slice"
    return f"minus the mean, divided by the standard deviation of the {whole}, for each channel separately"


def _spacing(preprocessing: Preprocessing) -> str:
    in_plane = spacing_text(preprocessing)
    if in_plane is None:
        return "that of the image; not resampled"
    if preprocessing.spacing_mm is None:
        return (
            f"that of the image, {in_plane} in training. **The bundle does not resample images outside this "
            "range**; resample them before, or use `phiseg predict`, which does"
        )
    if preprocessing.plane is None:
        return f"{in_plane} in training; arrays must already have this spacing"
    return f"resampled to {in_plane}"


def _part(preprocessing: Preprocessing, config: SegmenterConfig) -> str:
    height, width = preprocessing.size
    kind, patches = "images", ""
    if config.dims == 3:
        shape = "{} x {} x {}".format(*preprocessing.inference_patch_size)
        kind, patches = "volumes", f", in overlapping patches of {shape} voxels (slices first), as in training"
    if preprocessing.centred_on is not None:
        return (
            f"the central {height} x {width} pixels{patches}. **The model was trained on {kind} centred on a "
            f"{preprocessing.centred_on}: crop your {kind} in the same way.** Outside this part, nothing is "
            "predicted and the mean is 0 for every class"
        )
    return f"the whole volume{patches}" if patches else f"the whole slice; {height} x {width} pixels in training"


def _neighbours(preprocessing: Preprocessing, config: SegmenterConfig) -> str:
    if config.dims == 3:
        return "part of the volume"
    if not config.context:
        return "not used"
    if preprocessing.plane is None:
        return f"the model takes {config.context} on each side, but a single image has none and stands in for them"
    return f"{config.context} on each side; the slice stands in for them where the file ends"


def _sharing(config: SegmenterConfig) -> str:
    if config.dims == 2:
        return "The slices of an image share theirs."
    return "All patches of an image start from the same noise, wherever they lie."
