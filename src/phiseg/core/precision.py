"""Number format of the networks when they draw samples; `train.precision` is that of the training."""

from typing import Literal

SamplingPrecision = Literal["float32", "bfloat16"]
"""`float32`, whose results hardly depend on the machine, or `bfloat16`, which is faster on some CPUs and GPUs."""
