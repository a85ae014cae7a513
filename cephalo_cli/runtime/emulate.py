"""Emulated devices: a CPU process held to the speed and memory its device type states.

Where the system lets us make control groups the kernel does it (``cgroup``). Elsewhere the process holds itself back
(``cooperative``): after each piece of compute it sleeps until the wall clock has moved on by ``cpu seconds / speed``,
and it ends when its own memory goes over the limit. Collectives are not slowed down in that mode.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

from cephalo_cli.quantities import format_bytes
from cephalo_cli.runtime.heap import anonymous_bytes
from cephalo_cli.runtime.memory_limit import MemoryLimitError

__all__ = ["Throttle"]


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
            MemoryLimitError: The process occupies more than the limit.
        """
        wall, cpu = self._wall_clock(), self._cpu_clock()
        yield
        longer = (self._cpu_clock() - cpu) / self._speed - (self._wall_clock() - wall)
        if longer > 0:
            self._sleep(longer)
        if self._memory_bytes is not None and self._occupied() > self._memory_bytes:
            raise MemoryLimitError(
                f"an emulated device of {format_bytes(self._memory_bytes)} is out of memory: "
                f"its process occupies {format_bytes(self._occupied())}"
            )
