"""Plans: the best one, or one by another strategy, always with the others beside it."""

import time
from collections.abc import Sequence

from cephalo_cli.artifacts.base import InputFile
from cephalo_cli.artifacts.plan import Plan, PlanSettings, SolverProof, Strategy
from cephalo_cli.artifacts.profile import Basis
from cephalo_cli.errors import InfeasibleError, TimeLimitError, UsageError
from cephalo_cli.planner.check import check_plan
from cephalo_cli.planner.decided import Decided
from cephalo_cli.planner.problem import Problem, Space, make_problem
from cephalo_cli.planner.reach import compute_bound_s
from cephalo_cli.planner.repair import infeasible
from cephalo_cli.planner.spend import best_plan, widest
from cephalo_cli.planner.strategies import other_strategies

__all__ = ["SAME", "make_all_plans", "make_plan"]

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

    The cephalo strategy searches all layer-major plans and proves the best. Where another strategy fits and is faster
    still (state replicated in ample memory, or boundaries of one microbatch instead of all), its decisions and its
    schedule are taken over; the proof then says ``heuristic``, with a bound that holds for every schedule.

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
        self.cephalo = self._cephalo()

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

    def _cephalo(self) -> tuple[Decided, SolverProof] | None:
        """The best layer-major plan, or a faster one of another strategy."""
        fastest = min(
            (decided for alternative, decided in self.others if decided is not None and alternative.feasible),
            key=lambda decided: decided.estimate.step_s,
            default=None,
        )
        if self.solution is not None:
            best = Decided(
                basis=self.problem.basis,
                settings=self.problem.settings,
                strategy="cephalo",
                schedule="layer-major",
                choices=self.solution.choices,
                keep_unsharded=self.solution.keep_unsharded,
            )
            if fastest is None or fastest.estimate.step_s >= best.estimate.step_s * (1.0 - SAME):
                status = "optimal" if self.solution.proven else "time-limit"
                return best, _proof(status, best, self.solution.lower_bound_s)
        if fastest is None:
            return None
        bound = min(compute_bound_s(self.problem), fastest.estimate.step_s)
        return fastest.renamed("cephalo"), _proof("heuristic", fastest, bound)


def _proof(status: str, decided: Decided, bound_s: float) -> SolverProof:
    step_s = decided.estimate.step_s
    lower = min(bound_s, step_s)
    gap = (step_s - lower) / step_s if step_s > 0 else 0.0
    if status == "optimal" and gap <= 2 * SAME:
        lower, gap = step_s, 0.0
    return SolverProof.model_validate({"status": status, "lower_bound_s": lower, "gap": gap})
