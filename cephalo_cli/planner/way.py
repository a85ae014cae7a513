"""Microbatches of schedules of rounds (microbatch-major, replicated), by size: what they take, and whether they fit."""

import math

import numpy as np

from cephalo_cli.artifacts.plan import ScheduleName
from cephalo_cli.costmodel.memory import buffers_bytes, planned_state_bytes
from cephalo_cli.planner.arrays import Mask
from cephalo_cli.planner.groups import DeviceGroup, Mode
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.sizes import KEPT, size_costs
from cephalo_cli.schedule import step_stages

__all__ = ["SizeTable", "Way"]


class Way:
    """How a step is run: its schedule, every rank's share, and what they change in memory.

    Args:
        problem: The problem.
        schedule: A schedule of rounds.
        share: State share of every rank.
        most: Microbatches are considered up to this size.
    """

    def __init__(self, problem: Problem, schedule: ScheduleName, share: float, most: int) -> None:
        self.problem, self.schedule, self.share, self.most = problem, schedule, share, most
        self.known: dict[tuple[str, Mode], SizeTable] = {}
        steps = [problem.step, *(step_stages(schedule, problem.step.units, rounds) for rounds in (1, 2))]
        layer_major, *others = (
            buffers_bytes(
                step,
                num_ranks=problem.num_ranks,
                dtype=problem.basis.dtype,
                frozen_dtype=problem.basis.model.frozen_dtype,
            )
            for step in steps
        )
        self.more_buffers_bytes = [now - layer_major for now in others]
        """Buffers beyond those of layer-major order, which `sizes` counts: for one round, and for more."""
        self.state_bytes = [
            planned_state_bytes(problem.basis, problem.settings, step=step, num_ranks=problem.num_ranks)
            for step in steps[1:]
        ]
        """The whole state likewise."""

    def sizes(self, group: DeviceGroup, mode: Mode) -> "SizeTable":
        """Microbatches of a device group by size."""
        key = (group.name, mode)
        if key not in self.known:
            self.known[key] = SizeTable(self, group, mode)
        return self.known[key]


class SizeTable:
    """Seconds and bytes of microbatches by size, for one device group and mode.

    Under a schedule of rounds a rank's memory depends on its largest microbatch alone, and on whether there is more
    than one round.
    """

    def __init__(self, way: Way, group: DeviceGroup, mode: Mode) -> None:
        problem, most = way.problem, way.most
        costs = size_costs(problem, group, mode, most, trim=False)
        self.by_kind = costs.seconds
        """Seconds of a stage by size and kind, shape (sizes + 1, kinds); replicated, copies included where they are
        longer: no rank waits for another's."""
        if way.schedule == "replicated" and mode.offload:
            each = np.arange(most + 1)
            self.by_kind = np.maximum(costs.seconds, costs.copy_s(each, np.minimum(each, 1).astype(np.float64)))
        self.seconds = self.by_kind @ np.array(problem.counts, dtype=np.float64)
        saved = np.ceil(costs.additive[:, KEPT]) + costs.boundary_bytes * np.arange(most + 1)
        more_buffers_bytes = [0, 0] if group.device.method == "imported" else way.more_buffers_bytes
        starts = way.share <= group.startup_share
        fits = [
            (costs.beside_bytes + saved + math.ceil(way.share * state) + more <= group.limit_bytes) & starts
            for more, state in zip(more_buffers_bytes, way.state_bytes, strict=True)
        ]
        self.in_one_round, self.in_rounds = fits

    def fits(self, rounds: int, size: int) -> bool:
        """Whether a largest microbatch of a size fits."""
        fits = self.by_size(rounds)
        return size < len(fits) and bool(fits[size])

    def largest(self, rounds: int, most: int) -> int:
        """Largest microbatch up to ``most`` that fits with all smaller ones; 0 where none does."""
        first_misfit = int(np.argmin(np.append(self.by_size(rounds), False)))
        return max(0, min(most, first_misfit - 1))

    def by_size(self, rounds: int) -> Mask:
        """Whether a largest microbatch fits, by size from 0 on."""
        return self.in_one_round if rounds == 1 else self.in_rounds
