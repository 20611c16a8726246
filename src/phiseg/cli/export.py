"""The command `phiseg export`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import Flag, optional, parse
from phiseg.core.bundled import find_model
from phiseg.core.errors import ConfigError


@dataclass
class Export:
    """Export a trained model as an ONNX file, as a MONAI bundle, or both.

    The ONNX file runs without phiseg and torch. Its inputs are `image` (batch, channels, H, W), preprocessed as the
    metadata of the file states, and standard normal noise `noise_0`, `noise_1`, .... The metadata `noise_names`
    states what each controls: a latent level, whether the sample is empty, or the member of an ensemble. Its
    outputs are `logits` and `probs` (batch, classes, H, W), one sample per image. The same noise gives the same
    sample. For a 3-D model, the size is (D, H, W). ONNX export requires: pip install 'phiseg[onnx]'

    The MONAI bundle is a folder for `python -m monai.bundle run`. It preprocesses NIfTI files (or arrays, if the
    model was trained on arrays), draws samples, and writes their mean probabilities and labels. It contains a copy
    of the model and requires phiseg at run time.

    Examples:
        phiseg export runs/phiseg --onnx phiseg.onnx
        phiseg export runs/phiseg --monai-bundle phiseg-bundle
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Model folder, run folder that contains one, name of a bundled model, or hf:owner/name@revision."""
    onnx: Annotated[Path | None, optional("FILE", "no ONNX file")] = None
    """ONNX file to write."""
    monai_bundle: Annotated[Path | None, optional("DIR", "no bundle")] = None
    """Folder of the MONAI bundle to write."""
    size: Annotated[tuple[int, ...] | None, optional("[D] H W", "size of the training images")] = None
    """Height and width of the input images of the ONNX file; for a 3-D model, slices, height and width."""
    uncalibrated: Flag = False
    """Omit the temperatures fitted by `phiseg calibrate`."""
    overwrite: Flag = False
    """Replace the file or bundle if it exists."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Export, arguments, prog=prog)
    if command.onnx is None and command.monai_bundle is None:
        raise ConfigError("nothing to write; give --onnx FILE, --monai-bundle DIR or both")
    if command.size is not None and command.onnx is None:
        raise ConfigError("--size applies to --onnx FILE only; omit it, a MONAI bundle takes images of any size")
    find_model(Path(command.model))
    from phiseg.core.files import check_replaceable
    from phiseg.inference.export import export_onnx
    from phiseg.inference.monai_bundle import MARKER, write_monai_bundle

    calibrated, overwrite = not command.uncalibrated, command.overwrite
    if command.monai_bundle is not None:
        check_replaceable(command.monai_bundle, overwrite=overwrite, marker=MARKER)
    if command.onnx is not None:
        inputs = export_onnx(
            command.model, command.onnx, size=command.size, calibrated=calibrated, overwrite=overwrite
        )
        print(f"{command.onnx}: draws one sample per image from {', '.join(inputs)}. To use it in Python:")
        print(f"  session = onnxruntime.InferenceSession({str(command.onnx)!r})")
        print("  inputs = {'image': image}  # preprocessed as in session.get_modelmeta().custom_metadata_map")
        if len(inputs) > 1:
            print("  random = numpy.random.default_rng()")
            print("  for noise in session.get_inputs()[1:]:")
            print("      shape = (len(image), *noise.shape[1:])")
            print("      inputs[noise.name] = random.standard_normal(shape, dtype='float32')")
        print("  logits, probs = session.run(None, inputs)")
    if command.monai_bundle is not None:
        write_monai_bundle(command.model, command.monai_bundle, calibrated=calibrated, overwrite=overwrite)
        print(f"{command.monai_bundle}: MONAI bundle; its docs/README.md describes the input images. To run it:")
        print(f"  cd {command.monai_bundle}")
        print("  python -m monai.bundle run --config_file configs/inference.json --dataset_dir IMAGES")
