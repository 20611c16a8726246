"""Parameters of an inference request, as the plug-ins of 3D Slicer and OHIF send them."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, ValidationError

from phiseg.core.errors import ConfigError
from phiseg.viewer.schema import MAX_SAMPLES

MAX_POINTS = 20
"""Maximum number of points of a request."""
Result = Literal["labels", "sample", "quantile", "levels", "mean", "gamma"]
"""Results of a request: the most probable classes, one sample, the sample at a quantile of the volume, regions at
three levels of the foreground probability, the mean probabilities, or the gamma map."""
LABEL_MAPS = ("labels", "quantile", "sample", "levels")
"""Results that are label maps, the only images that the plug-ins show."""
Point = tuple[FiniteFloat, FiniteFloat, FiniteFloat]
"""Voxel (i, j, k) of the image."""


def _first(value: Any) -> Any:
    """Return the first entry of a list: plug-ins send the choices of an option with the chosen one first."""
    return value[0] if isinstance(value, list) and value else value


class InferParameters(BaseModel):
    """The field `params` of a request. Plug-ins send further keys, which are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    result: Annotated[Result, BeforeValidator(_first)] = "labels"
    num_samples: int = Field(default=16, ge=1, le=MAX_SAMPLES)
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    sample: int = Field(default=1, ge=1)
    """Number of the sample, from 1."""
    quantile: float = Field(default=0.5, ge=0, le=1)
    """Quantile of the volume of the samples."""
    result_extension: Literal[".nii.gz", ".nii", ".nrrd", ".mha"] = ".nii.gz"
    result_dtype: Literal["uint8", "uint16", "int16", "int32", "float32"] | None = None
    """Type of the voxels; None uses uint8 for label maps and float32 for other results."""
    result_compress: bool = True
    points: tuple[Point, ...] = Field(default=(), max_length=MAX_POINTS)
    """Voxels inside lesions, from several keys of the request."""


def parse_parameters(text: str, classes: Sequence[str]) -> InferParameters:
    """Return the parameters of a request.

    Points are read from `point`, `points`, `foreground` (deepgrow) and the names of classes (deepedit). Points of
    the background are ignored.

    Args:
        text: JSON object.
        classes: class names of the model, background first.

    Raises:
        ConfigError: the text is not a JSON object, or a value is invalid.
    """
    try:
        stored = json.loads(text or "{}")
    except (ValueError, RecursionError):
        stored = None
    if not isinstance(stored, dict):
        raise ConfigError('params is not a JSON object; send, for example, {"foreground": [[120, 200, 45]]}')
    single = [stored["point"]] if stored.get("point") else []
    lists = [stored.get(key) for key in dict.fromkeys(["points", "foreground", *classes[1:]])]
    given = [*single, *(point for entry in lists if isinstance(entry, list) for point in entry)]
    try:
        found = InferParameters.model_validate({**stored, "points": given})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"params: {where}: {first['msg']}") from None
    if found.result == "sample" and found.sample > found.num_samples:
        raise ConfigError(f"params: sample {found.sample} does not exist; {found.num_samples} samples are drawn")
    return found


def option_defaults() -> dict[str, Any]:
    """Return the options that plug-ins show in a table: lists are choices, with the default first."""
    fields = InferParameters.model_fields
    options = {name: fields[name].default for name in ("num_samples", "seed", "sample", "quantile")}
    assert set(LABEL_MAPS) < set(get_args(Result))
    return {"result": list(LABEL_MAPS), **options}
