"""Export a trained model as an ONNX file that runs without phiseg and torch, with the noise as inputs.

Shapes: B images, C image channels, K classes, H W pixels, L noise tensors. For a 3-D model, read D H W for
H W.
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from phiseg import __version__
from phiseg.core.errors import ConfigError, ModelError
from phiseg.core.files import AnyPath, atomic_file, check_new_file
from phiseg.inference.preprocessing import Preprocessing
from phiseg.models import Segmenter, load_model

OPSET = 18
"""ONNX opset that torch writes without conversion and that onnxruntime supports since 1.14."""
INTENDED_USE = "Research only. Not a medical device: not for diagnosis, treatment or any other clinical decision."
OUTPUTS = ("logits", "probs")


class OneSample(nn.Module):
    """Draw one segmentation per image from given noise, as `Segmenter.sample` does from random noise.

    Args:
        model: model in evaluation mode; its calibration is included.
    """

    def __init__(self, model: Segmenter):
        super().__init__()
        self.model = model

    def forward(self, image: Tensor, *noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and probabilities, each (B, K, H, W).

        Args:
            image: (B, C, H, W), preprocessed as for training.
            noise: standard normal noise, one tensor (B, *shape) per noise shape of the model.
        """
        encoding = self.model.encode(image)
        tempered = self.model.temper([level[:, None] for level in noise])  # each (B, 1, *shape)
        logits = self.model.calibration.apply(self.model.decode_samples(encoding, tempered, 1)[:, 0], dim=1)
        return logits, logits.softmax(1)

    def export(self, size: tuple[int, ...]) -> torch.export.ExportedProgram:
        """Return the graph for images of `size` (H, W) in batches of any size.

        Raises:
            ModelError: the model contains operations that cannot be exported.
        """
        batch = torch.export.Dim("batch")
        image = torch.zeros(2, self.model.config.input_channels, *size)
        noise = [torch.zeros(2, *shape) for shape in self.model.noise_shapes(size)]
        shapes = {"image": {0: batch}} | ({"noise": tuple({0: batch} for _ in noise)} if noise else {})
        try:
            with _quietly():
                return torch.export.export(self, (image, *noise), dynamic_shapes=shapes)
        except Exception as error:  # torch has no common exception for export errors
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ModelError(
                f"model '{self.model.config.name}' cannot be exported (torch.export: {reason}); "
                "use it with phiseg.load"
            ) from error


def export_onnx(
    model_folder: AnyPath,
    path: AnyPath,
    *,
    size: tuple[int, ...] | None = None,
    calibrated: bool = True,
    overwrite: bool = False,
) -> tuple[str, ...]:
    """Export a model as an ONNX file that computes one sample per image from given noise.

    Inputs are `image` (B, C, H, W) and `noise_0` .. `noise_{L-1}`, each (B, *shape), in the order of
    `Segmenter.noise_names`; outputs are `logits` and `probs` (B, K, H, W). B is variable, the size is fixed. The
    metadata of the file describes the preprocessing, the classes, the noise and the intended use.

    Args:
        model_folder: model folder, or the run folder that contains it.
        path: file to write.
        size: (H, W) of the images; None uses the size of the training images or patches.
        calibrated: include the factors fitted by `phiseg calibrate`, if any.
        overwrite: replace an existing file.

    Returns:
        The names of the inputs.

    Raises:
        ConfigError: the packages for ONNX are not installed, or the size is invalid.
        ModelError: the model folder cannot be read, or the model cannot be exported.
        OutputError: the file exists and `overwrite` is false, or it cannot be written.
    """
    if missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]:
        raise ConfigError(f"ONNX export requires {' and '.join(missing)}; run: pip install 'phiseg[onnx]'")
    from onnx.helper import set_model_props

    model_folder, path = Path(model_folder), Path(path)
    check_new_file(path, overwrite=overwrite)
    model = load_model(model_folder, calibrated=calibrated)
    preprocessing = Preprocessing.of(model)
    size = size or (preprocessing.size if model.config.dims == 2 else preprocessing.inference_patch_size)
    if len(size) != model.config.dims or min(size) < 1:
        axes = "height and width" if model.config.dims == 2 else "slices, height and width"
        raise ConfigError(f"size {' x '.join(map(str, size))} is invalid; give {axes}, each at least 1")
    exported = OneSample(model).export(size)
    inputs = ("image", *(f"noise_{level}" for level in range(len(model.noise_shapes(size)))))
    with _quietly():
        program = torch.onnx.export(
            exported,
            dynamo=True,
            input_names=inputs,
            output_names=OUTPUTS,
            opset_version=OPSET,
            dynamic_shapes=[{0: "batch"} for _ in inputs],
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    for part in (proto.graph, *proto.graph.node):
        part.ClearField("metadata_props")  # stack traces with local paths
    set_model_props(
        proto,
        {
            "phiseg_version": __version__,
            "recipe": str(model.provenance.get("recipe", "")),
            "classes": json.dumps(preprocessing.classes),
            "preprocessing": json.dumps(preprocessing.to_json()),
            "noise_names": json.dumps(model.noise_names),
            "calibration": model.calibration.model_dump_json(),
            "intended_use": INTENDED_USE,
        },
    )
    with atomic_file(path) as file:
        file.write(proto.SerializeToString())
    return inputs


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress internal messages of torch during the export."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)
