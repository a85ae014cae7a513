"""Emulated devices: a CPU process held to the speed and memory its device type states.

Where the system lets us make control groups the kernel does it (``cgroup``). Elsewhere the process holds itself back
(``cooperative``): after each piece of compute it sleeps until the wall clock has moved on by ``cpu seconds / speed``,
and it ends when its own memory goes over the limit. Collectives are not slowed down in that mode.

Note: which memory counts
    What a CPU process occupies is its anonymous memory: tensors, and what Python and the libraries allocate. Mapped
    files (libraries' code) are shared between processes and can be dropped at any time, and the counters of a control
    group mix them in. The kernel keeps a high-water mark of resident memory, which may be reset, so the peak is that
    mark less the mapped part, exact and without sampling.
"""

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cephalo_cli.errors import TrainingError
from cephalo_cli.quantities import format_bytes

__all__ = ["Throttle", "anonymous_bytes", "peak_anonymous_bytes", "reset_peak_anonymous_bytes", "trim_heap"]

STATUS = Path("/proc/self/status")
RESET_HIGH_WATER = "5"
"""What to write to clear_refs to reset the high-water mark (Linux, Documentation/filesystems/proc.rst)."""


class Throttle:
    """Holds compute to a speed, and memory to a limit, without the kernel's help.

    Args:
        speed: CPUs the device has.
        memory_bytes: The limit; None for none.
        wall_clock: Seconds on the wall.
        cpu_clock: CPU seconds of this process.
        sleep: Pauses for some seconds.
        occupied: Bytes this process occupies.
    """

    def __init__(
        self,
        speed: float,
        memory_bytes: int | None,
        *,
        wall_clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
        occupied: Callable[[], int] | None = None,
    ) -> None:
        self._speed = speed
        self._memory_bytes = memory_bytes
        self._wall_clock = wall_clock
        self._cpu_clock = cpu_clock
        self._sleep = sleep
        self._occupied = occupied or anonymous_bytes

    @contextlib.contextmanager
    def compute(self) -> Iterator[None]:
        """Run a piece of compute at the device's speed.

        Raises:
            TrainingError: The process occupies more than the limit.
        """
        wall, cpu = self._wall_clock(), self._cpu_clock()
        yield
        longer = (self._cpu_clock() - cpu) / self._speed - (self._wall_clock() - wall)
        if longer > 0:
            self._sleep(longer)
        if self._memory_bytes is not None and self._occupied() > self._memory_bytes:
            raise TrainingError(
                f"an emulated device of {format_bytes(self._memory_bytes)} is out of memory: "
                f"its process occupies {format_bytes(self._occupied())}"
            )


def anonymous_bytes() -> int:
    """Bytes of anonymous memory this process occupies; 0 where the system does not tell."""
    return _status_bytes().get("RssAnon", 0)


def reset_peak_anonymous_bytes() -> bool:
    """Start a new peak here. False where the system does not let us: the peak is then since the process's start."""
    try:
        STATUS.with_name("clear_refs").write_text(RESET_HIGH_WATER)
    except OSError:
        return False
    return True


def peak_anonymous_bytes() -> int:
    """Most anonymous memory since the last reset (see the note); 0 where the system does not tell."""
    status = _status_bytes()
    mapped = status.get("RssFile", 0) + status.get("RssShmem", 0)
    return max(status.get("RssAnon", 0), status.get("VmHWM", 0) - mapped)


def trim_heap() -> None:
    """Give memory that nothing uses back to the system, where the C library can; it keeps freed pieces otherwise."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _status_bytes() -> dict[str, int]:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(value) * 1024 for name, value, _ in fields}
