"""PHiSeg: plausible expert segmentations of a medical image, as many as you like.

>>> import phiseg
>>> model = phiseg.load("runs/demo/phiseg-small")  # doctest: +SKIP
>>> logits = model.sample(image, 16, generator=torch.Generator().manual_seed(0))  # doctest: +SKIP
"""

from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phiseg.models import Segmenter

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(folder: str | Path, *, device: str = "cpu", calibrated: bool = True) -> "Segmenter":
    """Load a trained model from its folder (or the run folder around it); it is ready to `sample` and to `predict`.

    Reads JSON and safetensors only: nothing in the folder is executed.

    Args:
        folder: of the model.
        device: where to put it, e.g. cpu or cuda:1.
        calibrated: sample with the temperatures that `phiseg calibrate` fitted, if it did.

    Raises:
        ModelError: the folder is missing, damaged or of another program.
    """
    from phiseg.inference.volumes import (
        predict_volume,
    )  # torch is imported when it is needed, not by `import phiseg`
    from phiseg.models import load_model

    model = load_model(Path(folder), device=device, calibrated=calibrated)
    model.predict = MethodType(predict_volume, model)
    return model
