"""Memory format of weights and optimiser state in training."""

import torch

from phiseg.models import Segmenter

MIN_WIDTH = 128
"""Minimum width for which `set_memory_format` chooses contiguous memory."""


def set_memory_format(model: Segmenter, device: torch.device) -> None:
    """Choose the memory format of weights and activations for training; it affects speed only, not results.

    `build_model` uses channels last, the fastest format for sampling. On a CPU without AVX-512, it makes the weight
    gradient of wide convolutions up to three times slower, so these models are trained with channels first.
    """
    narrow_vectors = not torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    if device.type == "cpu" and narrow_vectors and max(model.config.channels) >= MIN_WIDTH:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


def match_memory_format(optimizer: torch.optim.Optimizer) -> None:
    """Give the restored state of an optimiser the memory format of its weights, as fused optimisers require."""
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if value.shape == weight.shape:
                state[name] = torch.empty_like(weight).copy_(value)
