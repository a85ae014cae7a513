"""Strategies that run one microbatch of every rank a round: fsdp, poplar (microbatch-major) and whale (replicated)."""

import contextlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from cephalo_cli import catalog
from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import DeviceType
from cephalo_cli.artifacts.plan import ScheduleName, Strategy
from cephalo_cli.costmodel import RankChoice
from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.planner.apportion import largest_remainder, uniform_sizes
from cephalo_cli.planner.decided import Decided
from cephalo_cli.planner.groups import Mode
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.way import Way

__all__ = ["make_fsdp", "make_poplar", "make_whale"]

TRIED = 3
"""How many plans that fit are priced in each mode, the fewest rounds first: more rounds only gather more often."""

MOST_ROUNDS = 64
"""Rounds of the plan that is shown where nothing fits."""

MOST_SAMPLES = 64
"""Microbatches are considered up to this size, or up to eight times an even part of the batch."""

Sizes = list[tuple[int, ...]]
"""Microbatch sizes of every rank."""


def make_fsdp(problem: Problem) -> Decided:
    """Even batch, even shares, one microbatch size: the best of the largest ones that fit."""
    batches = largest_remainder([1.0] * problem.num_ranks, problem.batch_size)
    only = problem.settings.microbatch_size
    sizes = [only] if only is not None else sorted({-(-max(batches) // r) for r in range(1, max(batches) + 1)})
    plans = {
        mode: ([uniform_sizes(samples, size) for samples in batches] for size in reversed(sizes))
        for mode in _common_modes(problem)
    }
    way = _Way(problem, "fsdp", "microbatch-major", 1.0 / problem.num_ranks)
    return _best(way, plans)


def make_poplar(problem: Problem) -> Decided:
    """Even shares; microbatches that all devices finish in a common time."""
    way = _Way(problem, "poplar", "microbatch-major", 1.0 / problem.num_ranks)

    def plans(mode: Mode) -> Iterable[Sizes]:
        for rounds in _round_numbers(problem):
            batches = _poplar_batches(way, mode, rounds)
            if batches is not None:
                yield [_in_rounds(problem, samples, rounds) for samples in batches]

    return _best(way, {mode: plans(mode) for mode in _common_modes(problem)})


def make_whale(problem: Problem) -> Decided:
    """Replicated state; batch in proportion to peak FLOPS; the fewest rounds of accumulation that fit.

    Peaks come from the cluster, else from the catalog by the device type's name; emulated devices have their speeds.

    Raises:
        UsageError: A device's peak rate in the dtype is not known.
    """
    basis = problem.basis
    way = _Way(problem, "whale", "replicated", 1.0)
    peaks = [0.0] * problem.num_ranks
    types = {group.name: basis.cluster.device_types[group.name] for group in problem.groups}
    emulated = all(device.emulated_speed is not None for device in types.values())
    for group in problem.groups:
        device = types[group.name]
        peak = device.emulated_speed if emulated else _peak_flops(group.name, device, basis.dtype)
        if peak is None:
            raise UsageError(f"no peak rate known for {group.name} in {basis.dtype}")
        for rank in group.ranks:
            peaks[rank] = peak

    def plans(mode: Mode) -> Iterable[Sizes]:
        for rounds in _round_numbers(problem):
            batches = _whale_batches(way, mode, rounds, peaks)
            if batches is not None:
                yield [_in_rounds(problem, samples, rounds) for samples in batches]

    return _best(way, {mode: plans(mode) for mode in _common_modes(problem)}, peaks)


def _peak_flops(name: str, device: DeviceType, dtype: DType) -> float | None:
    known = device.peak_flops or {}
    if dtype not in known and device.catalog is None:
        with contextlib.suppress(ArtifactError):
            known = catalog.device(name).peak_flops or {}
    return known.get(dtype)


def _common_modes(problem: Problem) -> list[Mode]:
    """Modes that every device can run: these strategies treat all ranks alike."""
    return [mode for mode in problem.groups[0].modes if all(mode in group.modes for group in problem.groups)]


def _round_numbers(problem: Problem) -> Iterable[int]:
    """1 to 16 one by one, then a quarter more each time, up to four times a round of one sample for every rank."""
    most = min(problem.batch_size, 4 * -(-problem.batch_size // problem.num_ranks))
    rounds = 1
    while rounds < most:
        yield rounds
        rounds = rounds + 1 if rounds < 16 else math.ceil(rounds * 1.25)
    yield most


def _in_rounds(problem: Problem, samples: int, rounds: int) -> tuple[int, ...]:
    """A rank's samples over rounds as evenly as they go, or in the only size allowed."""
    if problem.settings.microbatch_size is not None:
        return uniform_sizes(samples, problem.settings.microbatch_size)
    return tuple(size for size in largest_remainder([1.0] * rounds, samples) if size)


class _Way(Way):
    """The way of a strategy."""

    def __init__(self, problem: Problem, strategy: Strategy, schedule: ScheduleName, share: float) -> None:
        most = min(problem.batch_size, max(MOST_SAMPLES, 8 * -(-problem.batch_size // problem.num_ranks)))
        super().__init__(problem, schedule, share, most)
        self.strategy = strategy


def _decided(way: _Way, mode: Mode, sizes: Sizes) -> Decided:
    problem = way.problem
    names = {rank: group.name for group in problem.groups for rank in group.ranks}
    known: dict[tuple[str, tuple[int, ...]], RankChoice] = {}
    for rank, mine in enumerate(sizes):
        known.setdefault((names[rank], mine), mode.choice(names[rank], mine, way.share))
    return Decided(
        basis=problem.basis,
        settings=problem.settings,
        strategy=way.strategy,
        schedule=way.schedule,
        choices=tuple(known[names[rank], mine] for rank, mine in enumerate(sizes)),
    )


def _best(way: _Way, plans: Mapping[Mode, Iterable[Sizes]], weights: Sequence[float] | None = None) -> Decided:
    """The quickest plan that fits; where none does one that is as frugal as can be, its batch split by the weights."""
    best: Decided | None = None
    for mode, sizes_of_mode in plans.items():
        fitting = (sizes for sizes in sizes_of_mode if _all_fit(way, mode, sizes))
        for sizes in itertools.islice(fitting, TRIED):
            decided = _decided(way, mode, sizes)
            if best is None or decided.estimate.step_s < best.estimate.step_s:
                best = decided
    if best is not None:
        return best
    problem = way.problem
    frugal = _common_modes(problem)[-1:] or [problem.groups[0].modes[-1]]
    batches = largest_remainder(weights or [1.0] * problem.num_ranks, problem.batch_size)
    size = problem.settings.microbatch_size or -(-max(batches) // MOST_ROUNDS)
    return _decided(way, frugal[0], [uniform_sizes(samples, size) for samples in batches])


def _all_fit(way: _Way, mode: Mode, sizes: Sizes) -> bool:
    """Whether every rank fits."""
    rounds = max(len(mine) for mine in sizes)
    for group in way.problem.groups:
        largest = max(max(sizes[rank], default=0) for rank in group.ranks)
        if not way.sizes(group, mode).fits(rounds, largest):
            return False
    return True


def _whale_batches(way: _Way, mode: Mode, rounds: int, peaks: Sequence[float]) -> list[int] | None:
    """In proportion to peak FLOPS; what a card cannot hold moves to the others in the same proportion."""
    problem = way.problem
    most = [0] * problem.num_ranks
    for group in problem.groups:
        size = way.sizes(group, mode).largest(rounds, -(-problem.batch_size // rounds))
        for rank in group.ranks:
            most[rank] = rounds * size
    if sum(most) < problem.batch_size:
        return None
    batches = [0] * problem.num_ranks
    while (missing := problem.batch_size - sum(batches)) > 0:
        able = [rank for rank in range(problem.num_ranks) if batches[rank] < most[rank]]
        extra = largest_remainder([peaks[rank] for rank in able], missing)
        for rank, samples in zip(able, extra, strict=True):
            batches[rank] = min(most[rank], batches[rank] + samples)
    return batches


def _poplar_batches(way: _Way, mode: Mode, rounds: int) -> list[int] | None:
    """Microbatches that all devices finish in the least common time; the surplus is taken off the slowest."""
    problem = way.problem
    wanted = -(-problem.batch_size // rounds)
    curves = []
    for group in problem.groups:
        known = way.sizes(group, mode)
        curves.append(known.seconds[1 : known.largest(rounds, wanted) + 1].tolist())
    times = sorted({seconds for curve in curves for seconds in curve})

    def sizes(limit: float) -> list[int]:
        return [max((size for size, took in enumerate(curve, 1) if took <= limit), default=0) for curve in curves]

    def enough(limit: float) -> bool:
        return sum(s * group.count for s, group in zip(sizes(limit), problem.groups, strict=True)) >= wanted

    if not times or not enough(times[-1]):
        return None
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(times[middle]) else (middle + 1, high)
    batches = [0] * problem.num_ranks
    for group, size in zip(problem.groups, sizes(times[low]), strict=True):
        for rank in group.ranks:
            batches[rank] = rounds * size
    surplus = sum(batches) - problem.batch_size
    one = {rank: float(way.sizes(group, mode).seconds[1]) for group in problem.groups for rank in group.ranks}
    slowest = sorted(one, key=lambda rank: (-one[rank], rank))
    while surplus > 0:
        able = [rank for rank in slowest if batches[rank]]
        each = max(1, surplus // len(able))
        for rank in able:
            taken = min(each, surplus, batches[rank])
            batches[rank] -= taken
            surplus -= taken
    return batches
