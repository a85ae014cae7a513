"""The memory of a CPU process: how much it holds, how much it held at most, and how the C library manages it.

Note: which memory counts
    What a CPU process occupies is its anonymous memory: tensors, and what Python and the libraries allocate. Mapped
    files (libraries' code) are shared between processes and can be dropped at any time, and the counters of a control
    group mix them in. The kernel keeps a high-water mark of resident memory, which may be reset, so the peak is that
    mark less the mapped part, exact and without sampling.

Note: keeping freed memory
    glibc gives large freed pieces back to the system, and every page that comes again must be cleared: a block of a
    small GPT took 2 to 10 % longer for it, now here, now there. Ranks keep what they freed, so the same work
    takes the same time.

Note: gaps
    What is kept has gaps: a boundary that lives for long is put where a unit's buffer was, and the next buffer does not
    fit there any more. One rank with 242 MiB allocated occupied 78 MiB of gaps. They cost nothing until memory is
    short; then they are given back, page by page, before the process outgrows its limit. CUDA's caching allocator does
    the same when a device is full. What was given back must be cleared when it comes again: a rank that gave it back
    before every piece of compute took 13 to 19 % longer. So what comes next is taken to find a part of its place in
    the gaps.

Note: memory over time
    A rank that keeps what it freed occupies ever the same. What rises and falls within a step is what it has allocated,
    which the C library counts.
"""

import contextlib
import ctypes
import gc
import os
from pathlib import Path
from typing import ClassVar

__all__ = [
    "HeapRoom",
    "allocated_bytes",
    "anonymous_bytes",
    "keep_heap",
    "peak_anonymous_bytes",
    "reset_peak_anonymous_bytes",
    "trim_heap",
]

STATUS = Path("/proc/self/status")
STATM = Path("/proc/self/statm")
"""The same numbers in pages, five times as fast to read: resident is the second, mapped files are the third."""
RESET_HIGH_WATER = "5"
"""What to write to clear_refs to reset the high-water mark (Linux, Documentation/filesystems/proc.rst)."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt (glibc, malloc.h)."""
LARGEST_IN_HEAP_BYTES = 32 * 2**20
"""The most glibc accepts as M_MMAP_THRESHOLD; larger pieces are always given back."""
MOST_KEPT_BYTES = 2**31 - 1
"""Free memory at the heap's end that is kept; the parameter is an int."""
WORTH_A_SEARCH_BYTES = 4 * 2**20
"""New gaps are looked for when this much was occupied since the last search."""
SERVING_GAPS = 0.8
"""Part of the gaps, by bytes, in which what comes next finds its place."""
MALLINFO2 = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)
"""Fields of the C library's counts, in order (glibc 2.33 and later, malloc.h)."""


class _Counts(ctypes.Structure):
    """The C library's counts."""

    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in MALLINFO2]
    uordblks: int
    """Bytes allocated in the heap."""
    hblkhd: int
    """Bytes allocated outside it."""


def allocated_bytes() -> int | None:
    """Bytes that are allocated through the C library (see the note); None where it does not tell."""
    try:
        count = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    count.restype = _Counts
    counts = count()
    return int(counts.uordblks) + int(counts.hblkhd)


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


def keep_heap() -> None:
    """Have this process keep the memory it frees, where the C library can (see the note)."""
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_IN_HEAP_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, MOST_KEPT_BYTES)


def trim_heap() -> None:
    """Give memory that nothing uses back to the system, where the C library can; it keeps freed pieces otherwise."""
    gc.collect()
    _give_gaps_back()


class HeapRoom:
    """Room for what comes next, below a limit (see the note on gaps).

    Args:
        limit_bytes: What this process should not occupy more than.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._most_bytes = limit_bytes - WORTH_A_SEARCH_BYTES
        self._least_bytes = 0
        self._beside_bytes: int | None = None
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def make(self, needed_bytes: int) -> None:
        """Give the heap's gaps back if the process could outgrow its limit before the next call.

        Args:
            needed_bytes: The most it allocates until then, of which some finds its place in gaps.
        """
        occupied_bytes = self._occupied_bytes()
        if occupied_bytes <= max(self._least_bytes, self._most_bytes - needed_bytes):
            return
        needed_anew_bytes = max(0.0, needed_bytes - SERVING_GAPS * self._gaps_bytes(occupied_bytes))
        if occupied_bytes + needed_anew_bytes > self._most_bytes:
            _give_gaps_back()
            occupied_bytes = self._occupied_bytes()
            self._least_bytes = occupied_bytes + WORTH_A_SEARCH_BYTES
            self._beside_bytes = occupied_bytes - (allocated_bytes() or occupied_bytes)

    def _gaps_bytes(self, occupied_bytes: int) -> int:
        """What is occupied but not allocated; nothing before it is known what lies outside the heap."""
        if self._beside_bytes is None:
            return 0
        return max(0, occupied_bytes - self._beside_bytes - (allocated_bytes() or occupied_bytes))

    def _occupied_bytes(self) -> int:
        try:
            _, resident, mapped, *_ = STATM.read_text().split()
        except OSError:
            return 0
        return (int(resident) - int(mapped)) * self._page_bytes


def _give_gaps_back() -> None:
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _status_bytes() -> dict[str, int]:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(value) * 1024 for name, value, _ in fields}
