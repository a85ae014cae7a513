"""How long measuring took, of the time it was given."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Stopwatch"]


class Stopwatch:
    """Seconds spent on measuring: a clock that starts at zero and stands still while something else is waited for.

    A time limit is for measuring. Work that happens once and is not measured is not measuring: libraries that load at
    an operator's first call, units that are built, ranks that are not there yet.

    Args:
        clock: Seconds on the wall.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begin = clock()

    def __call__(self) -> float:
        """Read it."""
        return self._clock() - self._begin

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stand still meanwhile; not to be nested."""
        start = self._clock()
        try:
            yield
        finally:
            self._begin += self._clock() - start
