"""`phiseg export`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import parse


@dataclass
class Export:
    """Write a trained model for other software: as an ONNX file, as a MONAI bundle, or both.

    The ONNX file needs neither phiseg nor torch. Its inputs are `image` (batch, channels, H, W), prepared as the
    metadata of the file says, and standard normal noise `noise_0`, `noise_1`, ..., one for each latent level, fine
    to coarse; its outputs are `logits` and `probs` (batch, classes, H, W): one sample of each image. The same noise
    gives the same sample; draw other noise for another one. Needs: pip install 'phiseg[onnx]'

    The MONAI bundle is a folder that `python -m monai.bundle run` runs on NIfTI files (or on arrays, where training
    images came from arrays): it prepares them, draws samples, and writes their mean probabilities and labels. It
    holds a copy of the model and needs phiseg where it runs.

    Example: phiseg export runs/phiseg --onnx phiseg.onnx --monai-bundle phiseg-bundle
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A model folder, the run folder around it, or the name of a bundled model."""
    onnx: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """ONNX file to write."""
    monai_bundle: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the MONAI bundle to make."""
    size: Annotated[tuple[int, int] | None, tyro.conf.arg(metavar="H W")] = None
    """Height and width of the images that the ONNX file takes; those of training by default."""
    uncalibrated: bool = False
    """Leave out the temperatures that `phiseg calibrate` fitted."""
    overwrite: bool = False
    """Replace the file or the bundle if it exists."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Export, arguments, prog=prog)
    from phiseg.core.errors import ConfigError
    from phiseg.core.files import check_replaceable
    from phiseg.inference.export import export_onnx
    from phiseg.inference.monai_bundle import MARKER, write_monai_bundle

    if command.onnx is None and command.monai_bundle is None:
        raise ConfigError("nothing to write; give --onnx FILE, --monai-bundle DIR or both")
    if command.size is not None and command.onnx is None:
        raise ConfigError("--size is for --onnx FILE; a MONAI bundle takes images of any size, so leave it out")
    calibrated, overwrite = not command.uncalibrated, command.overwrite
    if command.monai_bundle is not None:
        check_replaceable(command.monai_bundle, overwrite=overwrite, marker=MARKER)
    if command.onnx is not None:
        inputs = export_onnx(
            command.model, command.onnx, size=command.size, calibrated=calibrated, overwrite=overwrite
        )
        print(f"{command.onnx}: one sample of each image from {', '.join(inputs)}. In Python, with numpy:")
        print(f"  session = onnxruntime.InferenceSession({str(command.onnx)!r})")
        print("  inputs = {'image': image}  # prepared as session.get_modelmeta().custom_metadata_map says")
        if len(inputs) > 1:
            print("  random = numpy.random.default_rng()")
            print("  for noise in session.get_inputs()[1:]:")
            print("      shape = (len(image), *noise.shape[1:])")
            print("      inputs[noise.name] = random.standard_normal(shape, dtype='float32')")
        print("  logits, probs = session.run(None, inputs)")
    if command.monai_bundle is not None:
        write_monai_bundle(command.model, command.monai_bundle, calibrated=calibrated, overwrite=overwrite)
        print(f"{command.monai_bundle}: a MONAI bundle; docs/README.md in it says what images it takes. To run it:")
        print(f"  cd {command.monai_bundle}")
        print("  python -m monai.bundle run --config_file configs/inference.json --dataset_dir IMAGES")
