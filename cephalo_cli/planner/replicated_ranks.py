"""What ranks with the whole state each may do, and what it costs them: the tables behind `replicated`, its symbols."""

import math
from dataclasses import dataclass

import numpy as np

from cephalo_cli.costmodel import RankChoice
from cephalo_cli.costmodel.compute import moving_s_per_byte
from cephalo_cli.costmodel.step import collective_times
from cephalo_cli.planner.arrays import Floats, Ints, Mask
from cephalo_cli.planner.groups import DeviceGroup, Mode
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.round_costs import AnySizes, OneSize, RoundCosts
from cephalo_cli.planner.shares import ROUNDING
from cephalo_cli.planner.sizes import least_sample_s
from cephalo_cli.planner.way import Way
from cephalo_cli.schedule import step_stages

__all__ = ["Parts", "Ranks"]


class Parts:
    """What a step takes beside the ranks' own compute."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.counts = np.array(problem.counts, dtype=np.float64)
        step = step_stages("replicated", problem.step.units, 1)
        times = collective_times(problem.basis, step, [1.0] * problem.num_ranks)
        reduced = [unit for stage in step.stages for unit in stage.reduce]
        last_s = times.reduce_s[reduced[-1]]
        self.hidden_s = math.fsum(times.reduce_s[unit] for unit in reduced[:-1])
        """Reductions but the last."""
        self.hidden_bytes = sum(times.reduce_bytes[unit] for unit in reduced[:-1])
        self.fixed_s = last_s + max(group.optimizer_s for group in problem.groups)
        """What comes after everything else."""

    def moving_s(self, group: DeviceGroup) -> float:
        """Compute that a rank spends on moving the bytes of hidden reductions."""
        choice = group.modes[0].choice(group.name, (), 1.0)
        per_byte = moving_s_per_byte(self.problem.basis, choice, self.problem.num_ranks, "replicated")
        return per_byte * self.hidden_bytes

    def most_samples(self, group: DeviceGroup, step_s: float) -> int:
        """Most samples of a rank within a step, at the least seconds a sample."""
        batch = self.problem.batch_size
        per_sample = float(least_sample_s(self.problem, group) @ self.counts)
        room = step_s - self.fixed_s - self.moving_s(group)
        if room < 0:
            return 0
        return batch if room >= per_sample * batch else math.floor(room / per_sample * (1.0 + ROUNDING))


class Ranks:
    """Ranks of one device group: costs G by samples, and the microbatches behind them.

    In a plan within the limit every rank has ``sum_j c(s_j) <= limit - min p``. With m the least c(s) / s, a microbatch
    takes ``c(s) - m s`` longer than its samples need, and all of a rank's together may take no longer than
    ``limit - min p - m b``: sizes that alone do are left out.
    """

    def __init__(self, parts: Parts, way: Way, group: DeviceGroup, most: int, limit_s: float) -> None:
        self.group, self.limit_s, self.fewest = group, limit_s, 0
        moving_s, self.only = parts.moving_s(group), way.problem.settings.microbatch_size
        self.none_s = max(moving_s, parts.hidden_s)
        """p(0)."""
        self.tables: list[_Table] = []
        self.closed = True
        """Whether all sizes below one that fits do."""
        backward = np.array([kind.phase == "backward" for kind in way.problem.kinds])
        for mode in group.modes:
            table = way.sizes(group, mode)
            one, more = (table.by_size(rounds)[: most + 1] for rounds in (1, 2))
            if any(not (one & ~other.one).any() and not (more & ~other.more).any() for other in self.tables):
                continue
            tail = table.by_kind[: most + 1] @ (parts.counts * backward)
            penalty = np.maximum(moving_s, parts.hidden_s - tail)
            penalty[0] = self.none_s
            self.closed &= self.only is not None or not (np.diff(more.astype(int)) > 0).any()
            self.tables.append(
                _Table(mode=mode, one=one, more=more, seconds=table.seconds[: most + 1], penalty=penalty)
            )
        self.sample_s = min((table.sample_s for table in self.tables), default=math.inf)
        """m."""
        self.least_penalty_s = min((float(table.penalty.min()) for table in self.tables), default=0.0)
        room = limit_s - self.least_penalty_s
        self.most = most
        if room < 0 or not math.isfinite(self.sample_s):
            self.most = 0
        elif room < self.sample_s * most:
            self.most = min(most, math.floor(room / self.sample_s * (1.0 + ROUNDING)))
        """Most samples of a rank within the limit."""
        self.modes: list[_InMode] = []

    def narrow(self, fewest: int, few: int | None) -> None:
        """Leave out what no plan within the limit has whose ranks take so many samples or more.

        Args:
            fewest: The samples.
            few: How many sizes to leave in every mode, the best ones, where not all that such plans may have.
        """
        self.fewest, width = fewest, self.most + 1
        for table in self.tables:
            seconds, penalty, more = table.seconds[:width], table.penalty[:width], table.more[:width]
            in_one = np.where(table.one[:width], seconds + penalty, np.inf)
            in_one[(width if self.only is None else self.only) + 1 :] = np.inf
            slack_s = self.limit_s - self.least_penalty_s - self.sample_s * fewest
            useful = np.ones(width, dtype=bool)
            if math.isfinite(slack_s):
                useful = seconds - self.sample_s * np.arange(width) <= slack_s + ROUNDING * self.limit_s
            if few is not None:
                useful &= np.isin(np.arange(width), _best_sizes(seconds, more, few))
            in_rounds = (
                AnySizes(seconds, penalty, more, useful)
                if self.only is None
                else OneSize(seconds, penalty, more, self.only)
            )
            self.modes.append(
                _InMode(mode=table.mode, one=table.one[:width], more=more, in_one=in_one, in_rounds=in_rounds)
            )

    @property
    def rounds(self) -> tuple[int, int]:
        """The least and the largest number of microbatches of a rank, where it may have more than one."""
        found = [known.in_rounds.counts_of(self.fewest, self.most) for known in self.modes]
        return min((low for low, _ in found), default=0), max((high for _, high in found), default=0)

    def costs(self, rounds: int) -> Floats:
        """G by samples for a step of so many rounds."""
        if rounds == 1:
            return np.asarray(np.min([known.in_one for known in self.modes], axis=0))
        tables = []
        for known in self.modes:
            tables += [known.in_rounds.ending(rounds), known.in_rounds.fewer(rounds) + self.none_s]
        least = np.min(tables, axis=0)
        least[0] = self.none_s if any(known.more[0] for known in self.modes) else np.inf
        return np.asarray(least)

    def least(self, rounds: int) -> Floats:
        """A bound on G for all steps of so many rounds or more."""
        tables = []
        for known in self.modes:
            tables += [known.in_rounds.at_least(0)[0] + self.none_s, known.in_rounds.at_least(rounds)[1]]
        return np.asarray(np.min(tables, axis=0))

    @property
    def effort(self) -> int:
        """What one more round takes to look at."""
        return sum(4 * known.in_rounds.effort for known in self.modes)

    def choice(self, samples: int, rounds: int, limit_s: float) -> RankChoice:
        """What a rank of so many samples does within a limit: in the fastest mode, in as few microbatches as can be."""
        for known in self.modes:
            if not samples and (known.one if rounds == 1 else known.more)[0]:
                return known.mode.choice(self.group.name, (), 1.0)
            if rounds == 1 and known.in_one[samples] <= limit_s:
                return known.mode.choice(self.group.name, (samples,), 1.0)
            for count in range(1, rounds + 1 if rounds > 1 else 1):
                sizes = known.in_rounds.sizes(samples, count, limit_s, ends=count == rounds)
                if sizes is not None:
                    return known.mode.choice(self.group.name, sizes, 1.0)
        raise AssertionError("what a rank can do within a limit is found again")


def _best_sizes(seconds: Floats, fits: Mask, few: int) -> Ints:
    """The sizes that fit with the least seconds a sample."""
    sizes = np.flatnonzero(fits[1:]) + 1
    return np.asarray(sizes[np.argsort(seconds[sizes] / sizes, kind="stable")[:few]])


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Microbatches of one device group in one mode, by size from 0 on."""

    mode: Mode
    one: Mask
    """Which fit in a step of one round."""
    more: Mask
    """The same for more rounds."""
    seconds: Floats
    """c."""
    penalty: Floats
    """p."""

    @property
    def sample_s(self) -> float:
        """Least seconds of a sample, of all sizes up to the largest that fits."""
        sizes = np.arange(1, int(np.flatnonzero(self.one | self.more).max(initial=0)) + 1)
        return float((self.seconds[sizes] / sizes).min(initial=math.inf))


@dataclass(frozen=True, kw_only=True)
class _InMode:
    """Ranks of one device group in one mode."""

    mode: Mode
    one: Mask
    """Which microbatches fit in a step of one round, by size from 0 on."""
    more: Mask
    """The same for more rounds."""
    in_one: Floats
    """Costs by samples in a step of one round."""
    in_rounds: RoundCosts
    """Costs in more."""
