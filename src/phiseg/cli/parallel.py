"""Processes that share the cases of a command: the options `--device`, `--devices` and `--num-nodes`."""

from datetime import timedelta
from typing import TYPE_CHECKING

from phiseg.core.errors import ConfigError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

LONGEST_WAIT = timedelta(days=14)
"""Maximum time that a process waits for the slowest one."""


def fabric_for_processes(device: str, devices: int, num_nodes: int, *, command: str) -> "Fabric | None":
    """Return Lightning Fabric for several processes; None for one process, which does not need it.

    Raises:
        ConfigError: a number is invalid, or this machine has no such devices.
    """
    if (devices, num_nodes) == (1, 1):
        return None
    if ":" in device:
        kind = device.partition(":")[0]
        raise ConfigError(f"--device {device} is a single device, but several processes run; use --device {kind}")
    from phiseg.compute.devices import DeviceConfig, make_fabric

    machine = {"accelerator": device, "devices": devices, "num_nodes": num_nodes}
    return make_fabric(DeviceConfig.parse(machine, where=command), timeout=LONGEST_WAIT)
