"""Choice of the device, and Lightning Fabric for one or several of them."""

import ctypes
import os
import signal
import subprocess
import sys
import warnings
from datetime import timedelta
from functools import cache
from textwrap import shorten
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from pydantic import Field

from phiseg.core.config import StrictConfig
from phiseg.core.errors import ConfigError
from phiseg.core.precision import SamplingPrecision

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Accelerator = Literal["auto", "cpu", "gpu", "cuda", "mps"]
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]

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


class DeviceSettings(Protocol):
    """Settings that `make_fabric` reads."""

    @property
    def accelerator(self) -> Accelerator:
        """Kind of device; `auto` is a GPU where there is one."""

    @property
    def devices(self) -> int:
        """Number of processes on this machine."""

    @property
    def num_nodes(self) -> int:
        """Number of machines."""

    @property
    def precision(self) -> Precision:
        """Number format of the networks."""


class DeviceConfig(StrictConfig):
    """Devices of a command that does not train."""

    accelerator: Accelerator = "auto"
    devices: int = Field(default=1, ge=1)
    num_nodes: int = Field(default=1, ge=1)
    precision: Precision = "32-true"


def usable_device(name: str, precision: SamplingPrecision = "float32") -> torch.device:
    """Return the device called `name`, such as cpu or cuda:1; `gpu` is cuda, and `auto` a GPU if available.

    Raises:
        ConfigError: the device is not available, or cannot compute in `precision`.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    elif name == "gpu":  # as in Lightning Fabric
        name = "cuda"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:  # torch asserts that it supports the device
        reason = shorten(str(error), 100, placeholder="...")
        raise ConfigError(f"device '{name}' is not available ({reason}); use cpu") from None
    if precision == "bfloat16":
        _check_bfloat16(device, "precision bfloat16", instead="precision float32")
    return device


def make_fabric(settings: DeviceSettings, *, timeout: timedelta | None = None) -> "Fabric":
    """Return Lightning Fabric for these devices; its `launch` starts further processes.

    Args:
        settings: a `DeviceConfig`, or the `train` section of a recipe.
        timeout: maximum time that processes wait for the slowest one; default: that of Fabric.

    Raises:
        ConfigError: this machine has no such devices, or cannot compute in this precision.
    """
    from lightning_fabric import Fabric  # slow to import, and needed for training and several processes only
    from lightning_fabric.strategies.ddp import DDPStrategy
    from lightning_fabric.utilities.exceptions import MisconfigurationException

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
            f"{settings.precision} ({reason}); choose settings that this machine supports"
        ) from None
    if settings.precision == "16-mixed" and fabric.device.type == "cpu":
        raise ConfigError("train.precision 16-mixed needs a GPU; use bf16-mixed or 32-true")
    if settings.precision == "bf16-mixed":
        _check_bfloat16(fabric.device, "train.precision bf16-mixed", instead="train.precision 32-true")
    return fabric


def _check_bfloat16(device: torch.device, setting: str, *, instead: str) -> None:
    """Raise a ConfigError that names `setting` if the device cannot compute in bfloat16."""
    if device.type == "cpu" and (failure := bf16_failure()):
        raise ConfigError(
            f"{setting} does not work on this CPU: a small bf16 convolution failed with {failure}; set the "
            f"environment variable ONEDNN_MAX_CPU_ISA to AVX512_CORE_BF16 or AVX2, or use {instead}"
        )


@cache
def bf16_failure() -> str | None:
    """Return why this CPU cannot compute in bf16, or None if it can.

    Some virtual machines report instructions that they cannot execute, for example AMX, and torch dies with SIGILL.
    A child process runs `BF16_PROBE` to find out, once per process. A fork of this process is tried first, because
    it need not import torch; only a new process reports the reason of a failure.
    """
    if _works_in_fork(BF16_PROBE):
        return None
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-P", "-c", BF16_PROBE], capture_output=True, text=True, check=False
    )
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    return (done.stderr.strip().splitlines() or ["no message"])[-1] if done.returncode else None


def _works_in_fork(code: str, *, limit_s: int = 20) -> bool:
    """Return whether Python code runs in a fork of this process without an error and within a time limit."""
    if sys.platform != "linux":  # elsewhere, a fork of a process with threads is not safe
        return False
    try:
        with warnings.catch_warnings(action="ignore"):  # Python warns of other threads, which a fork lacks
            child = os.fork()
    except OSError:  # too many processes, or too little memory
        return False
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
            signal.alarm(limit_s)  # kills a child that waits for a lock of another thread
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # no report of a crash
            torch.set_num_threads(1)
            exec(code, {})  # noqa: S102
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def keep_freed_memory() -> None:
    """Let the allocator of this process keep freed memory instead of returning it to Linux.

    Otherwise, each training step and each chunk of samples on a CPU requests its pages again. Blocks of 256 MB and
    more are still returned, and those of 32 MB and more by older versions of glibc. All threads share one heap,
    because those of further threads are always returned.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # glibc
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, at the largest value that every glibc accepts
        mallopt(-3, 2**28)  # without effect where it is not accepted
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        mallopt(-8, 1)  # M_ARENA_MAX
