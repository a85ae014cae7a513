"""The best plan by enumeration: every split, every multiset, every mode, with the shares solved as a linear program.

Nothing of the search is used here; the numbers come from the cost model's own functions.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.optimize import linprog

from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.profile import Profile
from cephalo_cli.costmodel import RankChoice, rank_memory
from cephalo_cli.costmodel.compute import copy_s, optimizer_s, stage_s
from cephalo_cli.costmodel.memory import state_bytes
from cephalo_cli.costmodel.step import collective_times
from cephalo_cli.schedule import is_recomputed, step_stages
from cephalo_cli.units import model_units

Option = tuple[Any, ...]


def partitions(total: int, largest: int) -> Iterator[tuple[int, ...]]:
    if total == 0:
        yield ()
    for size in range(min(total, largest), 0, -1):
        for rest in partitions(total - size, size):
            yield (size, *rest)


def rank_options(
    profile: Profile, settings: PlanSettings, device: str, batch: int, keep: int | None
) -> dict[int, list[Option]]:
    """Undominated ``(compute by stage, copies, largest share, choice)`` of one rank by samples.

    With ``keep`` absent blocks recompute all or not at all, and none stays unsharded.
    """
    step = step_stages("layer-major", model_units(profile.model), keep_unsharded=keep or 0)
    stages = [(step.units[stage.unit], stage.phase) for stage in step.stages]
    curves = profile.devices[device]
    wide, largest_unit = 4, max(unit.num_parameters for unit in step.units)
    modes: list[tuple[bool, bool, int | None]] = [(True, False, None)]
    if profile.cluster.device_types[device].backend != "cpu":
        modes.append((True, True, None))
    if curves.units["block"].saved_bytes is not None:
        modes.append((False, False, None))
        modes += [(True, False, count) for count in range(1, profile.model.num_layers)] if keep is not None else []
    found: dict[int, list[Option]] = {}
    for samples in range(batch + 1):
        options: list[Option] = []
        for sizes, (recompute, offload, count) in itertools.product(partitions(samples, samples), modes):
            choice = RankChoice(
                device=device,
                microbatch_sizes=sizes,
                state_share=0.0,
                recompute=recompute,
                offload=offload,
                recompute_blocks=count,
            )
            memory = rank_memory(profile, settings, choice, step=step, num_ranks=len(profile.cluster.ranks))
            room = (memory.limit_bytes - memory.total_bytes) / state_bytes(profile)
            if room < 0:
                continue
            compute = [
                stage_s(
                    curves,
                    unit.kind,
                    phase,
                    sizes,
                    recompute=is_recomputed(unit, recompute=recompute, recompute_blocks=count),
                )
                for unit, phase in stages
            ]
            copies = [copy_s(profile, curves, unit.kind, phase, sizes, offload=offload) for unit, phase in stages]
            starts = memory.limit_bytes - memory.reserve_bytes - wide * (largest_unit + 1)
            room = min(1.0, room, starts / (wide * profile.num_parameters))
            if room >= 0:
                options.append((np.array(compute), np.array(copies), room, choice))
        if options:
            found[samples] = without_dominated(options)
    return found


def without_dominated(options: list[Option]) -> list[Option]:
    kept: list[Option] = []
    for option in options:
        vector = np.concatenate([option[0], option[1], [-option[2]]])
        if not any((np.concatenate([o[0], o[1], [-o[2]]]) <= vector).all() for o in kept):
            kept = [o for o in kept if not (vector <= np.concatenate([o[0], o[1], [-o[2]]])).all()]
            kept.append(option)
    return kept


class ShareProgram:
    """``min exposed + sum_u T_u + O`` over shares, stage times, w and O for fixed options, rank by rank."""

    def __init__(self, profile: Profile, keep: int) -> None:
        self.profile = profile
        self.step = step_stages("layer-major", model_units(profile.model), keep_unsharded=keep)
        self.num_ranks = len(profile.cluster.ranks)
        # Collectives are affine in w: read both coefficients off the cost model at two vectors of shares.
        even = [1 / self.num_ranks] * self.num_ranks
        uneven = [0.0] * (self.num_ranks - 1) + [1.0]
        self.network = profile.network
        self.direct = self.network != "ideal" and self.network.algorithm == "direct"
        w_even = (self.num_ranks - 1) / self.num_ranks
        w_uneven = self.num_ranks - 1.0 if self.direct else 1.0
        at_even, at_uneven = (collective_times(profile, self.step, shares) for shares in (even, uneven))
        self.stages: list[tuple[float, float, float]] = []
        before: tuple[int, ...] = ()
        for stage in self.step.stages:
            self.stages.append(
                self._affine(at_even, at_uneven, w_even, w_uneven, gathered=stage.unshard, reduced=before)
            )
            before = stage.reduce
        first = self._affine(at_even, at_uneven, w_even, w_uneven, gathered=self.step.first, reduced=())
        last = self._affine(at_even, at_uneven, w_even, w_uneven, gathered=(), reduced=before)
        self.exposed = (first[0] + last[0], first[1] + last[1])
        self.least_w = w_even if self.network != "ideal" and self.num_ranks > 1 else 0.0

    @staticmethod
    def _affine(
        a: Any, b: Any, w_a: float, w_b: float, *, gathered: tuple[int, ...], reduced: tuple[int, ...]
    ) -> tuple[float, float, float]:
        def seconds(times: Any) -> float:
            return float(sum(times.gather_s[u] for u in gathered) + sum(times.reduce_s[u] for u in reduced))

        moved = sum(a.gather_bytes[u] for u in gathered) + sum(a.reduce_bytes[u] for u in reduced)
        slope = (seconds(b) - seconds(a)) / (w_b - w_a) if w_b != w_a else 0.0
        return seconds(a) - slope * w_a, slope, moved

    def moving(self, device: str) -> float:
        return 0.0 if self.network == "ideal" else self.profile.devices[device].collective_compute_s_per_byte

    def bound(self, options: tuple[Option, ...]) -> float:
        total = self.exposed[0] + self.exposed[1] * self.least_w
        for kind, (floor, slope, moved) in enumerate(self.stages):
            least = 1.0 if self.direct else 0.0
            compute = [
                max(option[0][kind] + self.moving(option[3].device) * least * moved, option[1][kind])
                for option in options
            ]
            total += max(floor + slope * self.least_w, *compute)
        return total

    def solve(self, options: tuple[Option, ...]) -> float | None:
        n, m = self.num_ranks, len(self.stages)
        width = n + m + 2
        rows, limits = [], []

        def add(limit: float, entries: dict[int, float]) -> None:
            row = np.zeros(width)
            for column, value in entries.items():
                row[column] += value
            rows.append(row)
            limits.append(limit)

        w, o = n + m, n + m + 1
        for rank, (compute, copies, _, choice) in enumerate(options):
            whole = RankChoice(
                device=choice.device, microbatch_sizes=(), state_share=1.0, recompute=True, offload=False
            )
            add(0.0, {rank: optimizer_s(self.profile, whole), o: -1.0})
            if self.network != "ideal":
                add(-1.0, {rank: -1.0, w: -1.0})
                if self.direct:
                    add(0.0, {rank: n - 1.0, w: -1.0})
            handled = (1.0, n - 1.0) if self.direct else (2.0, -2.0)
            for index, (_, _, moved) in enumerate(self.stages):
                cost = self.moving(choice.device) * moved
                add(-compute[index] - cost * handled[0], {rank: cost * handled[1], n + index: -1.0})
                add(-copies[index], {n + index: -1.0})
        for index, (floor, slope, _) in enumerate(self.stages):
            add(-floor, {w: slope, n + index: -1.0})
        cost_row = np.zeros(width)
        cost_row[n : n + m] = 1.0
        cost_row[w], cost_row[o] = self.exposed[1], 1.0
        equal = np.zeros((1, width))
        equal[0, :n] = 1.0
        bounds = [(0.0, option[2]) for option in options] + [(0.0, None)] * (m + 2)
        unit = 1e-3
        scale = np.array([1.0] * n + [unit] * m + [1.0, unit])
        solved = linprog(
            cost_row * scale / unit,
            A_ub=np.array(rows) * scale,
            b_ub=np.array(limits),
            A_eq=equal,
            b_eq=[1.0],
            bounds=bounds,
            method="highs-ds",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        return None if solved.fun is None else float(solved.fun) * unit + self.exposed[0]


def brute_force(
    profile: Profile, settings: PlanSettings, batch: int, keep: int | None = None, best: float | None = None
) -> float | None:
    """The best step of all plans, or ``best`` where none is faster; None where none fits."""
    by_device = {d: rank_options(profile, settings, d, batch, keep) for d in profile.devices}
    members = [place.device for place in profile.cluster.ranks]
    program = ShareProgram(profile, keep or 0)
    candidates = []
    seen = set()
    for split in itertools.product(range(batch + 1), repeat=len(members)):
        if sum(split) != batch or any(s not in by_device[d] for s, d in zip(split, members, strict=True)):
            continue
        alike = tuple(sorted(zip(members, split, strict=True)))
        if alike in seen:
            continue
        seen.add(alike)
        candidates += [
            (program.bound(options), options)
            for options in itertools.product(*(by_device[d][s] for s, d in zip(split, members, strict=True)))
            if sum(option[2] for option in options) >= 1.0
        ]
    for bound, options in sorted(candidates, key=lambda candidate: candidate[0]):
        if best is not None and bound >= best:
            break
        value = program.solve(options)
        if value is not None and (best is None or value < best):
            best = value
    return best
