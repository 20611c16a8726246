"""Sampling in bfloat16: half the bits of float32 with the same range, for processors with instructions for it.

Convolutions compute in bfloat16 by autocast, so their results are rounded. What is computed from them (standard
deviations, latents, logits) is float32.
"""

from collections.abc import Sequence
from types import new_class

import torch
from torch import Tensor

from phiseg.models.segmenter import Encoding, Segmenter


def compute_in_bfloat16(model: Segmenter) -> None:
    """Let a model encode images and decode samples in bfloat16, with results in float32.

    The model gets a subclass of its class, so that copies of it compute in bfloat16 as well. It cannot be pickled.
    """
    own = type(model)
    model.__class__ = new_class(own.__name__, (_InBfloat16, own))


class _InBfloat16(Segmenter):
    """Enters autocast in each call, because autocast belongs to a thread and generators are suspended between them.

    Casts are not cached, because threads share this cache.
    """

    def encode(self, image: Tensor) -> Encoding:
        with self._autocast():
            features, size = super().encode(image)  # type: ignore[safe-super]
        return Encoding(tuple(feature.float() for feature in features), size)

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:
        with self._autocast():
            return super().decode_samples(encoding, noise, num_samples).float()  # type: ignore[safe-super]

    def sample_levels(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> list[Tensor]:
        with self._autocast():
            return [level.float() for level in super().sample_levels(encoding, noise, num_samples)]

    def _autocast(self) -> torch.autocast:
        device = next(self.parameters()).device
        return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)
