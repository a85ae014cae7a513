"""Whether anything fits, and what is missing where nothing does: the problem with time left out.

For every group and number of samples b the least memory beside the state is found (over microbatches and modes; in a
family of modes it is linear, so its ends are enough); the split of the batch that leaves most room for the state
(`split.largest_sum`) then decides.
"""

from dataclasses import dataclass

import numpy as np

from cephalo_cli.costmodel.memory import weights_bytes
from cephalo_cli.planner.apportion import uniform_sizes
from cephalo_cli.planner.arrays import Floats
from cephalo_cli.planner.groups import DeviceGroup
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.shares import ROUNDING
from cephalo_cli.planner.sizes import KEPT, SizeCosts, size_costs
from cephalo_cli.planner.split import find_split, largest_sum, stacked

__all__ = ["Shortage", "find_shortage", "state_fits"]


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """Why nothing fits."""

    rank: int
    device: str
    term: str
    """The memory term that breaks the limit."""
    over_bytes: int
    """How many bytes are missing: on the rank, or for the state over all ranks."""
    everywhere: bool
    """Whether every rank fits beside no state, and the state over all ranks does not."""


def state_fits(problem: Problem) -> bool:
    """Whether some plan fits, whatever it takes."""
    if _lone_shortage(problem) is not None:
        return False
    rooms = stacked([_room_by_samples(problem, group) for group in problem.groups])
    counts = np.array([group.count for group in problem.groups])
    rooms[rooms < 0] = -np.inf
    return find_split(rooms, counts, problem.batch_size, 1.0 - ROUNDING) is not None


def find_shortage(problem: Problem) -> Shortage | None:
    """What is missing for the most frugal plan; None where one fits."""
    lone = _lone_shortage(problem)
    if lone is not None:
        return lone
    rooms = [_room_by_samples(problem, group) for group in problem.groups]
    counts = np.array([group.count for group in problem.groups])
    fitting = largest_sum(stacked([np.where(room >= 0, room, -np.inf) for room in rooms]), counts, problem.batch_size)
    if fitting is not None and fitting[0] >= 1.0 - ROUNDING:
        return None
    if fitting is not None:
        smallest = min(problem.groups, key=lambda group: group.limit_bytes)
        over = round((1.0 - fitting[0]) * problem.state_bytes)
        return Shortage(rank=smallest.ranks[0], device=smallest.name, term="state", over_bytes=over, everywhere=True)
    split = largest_sum(stacked(rooms), counts, problem.batch_size)
    if split is None:
        raise AssertionError("without limits every split is possible")
    worst = min(
        (
            (float(room[samples]), index, samples)
            for index, (room, members) in enumerate(zip(rooms, split[1], strict=True))
            for samples in members
        )
    )
    group = problem.groups[worst[1]]
    sizes = uniform_sizes(worst[2], problem.settings.microbatch_size or 1)
    return _on_rank(problem, group, sizes, max(1, round(-worst[0] * problem.state_bytes)))


def _lone_shortage(problem: Problem) -> Shortage | None:
    """A rank that does not even fit without samples and state."""
    for group in problem.groups:
        empty = _memory_terms(problem, group, ())
        beside = sum(empty.values())
        if beside > group.limit_bytes:
            return _on_rank(problem, group, (), beside - group.limit_bytes)
        if group.startup_share < 0:
            over = -group.startup_share * weights_bytes(problem.basis)
            return Shortage(
                rank=group.ranks[0], device=group.name, term="start-up", over_bytes=round(over), everywhere=False
            )
    return None


def _on_rank(problem: Problem, group: DeviceGroup, sizes: tuple[int, ...], over_bytes: int) -> Shortage:
    terms = _memory_terms(problem, group, sizes)
    term = max(terms, key=lambda name: terms[name])
    return Shortage(rank=group.ranks[0], device=group.name, term=term, over_bytes=over_bytes, everywhere=False)


def _memory_terms(problem: Problem, group: DeviceGroup, sizes: tuple[int, ...]) -> dict[str, int]:
    memory = problem.memory(group.modes[-1].choice(group.name, sizes, 0.0))
    return {
        "buffers": memory.buffers_bytes,
        "working": memory.working_bytes,
        "saved": memory.saved_bytes,
        "reserve": memory.reserve_bytes,
    }


def _room_by_samples(problem: Problem, group: DeviceGroup) -> Floats:
    """Largest share that fits beside b samples, below zero where the samples alone are too many."""
    most = problem.batch_size
    least = np.full(most + 1, np.inf)
    least[0] = sum(_memory_terms(problem, group, ()).values())
    for mode in {group.modes[end] for family in group.families for end in (family[0], family[-1])}:
        costs = size_costs(problem, group, mode, most, trim=False)
        least[1:] = np.minimum(least[1:], _least_beside(problem, costs, most)[1:])
    return np.minimum(min(1.0, group.startup_share), (group.limit_bytes - least) / problem.state_bytes)


def _least_beside(problem: Problem, costs: SizeCosts, most: int) -> Floats:
    """Least bytes beside the state by samples, over all multisets of microbatch sizes."""
    samples = np.arange(most + 1)
    only = problem.settings.microbatch_size
    kept = costs.additive[:, KEPT]
    if only is not None:
        rest = samples % only
        largest = np.where(samples < only, samples, min(only, most))
        total = (samples // only) * kept[min(only, most)] + kept[rest]
        return np.asarray(costs.beside_bytes[largest] + np.ceil(total) + costs.boundary_bytes * samples)
    best = np.full(most + 1, np.inf)
    if not costs.matters[KEPT]:
        per_sample = kept[1] if most else 0.0
        least = np.minimum.accumulate(np.append(np.inf, costs.beside_bytes[1:]))
        return np.asarray(least + np.ceil(per_sample * samples) + costs.boundary_bytes * samples)
    table = np.full(most + 1, np.inf)
    table[0] = 0.0
    for size in range(1, most + 1):
        for start in range(size, most + 1, size):
            block = slice(start, min(start + size, most + 1))
            width = block.stop - block.start
            table[block] = np.minimum(table[block], table[start - size : start - size + width] + kept[size])
        best = np.minimum(best, table + costs.beside_bytes[size])
    return best + costs.boundary_bytes * samples
