"""What a run needs before its first step: a folder that may be used, Fabric, and a record of where it runs."""

import hashlib
import json
import platform
import signal
import subprocess
import sys
from datetime import timedelta
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.utilities.exceptions import MisconfigurationException

import phiseg
from phiseg.core.errors import ConfigError, OutputError
from phiseg.data.store import Dataset
from phiseg.models import Segmenter
from phiseg.training.recipe import Recipe, TrainConfig, load_recipe

MAY_CHANGE_ON_RESUME = {
    "steps",
    "recalibration_batches",
    "checkpoint_activations",
    "accelerator",
    "devices",
    "num_nodes",
    "tensorboard",
}
"""Settings that do not affect single steps; with a cosine schedule, `steps` does."""

WIDE = 128
"""Minimum width for which `lay_out` chooses contiguous memory."""

BF16_PROBE = """
import torch
shapes = (2, 64, 32, 32), (64, 64, 3, 3)
image, weight = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes)
for layout in (torch.contiguous_format, torch.channels_last):
    operands = (tensor.to(memory_format=layout) for tensor in (image, weight))
    torch.nn.functional.conv2d(*operands, padding=1).sum().backward()
matrix = torch.randn(64, 64, dtype=torch.bfloat16)
matrix @ matrix
"""
"""Python code that needs the bf16 instructions of the CPU: convolutions in both layouts, and a matrix product."""


def check_folder(out: Path, recipe: Recipe, *, resume: bool) -> None:
    """Raise an error if a run would be overwritten, or resumed with another recipe."""
    config = out / "config.yaml"
    if not config.is_file():
        if out.exists() and not out.is_dir():
            raise OutputError(f"{out} is a file; choose another folder")
        if (out / "state").exists() or (out / "model").exists():
            raise OutputError(
                f"{out} contains part of a run, but no config.yaml; restore it or choose another folder"
            )
        return
    if not resume:
        raise OutputError(f"{out} already contains a run; pass --resume to continue it, or choose another folder")
    before = load_recipe(str(config)).model_dump(mode="json")
    may_change = MAY_CHANGE_ON_RESUME - ({"steps"} if recipe.train.schedule == "cosine" else set())
    for section, values in recipe.model_dump(mode="json", exclude={"name"}).items():
        for key, value in values.items():
            old = before[section].get(key)
            if value != old and not (section == "train" and key in may_change):
                raise ConfigError(
                    f"{out} was started with {section}.{key} = {old!r}, but now it is {value!r}; "
                    "resume with the same recipe, or train into a new folder"
                )


def make_fabric(settings: TrainConfig, *, timeout: timedelta | None = None) -> Fabric:
    """Return Lightning Fabric for the recipe's devices; further processes start with its `launch`.

    Args:
        settings: of the recipe.
        timeout: how long processes wait for the slowest of them; by default what Fabric thinks right.

    Raises:
        ConfigError: this machine has no such devices, or cannot compute in this precision.
    """
    several = settings.devices * settings.num_nodes > 1
    try:
        fabric = Fabric(
            accelerator=settings.accelerator,
            devices=settings.devices,
            num_nodes=settings.num_nodes,
            precision=settings.precision,
            strategy="auto" if not several else DDPStrategy(timeout=timeout) if timeout else "ddp",
        )
    except (MisconfigurationException, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        raise ConfigError(
            f"cannot compute with accelerator {settings.accelerator}, devices {settings.devices} and precision "
            f"{settings.precision} ({reason}); use what this machine has"
        ) from None
    if settings.precision == "16-mixed" and fabric.device.type == "cpu":
        raise ConfigError("train.precision 16-mixed needs a GPU; use bf16-mixed or 32-true")
    if settings.precision == "bf16-mixed" and fabric.device.type == "cpu" and (failure := bf16_failure()):
        raise ConfigError(
            "train.precision bf16-mixed does not work on this CPU: a small bf16 convolution failed with "
            f"{failure}; set the environment variable ONEDNN_MAX_CPU_ISA to AVX512_CORE_BF16 or AVX2, or use "
            "train.precision 32-true"
        )
    return fabric


@cache
def bf16_failure() -> str | None:
    """Return why this CPU cannot compute in bf16, or None if it can.

    Some virtual machines report instructions that they cannot execute, for example AMX, and torch dies with SIGILL.
    A child process runs `BF16_PROBE` to find out, once per process.
    """
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-P", "-c", BF16_PROBE], capture_output=True, text=True, check=False
    )
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    return (done.stderr.strip().splitlines() or ["no message"])[-1] if done.returncode else None


def lay_out(model: Segmenter, device: torch.device) -> None:
    """Choose the memory format of weights and activations for training; it affects speed only, not results.

    `build_model` uses channels last, the fastest format for sampling. On a CPU without AVX-512, it makes the weight
    gradient of wide convolutions up to three times slower, so these models are trained with channels first.
    """
    narrow_vectors = not torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    if device.type == "cpu" and narrow_vectors and max(model.config.channels) >= WIDE:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


def lay_out_alike(optimizer: torch.optim.Optimizer) -> None:
    """Give the restored state of an optimiser the memory format of its weights, as fused optimisers require."""
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if value.shape == weight.shape:
                state[name] = torch.empty_like(weight).copy_(value)


def dataset_identity(dataset: Dataset) -> str:
    """Return a hash of the data of a run: the pixels, and the cases of the training and validation splits."""
    seen = [[dataset.cases[row]["case"] for row in dataset.rows(split)] for split in ("train", "val")]
    return hashlib.sha256(json.dumps([dataset.fingerprint, seen]).encode()).hexdigest()


def describe_environment(fabric: Fabric, dataset: Dataset) -> dict[str, Any]:
    """Return a description of the environment for reproducing the run, without times and paths."""
    return {
        **describe_software(),
        "device": fabric.device.type,
        "processes": fabric.world_size,
        "threads": torch.get_num_threads(),
        "dataset": {"name": dataset.info.name, "fingerprint": dataset.fingerprint},
    }


def describe_software() -> dict[str, Any]:
    """Return the versions of the software, and the commit if phiseg runs from its repository."""
    packages = ("phiseg", "torch", "lightning-fabric", "numpy")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in packages},
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Return the commit of the repository of phiseg, marked if files were changed; None outside a repository."""
    package = Path(phiseg.__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(  # noqa: S603
            ["git", *words],  # noqa: S607
            cwd=package,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) / "src" / "phiseg" != package.resolve():
            return None
        return git("rev-parse", "HEAD") + (" (changed)" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None
