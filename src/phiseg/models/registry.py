"""Registry of models. To add a model: a module with its class and config, and an entry in `MODELS`."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field

from phiseg.core.errors import ConfigError, nearest
from phiseg.models.ccdm import CCDM
from phiseg.models.cvae import CVAE
from phiseg.models.ensemble import Ensemble
from phiseg.models.flow_ssn import FlowSSN
from phiseg.models.hprobunet import HProbUNet
from phiseg.models.mcdropout import MCDropout
from phiseg.models.mose import MoSE
from phiseg.models.multihead import MultiHead
from phiseg.models.phiseg import PHiSeg
from phiseg.models.phiseg_ensemble import PHiSegEnsemble
from phiseg.models.probunet import ProbUNet
from phiseg.models.segmenter import Segmenter, SegmenterConfig
from phiseg.models.ssn import SSN
from phiseg.models.unet import UNet

MODELS: dict[str, type[Segmenter]] = {
    "ccdm": CCDM,
    "cvae": CVAE,
    "ensemble": Ensemble,
    "flow-ssn": FlowSSN,
    "hprobunet": HProbUNet,
    "mcdropout": MCDropout,
    "mose": MoSE,
    "multihead": MultiHead,
    "phiseg": PHiSeg,
    "phiseg-ensemble": PHiSegEnsemble,
    "probunet": ProbUNet,
    "ssn": SSN,
    "unet": UNet,
}

if TYPE_CHECKING:
    ModelConfig = SegmenterConfig
else:  # the config of any registered model, which pydantic chooses by its name
    ModelConfig = Annotated[reduce(or_, (kind.Config for kind in MODELS.values())), Field(discriminator="name")]


def build_model(config: SegmenterConfig) -> Segmenter:
    """Return a new model with random weights from the global generator of torch.

    The model uses the channels-last memory format: results are the same, and a step of a small network on a CPU
    takes about a quarter less time. `set_memory_format` in `phiseg.training.memory_format` chooses the format for
    training.

    Raises:
        ConfigError: there is not enough memory for the model.
    """
    try:
        model = model_class(config.name)(config)
        layout = torch.channels_last if config.dims == 2 else torch.channels_last_3d
        return model.to(memory_format=layout)  # type: ignore[call-overload, no-any-return]
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise ConfigError(
            f"not enough memory for a {config.name} of this size; use fewer or smaller model.channels"
        ) from None


def model_class(name: Any) -> type[Segmenter]:
    """Return the class registered under `name`.

    Raises:
        ConfigError: the name is unknown; the message lists valid names.
    """
    if not isinstance(name, str) or name not in MODELS:
        raise ConfigError(f"unknown model {name!r} ({nearest(str(name), MODELS)})")
    return MODELS[name]
