"""Plans: the best one, or one by another strategy, always with the others beside it."""

import math
import time
from collections.abc import Mapping, Sequence

from cephalo_cli.artifacts.base import InputFile
from cephalo_cli.artifacts.plan import Plan, PlanSettings, ScheduleName, SolverProof, Strategy
from cephalo_cli.artifacts.profile import Basis
from cephalo_cli.errors import InfeasibleError, TimeLimitError, UsageError
from cephalo_cli.planner.check import check_plan
from cephalo_cli.planner.decided import Decided
from cephalo_cli.planner.frugal import state_fits
from cephalo_cli.planner.problem import Problem, Space, make_problem
from cephalo_cli.planner.reach import compute_bound_s
from cephalo_cli.planner.repair import infeasible
from cephalo_cli.planner.replicated import best_replicated
from cephalo_cli.planner.solve import Solution
from cephalo_cli.planner.spend import best_plan, widest
from cephalo_cli.planner.strategies import other_strategies

__all__ = ["SAME", "make_all_plans", "make_plan", "proof_of_both"]

SAME = 1e-9
"""Relative difference below which two step times are the same."""


def make_plan(
    profile: Basis,
    batch_size: int,
    strategy: Strategy = "cephalo",
    settings: PlanSettings | None = None,
    *,
    time_limit_s: float | None = None,
    thorough: bool = False,
    inputs: Sequence[InputFile] = (),
) -> Plan:
    """Plan a step, with every other strategy beside it.

    The cephalo strategy searches all layer-major plans and all with the state replicated, and proves the best of both.
    Where a microbatch-major strategy is faster still (boundaries of one microbatch instead of all), its decisions and
    its schedule are taken over; the proof then says ``heuristic``, with a bound that holds for every schedule. Where
    the settings give a number of blocks that stay unsharded, only layer-major plans can do so, and only those answer.

    Args:
        profile: Curves, model, cluster and network.
        batch_size: Samples of a step over all ranks.
        strategy: How to plan.
        settings: Options; the defaults when absent.
        time_limit_s: Seconds after which the best plan so far is taken, with its gap.
        thorough: Whether to look for the proof until then; otherwise the search ends after some effort, with its gap.
        inputs: Files to name in the plan.

    Raises:
        InfeasibleError: Nothing fits; says what is missing and the smallest repair that works.
        TimeLimitError: The time limit passed before any plan was found.
        UsageError: The settings ask for something a device cannot do, or the strategy needs a number the profile lacks.
    """
    plans = _Plans(profile, batch_size, settings or PlanSettings(), time_limit_s, thorough=thorough)
    plan = plans.by(strategy, inputs)
    check_plan(plan)
    return plan


def make_all_plans(
    profile: Basis,
    batch_size: int,
    settings: PlanSettings | None = None,
    *,
    time_limit_s: float | None = None,
    inputs: Sequence[InputFile] = (),
) -> dict[Strategy, Plan]:
    """Plan by every strategy that fits, the cephalo plan first. Raises as `make_plan` where not even that fits."""
    plans = _Plans(profile, batch_size, settings or PlanSettings(), time_limit_s)
    found: dict[Strategy, Plan] = {"cephalo": plans.by("cephalo", inputs)}
    for alternative, _ in plans.others:
        if alternative.feasible:
            found[alternative.strategy] = plans.by(alternative.strategy, inputs)
    for plan in found.values():
        check_plan(plan)
    return found


class _Plans:
    """All strategies of one problem."""

    def __init__(
        self,
        basis: Basis,
        batch_size: int,
        settings: PlanSettings,
        time_limit_s: float | None,
        *,
        thorough: bool = False,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"a batch of {batch_size} samples trains nothing", where="--batch-size")
        deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
        self.problem: Problem = make_problem(basis, settings, batch_size)
        if any(group.limit_bytes == 0 for group in self.problem.groups):
            raise infeasible(self.problem)
        self.solution = best_plan(self.problem, deadline, thorough=thorough)
        self.late = self.solution is None and deadline is not None and time.monotonic() > deadline
        self.others = other_strategies(self._usual())
        self.cephalo = self._cephalo(deadline, thorough=thorough)

    def _usual(self) -> Problem:
        """The problem of those that keep no blocks unsharded."""
        if not self.problem.space.keep_unsharded:
            return self.problem
        return make_problem(self.problem.basis, self.problem.settings, self.problem.batch_size, Space())

    def _infeasible(self, reason: str | None = None) -> InfeasibleError:
        problem = self.problem
        return infeasible(make_problem(problem.basis, problem.settings, problem.batch_size, widest(problem)), reason)

    def by(self, strategy: Strategy, inputs: Sequence[InputFile]) -> Plan:
        """The plan of one strategy."""
        if strategy == "cephalo":
            if self.cephalo is None:
                if self.late:
                    raise TimeLimitError("no plan was found in time", where="--time-limit", hint="allow more seconds")
                raise self._infeasible()
            decided, proof = self.cephalo
            return decided.plan(proof, [alternative for alternative, _ in self.others], inputs)
        alternative, decided_or_none = next(
            (alternative, decided) for alternative, decided in self.others if alternative.strategy == strategy
        )
        if decided_or_none is None:
            raise UsageError(f"{strategy}: {alternative.reason}", where="--strategy")
        if not alternative.feasible:
            raise self._infeasible(f"{strategy}: {alternative.reason}")
        others = [other for other, _ in self.others if other.strategy != strategy]
        if self.cephalo is not None:
            others.insert(0, self.cephalo[0].alternative())
        bound = min(compute_bound_s(self.problem), decided_or_none.estimate.step_s)
        return decided_or_none.plan(_proof("heuristic", decided_or_none, bound), others, inputs)

    def _cephalo(self, deadline: float | None, *, thorough: bool) -> tuple[Decided, SolverProof] | None:
        """The best plan of those that were searched, or a faster one of another strategy."""
        best = self._layer_major()
        if isinstance(self.problem.settings.keep_unsharded, int):
            return None if best is None or self.solution is None else (best, _searched(best, self.solution))
        known = [decided for alternative, decided in self.others if decided is not None and alternative.feasible]
        known_s = min((decided.estimate.step_s for decided in (best, *known) if decided is not None), default=math.inf)
        replicated = best_replicated(self._with_all_modes(), known_s, deadline, thorough=thorough)
        every = [decided for decided in (best, replicated.decided, *known) if decided is not None]
        if not every:
            return None
        fastest = every[0]
        for decided in every[1:]:
            if decided.estimate.step_s < fastest.estimate.step_s * (1.0 - SAME):
                fastest = decided
        if fastest.schedule == "microbatch-major":
            bound_s = min(compute_bound_s(self.problem), fastest.estimate.step_s)
            return fastest.renamed("cephalo"), _proof("heuristic", fastest, bound_s)
        bounds: dict[ScheduleName, float] = {
            "layer-major": self._layer_major_bound_s(),
            "replicated": replicated.lower_bound_s,
        }
        return fastest.renamed("cephalo"), proof_of_both(fastest, bounds)

    def _layer_major(self) -> Decided | None:
        """The best layer-major plan."""
        if self.solution is None:
            return None
        return Decided(
            basis=self.problem.basis,
            settings=self.problem.settings,
            strategy="cephalo",
            schedule="layer-major",
            choices=self.solution.choices,
            keep_unsharded=self.solution.keep_unsharded,
        )

    def _layer_major_bound_s(self) -> float:
        """No layer-major plan is faster than this; infinite where none fits."""
        if self.solution is not None:
            return self.solution.lower_bound_s
        problem = self.problem
        fits = state_fits(make_problem(problem.basis, problem.settings, problem.batch_size, widest(problem)))
        return compute_bound_s(problem) if fits else math.inf

    def _with_all_modes(self) -> Problem:
        """The problem with all numbers of blocks that ranks may recompute."""
        problem, space = self.problem, widest(self.problem)
        if not space.partial:
            return self._usual()
        return make_problem(problem.basis, problem.settings, problem.batch_size, Space(partial=True))


def _searched(decided: Decided, solution: Solution) -> SolverProof:
    """The proof of the best layer-major plan among layer-major ones."""
    return _proof("optimal" if solution.proven else "time-limit", decided, solution.lower_bound_s)


def proof_of_both(decided: Decided, bounds_s: Mapping[ScheduleName, float]) -> SolverProof:
    """The proof of a plan among layer-major and replicated ones: the lesser of the two bounds holds for all."""
    kind = min(bounds_s, key=lambda schedule: bounds_s[schedule])
    step_s = decided.estimate.step_s
    if bounds_s[kind] >= step_s * (1.0 - 2 * SAME):
        return _proof("optimal", decided, bounds_s[kind])
    proof = _proof("time-limit", decided, bounds_s[kind])
    return proof if kind == decided.schedule else proof.model_copy(update={"bound_schedule": kind})


def _proof(status: str, decided: Decided, bound_s: float) -> SolverProof:
    step_s = decided.estimate.step_s
    lower = min(bound_s, step_s)
    gap = (step_s - lower) / step_s if step_s > 0 else 0.0
    if status == "optimal" and gap <= 2 * SAME:
        lower, gap = step_s, 0.0
    return SolverProof.model_validate({"status": status, "lower_bound_s": lower, "gap": gap})
