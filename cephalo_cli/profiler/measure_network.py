"""Measures collectives over unequal shards on the real process group, with the code that training uses.

Note: how a collective is timed
    All ranks meet in a barrier and then run the same collective several times, each waiting for its result before the
    next. The time is that of the slowest rank, divided by the count: no clocks of different hosts are compared, and
    what the barrier adds is spread thin. Repeats come in passes over all sizes, as in `measure_timing`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import Cluster
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import CollectiveFit, CollectivePoint, NetworkProfile
from cephalo_cli.costmodel.network import busiest_fraction
from cephalo_cli.layout import shard_ranges
from cephalo_cli.profiler.measure_moving import Moving, measure_moving
from cephalo_cli.profiler.measure_timing import largest_of_ranks
from cephalo_cli.profiler.stopwatch import Stopwatch
from cephalo_cli.runtime.collectives import BufferLayout, ShardedCollectives
from cephalo_cli.runtime.device import DeviceClock
from cephalo_cli.runtime.heap import trim_heap
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.units import model_units

__all__ = ["Measured", "fit_collective", "measure_network", "share_patterns"]

ALGORITHM: Literal["direct"] = "direct"
SIZE_FRACTIONS = (1 / 256, 1 / 64, 1 / 16, 1 / 4, 1)
"""Sizes measured, as fractions of the largest unit."""
MOST_ELEMENTS = 2**26
"""No buffer is larger than this; beyond it time is a straight line."""
LONGEST_WINDOW_S = 0.1
"""Collectives are repeated until they last about this long, or as long as the time limit allows."""
MOST_REPEATS = 100
USUAL_PASSES = 6
"""For which repeats are chosen."""
FEWEST_PASSES = 1
MOST_PASSES = 9
SUMS_OF_A_WINDOW = 10
MOVING_PART = 0.6
"""Part of the time for what moving a byte costs the CPU."""
SUMS_PART = 0.05
"""Part of the time for small sums."""
LEAST_RESIDUAL = 0.01
"""No measurement is taken to be more exact than this."""


@dataclass
class Measured:
    """Points of both collectives, and what they cost this rank's CPU."""

    gathers: list[CollectivePoint] = field(default_factory=list)
    reductions: list[CollectivePoint] = field(default_factory=list)
    moving: Moving = field(default_factory=Moving)
    small_sum_s: float | None = None

    def network(self) -> NetworkProfile:
        """Fit both collectives."""
        return NetworkProfile(
            method="measured",
            algorithm=ALGORITHM,
            all_gather=fit_collective(self.gathers),
            reduce_scatter=fit_collective(self.reductions),
            small_sum_s=self.small_sum_s,
        )


def share_patterns(cluster: Cluster) -> list[tuple[float, ...]]:
    """State shares to measure with: equal ones, and unequal ones as plans have them.

    The unequal ones follow the devices' memory, or are 1, 2, ... parts where memories are equal.
    """
    memories = [float(cluster.device_types[place.device].memory_bytes or 1) for place in cluster.ranks]
    if len(set(memories)) == 1:
        memories = [float(rank + 1) for rank in range(len(memories))]
    equal = [1.0] * len(memories)
    return [tuple(weight / sum(weights) for weight in weights) for weights in (equal, memories)]


def measure_network(
    context: ProcessContext,
    model: Model,
    seq_len: int,
    dtype: DType,
    *,
    stopwatch: Stopwatch,
    most_bytes: int | None,
    max_seconds: float,
) -> Measured:
    """Measure gathers and reductions; a collective over all ranks.

    Args:
        context: This rank.
        model: The model, for the sizes of its units.
        seq_len: Tokens of one sample.
        dtype: Compute dtype; gradients are reduced in at least float32.
        most_bytes: What the buffers of a measurement may take; None for no limit. The smallest of all ranks counts.
        stopwatch: What the time limit is measured with; it stands still while units are built.
        max_seconds: Where on the stopwatch the time of all but the fewest repeats ends; the rank that has least counts.
    """
    compute_dtype: torch.dtype = getattr(torch, dtype)
    state_dtype = torch.promote_types(compute_dtype, torch.float32)
    largest = min(max(unit.num_parameters for unit in model_units(model)), MOST_ELEMENTS)
    if most_bytes is not None:
        largest = min(largest, max(1, most_bytes // (compute_dtype.itemsize + 2 * state_dtype.itemsize)))
    largest = int(-largest_of_ranks(context, -float(largest)))
    left_s = max(0.0, max_seconds - largest_of_ranks(context, stopwatch()))
    is_moved = context.device.type == "cpu"
    sums_s = SUMS_PART * left_s
    collectives_s = left_s - sums_s - (MOVING_PART * left_s if is_moved else 0.0)
    measured = _measure_collectives(context, largest, compute_dtype, collectives_s)
    measured.small_sum_s = _small_sum_s(context, sums_s)
    if is_moved:
        trim_heap()  # the collectives' buffers are gone: a device near its memory needs their place
        measured.moving = measure_moving(
            context,
            model,
            seq_len,
            dtype,
            share_patterns(context.cluster)[-1],
            stopwatch=stopwatch,
            most_elements=largest,
            most_bytes=most_bytes,
            max_seconds=max_seconds,
        )
    return measured


def _measure_collectives(
    context: ProcessContext, largest: int, compute_dtype: torch.dtype, max_seconds: float
) -> Measured:
    """Time gathers and reductions of up to ``largest`` elements; their buffers are gone afterwards."""
    state_dtype = torch.promote_types(compute_dtype, torch.float32)
    layouts = {}
    for shares in share_patterns(context.cluster):
        for fraction in SIZE_FRACTIONS:
            ranges = shard_ranges(max(1, int(largest * fraction)), shares)
            name = f"{ranges[-1].stop} elements, shares {shares}"
            layouts[name] = (BufferLayout(ranges=ranges, gather_dtype=compute_dtype, reduce_dtype=state_dtype), shares)
    moves = ShardedCollectives(
        context.process_group, context.device, {name: layout for name, (layout, _) in layouts.items()}
    )
    tasks: list[_Task] = []
    for name, (layout, shares) in layouts.items():
        buffers = _Buffers(moves, name, layout, context)
        tasks.append(_Task("gathers", buffers.gather_bytes, shares, buffers.gather))
        tasks.append(_Task("reductions", buffers.reduce_bytes, shares, buffers.reduce))
    _time(context, tasks, max_seconds)
    moves.close()
    measured = Measured()
    for task in tasks:
        points = measured.gathers if task.series == "gathers" else measured.reductions
        points.append(CollectivePoint(unit_bytes=task.unit_bytes, shares=task.shares, seconds=median(task.seconds)))
    return measured


def fit_collective(points: Sequence[CollectivePoint]) -> CollectiveFit:
    """Fit ``seconds = latency + busiest bytes / bandwidth`` with the least sum of squared relative errors.

    Neither latency nor the time of a byte is negative. See `cephalo_cli.costmodel.network` for the busiest bytes. Where
    the bytes of the largest collective take less time than the fit misses by, the bandwidth is not resolved: then it is
    the least that the points allow, with which the largest collective takes as much longer as the fit misses by.
    """
    from scipy.optimize import nnls  # noqa: PLC0415 - ranks that only measure need not hold it in memory

    moved = np.array([point.unit_bytes * busiest_fraction(ALGORITHM, point.shares) for point in points])
    seconds = np.array([max(point.seconds, 1e-9) for point in points])
    solution, _ = nnls(np.stack([1 / seconds, moved / seconds], axis=1), np.ones(len(points)))
    latency_s, s_per_byte = map(float, solution)
    fitted = latency_s + moved * s_per_byte
    residual = float(np.median(np.abs(fitted - seconds) / seconds))
    most = float(moved.max())
    hidden_s = max(residual, LEAST_RESIDUAL) * (latency_s + most * s_per_byte)
    is_bound = most * s_per_byte < hidden_s
    return CollectiveFit(
        latency_s=latency_s,
        bandwidth_bytes_per_s=most / hidden_s if is_bound else 1 / s_per_byte,
        bandwidth_is_bound=True if is_bound else None,
        residual=residual,
        points=tuple(points),
    )


class _Buffers:
    """The tensors of one layout, and the collectives over them."""

    def __init__(self, moves: ShardedCollectives, name: str, layout: BufferLayout, context: ProcessContext) -> None:
        if layout.reduce_dtype is None:
            raise AssertionError("a measured buffer is reduced")
        self._moves, self._name = moves, name
        self._full = torch.zeros(layout.num_elements, dtype=layout.gather_dtype, device=context.device)
        self._grad = torch.zeros(layout.num_elements, dtype=layout.reduce_dtype, device=context.device)
        self._shard = torch.zeros(len(layout.ranges[context.rank]), dtype=layout.reduce_dtype, device=context.device)
        self.gather_bytes, self.reduce_bytes = self._full.nbytes, self._grad.nbytes

    def gather(self) -> None:
        self._moves.all_gather(self._name, self._full).wait()

    def reduce(self) -> None:
        self._moves.reduce_scatter(self._name, self._grad, self._shard).wait()


@dataclass
class _Task:
    """One collective to measure."""

    series: Literal["gathers", "reductions"]
    unit_bytes: int
    shares: tuple[float, ...]
    run: Callable[[], None]
    seconds: list[float] = field(default_factory=list)
    """A value a pass."""


def _small_sum_s(context: ProcessContext, max_seconds: float) -> float:
    """Median time of adding up a few numbers over all ranks, as the slowest rank sees it; all ranks decide alike."""
    numbers = torch.zeros(3, dtype=torch.float64)

    def window() -> float:
        dist.barrier(context.process_group)
        start = time.perf_counter()
        for _ in range(SUMS_OF_A_WINDOW):
            dist.all_reduce(numbers, group=context.process_group)
        return largest_of_ranks(context, time.perf_counter() - start) / SUMS_OF_A_WINDOW

    window()
    taken = [window()]
    while len(taken) < FEWEST_PASSES or (
        len(taken) < MOST_PASSES and SUMS_OF_A_WINDOW * (sum(taken) + taken[-1]) < max_seconds
    ):
        taken.append(window())
    return median(taken)


def _time(context: ProcessContext, tasks: Sequence[_Task], max_seconds: float) -> None:
    """Measure all collectives in passes, as long as there is time; all ranks decide alike.

    Where there is time for one pass only, what the number of repeats was guessed from counts as another.
    """
    clock = DeviceClock(context.device)

    def window(task: _Task, count: int) -> float:
        dist.barrier(context.process_group)
        start = clock()
        for _ in range(count):
            task.run()
        return largest_of_ranks(context, clock() - start) / count

    begin = time.perf_counter()
    window_s = min(LONGEST_WINDOW_S, max_seconds / (USUAL_PASSES * len(tasks)))
    counts, guesses_s = [], []
    for task in tasks:
        window(task, 1)
        guesses_s.append(window(task, 2))
        counts.append(max(1, min(MOST_REPEATS, int(window_s / max(guesses_s[-1], 1e-6)))))
    for number in range(1, MOST_PASSES + 1):
        start = time.perf_counter()
        for task, count in zip(tasks, counts, strict=True):
            task.seconds.append(window(task, count))
        now = time.perf_counter()
        expected = largest_of_ranks(context, now - begin + (now - start))
        if number >= FEWEST_PASSES and expected > max_seconds:
            break
    if len(tasks[0].seconds) == 1:
        for task, guess_s in zip(tasks, guesses_s, strict=True):
            task.seconds.append(guess_s)
