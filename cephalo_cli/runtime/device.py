"""One rank's device: which one it is, waiting for it, its memory, its clock and its name.

Everything goes through torch's own device-independent calls (``torch.accelerator``, ``torch.get_device_module``), so
no vendor is named where torch names none.
"""

import contextlib
import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from cephalo_cli.artifacts.cluster import Backend, DeviceType
from cephalo_cli.artifacts.profile import Identity
from cephalo_cli.errors import UsageError
from cephalo_cli.runtime.heap import allocated_bytes, peak_anonymous_bytes, reset_peak_anonymous_bytes

__all__ = [
    "DeviceClock",
    "MemoryMeter",
    "cache_bytes",
    "device_identity",
    "driver_version",
    "synchronise",
    "torch_device",
]

TORCH_TYPES: dict[Backend, str] = {"rocm": "cuda"}
"""Backends that torch calls something else; ROCm devices answer to ``cuda``."""


def torch_device(backend: Backend, index: int) -> torch.device:
    """Give torch's device for the ``index``-th device of its backend on this host, and make it the current one.

    A launcher may show each process one device only; then that one is meant, whatever its index on the host.

    Raises:
        UsageError: This host has no such device.
    """
    if backend == "cpu":
        return torch.device("cpu")
    type_ = TORCH_TYPES.get(backend, backend)
    present = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count() if present is not None and present.type == type_ else 0
    if count == 0 or (index >= count > 1):
        raise UsageError(
            f"device {index} of backend {backend} does not exist here: torch finds {count}",
            hint="check the cluster file, the visible devices and the installed torch build",
        )
    device = torch.device(type_, min(index, count - 1))
    torch.accelerator.set_device_index(device.index)
    return device


def synchronise(device: torch.device) -> None:
    """Wait until the device has done everything it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class DeviceClock:
    """Seconds on the wall, read when the device has finished.

    An accelerator's operations return before they are done; a clock that does not wait measures how long it takes to
    *ask* for the work.

    Args:
        device: The device to wait for.
        wall_clock: Seconds on the wall.
    """

    def __init__(self, device: torch.device, wall_clock: Callable[[], float] = time.perf_counter) -> None:
        self._device = device
        self._wall_clock = wall_clock

    def __call__(self) -> float:
        """Wait, then read."""
        synchronise(self._device)
        return self._wall_clock()


class MemoryMeter:
    """Peak of the memory a rank's device holds: torch's allocator on an accelerator, anonymous memory on CPU.

    See the note in `cephalo_cli.runtime.heap` for what counts on CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        """Start a new peak here."""
        if self._device.type == "cpu":
            reset_peak_anonymous_bytes()
        else:
            torch.accelerator.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        """Most bytes held since the last reset."""
        if self._device.type == "cpu":
            return peak_anonymous_bytes()
        return int(torch.accelerator.max_memory_allocated(self._device))

    def now_bytes(self) -> int | None:
        """Bytes allocated now; None where nobody counts them. On an accelerator it runs ahead as the host does."""
        if self._device.type == "cpu":
            return allocated_bytes()
        return int(torch.accelerator.memory_allocated(self._device))


def cache_bytes(device: torch.device, root: Path = Path("/")) -> int:
    """Size of the device's largest cache: what Linux says of its CPUs, or torch of an accelerator; 0 if neither does.

    Args:
        device: The device.
        root: Where ``sys`` lies.
    """
    if device.type != "cpu":
        properties = getattr(torch.get_device_module(device), "get_device_properties", lambda _: None)(device)
        return int(getattr(properties, "L2_cache_size", 0))
    sizes = [path.read_text().strip() for path in root.glob("sys/devices/system/cpu/cpu0/cache/index*/size")]
    return max((int(size.removesuffix("K")) * 2**10 for size in sizes if size.endswith("K")), default=0)


def device_identity(device: torch.device, device_type: DeviceType) -> Identity:
    """Say which device this is: by UUID or PCI id where the backend tells, because tools number devices differently.

    An emulated device reports the memory it is given.
    """
    if device.type == "cpu":
        emulated = device_type.memory_bytes if device_type.emulated_speed is not None else None
        return Identity(
            name=_cpu_name(),
            memory_bytes=emulated or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            torch=torch.__version__,
            num_threads=torch.get_num_threads(),
            keeps_to_one_cpu=_keeps_to_one_cpu() if emulated else None,
        )
    module = torch.get_device_module(device)
    versions = (torch.version.hip, torch.version.cuda, torch.version.xpu)
    backend_version = next((version for version in versions if version is not None), None)
    if not hasattr(module, "get_device_properties"):
        # Apple's devices have no properties, only the memory that one process should use at most.
        return Identity(
            name=f"{_cpu_name()} ({device.type})",
            memory_bytes=int(module.recommended_max_memory()),
            torch=torch.__version__,
        )
    properties = module.get_device_properties(device)
    clock_khz = int(getattr(properties, "clock_rate", 0))
    return Identity(
        name=str(properties.name),
        memory_bytes=int(properties.total_memory),
        uuid=_uuid(properties),
        driver=driver_version(properties),
        backend_version=backend_version,
        clock_hz=clock_khz * 1e3 if clock_khz > 0 else None,
        torch=torch.__version__,
    )


def driver_version(properties: object, root: Path = Path("/")) -> str | None:
    """Version of the kernel's driver: the backend's own word, else what NVIDIA's and AMD's drivers write."""
    if hasattr(properties, "driver_version"):
        return str(properties.driver_version)
    for path in ("proc/driver/nvidia/version", "sys/module/amdgpu/version"):
        with contextlib.suppress(OSError):
            found = re.search(r"\d+(\.\d+)+", (root / path).read_text())
            if found is not None:
                return found.group()
    return None


def _uuid(properties: object) -> str | None:
    if hasattr(properties, "uuid"):
        return str(properties.uuid)
    if hasattr(properties, "pci_bus_id"):
        return f"{getattr(properties, 'pci_domain_id', 0):04x}:{properties.pci_bus_id:02x}"
    return None


def _keeps_to_one_cpu() -> Literal[True] | None:
    return True if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1 else None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())
