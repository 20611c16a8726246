"""PHiSeg: draw plausible expert segmentations of medical images, and see where experts would disagree.

>>> import phiseg
>>> model = phiseg.load("lesion-phantom")  # or a folder that a training wrote
>>> image = model.prepare([[0.0, 0.5], [0.5, 1.0]])
>>> model.sample(image, 4, seed=0).shape  # (images, samples, classes, height, width)
torch.Size([1, 4, 2, 2, 2])

`import phiseg` is fast: everything below is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phiseg import metrics as metrics
    from phiseg.api.commands import compare as compare
    from phiseg.api.commands import evaluate as evaluate
    from phiseg.api.commands import read_scores as read_scores
    from phiseg.api.commands import sample as sample
    from phiseg.api.commands import train as train
    from phiseg.api.deployment import export_onnx as export_onnx
    from phiseg.api.deployment import predict as predict
    from phiseg.api.deployment import write_monai_bundle as write_monai_bundle
    from phiseg.api.experiments import run_experiment as run_experiment
    from phiseg.api.model import Model as Model
    from phiseg.api.model import load as load
    from phiseg.api.results import Comparison as Comparison
    from phiseg.api.results import Predictions as Predictions
    from phiseg.api.results import Run as Run
    from phiseg.api.results import Samples as Samples
    from phiseg.api.results import Scores as Scores
    from phiseg.api.scoring import score as score
    from phiseg.core.bundled import recipe_names as recipe_names
    from phiseg.core.errors import PhisegError as PhisegError
    from phiseg.core.records import Records as Records
    from phiseg.data.check import check_dataset as check_dataset
    from phiseg.data.prepare.arrays import prepare_arrays as prepare_arrays
    from phiseg.data.prepare.images import prepare_images as prepare_images
    from phiseg.data.prepare.legacy import prepare_legacy as prepare_legacy
    from phiseg.data.prepare.lidc import prepare_lidc as prepare_lidc
    from phiseg.data.prepare.nifti import prepare_nifti as prepare_nifti
    from phiseg.data.prepare.phantom import prepare_phantom as prepare_phantom
    from phiseg.data.store import Dataset as Dataset
    from phiseg.evaluation.calibrate import calibrate as calibrate
    from phiseg.imaging.volume import Volume as Volume
    from phiseg.inference.sampling_options import Sampling as Sampling
    from phiseg.plotting.contact_sheet import choose_cases as choose_cases
    from phiseg.plotting.contact_sheet import contact_sheet as contact_sheet
    from phiseg.training.combining import combine as combine
    from phiseg.training.recipe import Recipe as Recipe
    from phiseg.training.recipe import load_recipe as load_recipe

__version__ = "0.1.0"

_MODULES = {
    "phiseg.api.commands": (
        "compare",
        "evaluate",
        "read_scores",
        "sample",
        "train",
    ),
    "phiseg.api.deployment": ("export_onnx", "predict", "write_monai_bundle"),
    "phiseg.api.experiments": ("run_experiment",),
    "phiseg.api.model": ("Model", "load"),
    "phiseg.api.results": ("Comparison", "Predictions", "Run", "Samples", "Scores"),
    "phiseg.api.scoring": ("score",),
    "phiseg.core.errors": ("PhisegError",),
    "phiseg.core.records": ("Records",),
    "phiseg.core.bundled": ("recipe_names",),
    "phiseg.data.check": ("check_dataset",),
    "phiseg.data.prepare.arrays": ("prepare_arrays",),
    "phiseg.data.prepare.images": ("prepare_images",),
    "phiseg.data.prepare.legacy": ("prepare_legacy",),
    "phiseg.data.prepare.lidc": ("prepare_lidc",),
    "phiseg.data.prepare.nifti": ("prepare_nifti",),
    "phiseg.data.prepare.phantom": ("prepare_phantom",),
    "phiseg.data.store": ("Dataset",),
    "phiseg.evaluation.calibrate": ("calibrate",),
    "phiseg.imaging.volume": ("Volume",),
    "phiseg.inference.sampling_options": ("Sampling",),
    "phiseg.plotting.contact_sheet": ("choose_cases", "contact_sheet"),
    "phiseg.training.combining": ("combine",),
    "phiseg.training.recipe": ("Recipe", "load_recipe"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
"""The module of each name; `import phiseg` imports none of them."""

__all__ = ["__version__", "metrics", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name == "metrics":
        return import_module("phiseg.metrics")
    if name not in _HOMES:
        raise AttributeError(f"module 'phiseg' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
