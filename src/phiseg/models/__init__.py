from phiseg.models.model_folder import load_model, save_calibration, save_model
from phiseg.models.objective import Loss
from phiseg.models.registry import MODELS, ModelConfig, build_model
from phiseg.models.segmenter import Encoding, Segmenter, SegmenterConfig

__all__ = [
    "MODELS",
    "Encoding",
    "Loss",
    "ModelConfig",
    "Segmenter",
    "SegmenterConfig",
    "build_model",
    "load_model",
    "save_calibration",
    "save_model",
]
