"""Which batch gives most throughput: the sizes that are worth planning, until time is up."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from cephalo_cli.artifacts.base import InputFile
from cephalo_cli.artifacts.plan import Plan, PlanSettings
from cephalo_cli.artifacts.profile import Basis
from cephalo_cli.errors import InfeasibleError, TimeLimitError
from cephalo_cli.planner.make import SAME, make_plan
from cephalo_cli.planner.problem import make_problem
from cephalo_cli.planner.reach import compute_bound_s
from cephalo_cli.planner.repair import infeasible, largest_batch

__all__ = ["choose_batch"]

ALL_BATCHES = 64
"""Up to this batch every size is considered; beyond it sizes are about 2 % apart."""

SEARCH_SECONDS = 30.0
"""Time for the choice of a batch where none is given."""

PLANS = 15.0
"""No size takes more than one in so many parts of the time while sizes are compared."""

KEPT_BACK = 0.2
"""Part of the time kept for planning the best size again, where its plan was not proven."""

LEAST_SECONDS = 0.5
"""Time for a plan however late it is."""


def choose_batch(
    profile: Basis,
    goal: Literal["auto", "max"],
    max_batch_size: int,
    settings: PlanSettings | None = None,
    *,
    time_limit_s: float | None = None,
    say: Callable[[str], None] | None = None,
    inputs: Sequence[InputFile] = (),
) -> Plan:
    """Plan the batch with most samples a second (auto), or the largest that fits (max), up to a limit.

    For auto a batch is left out without planning where its compute alone, split in any way, cannot beat the best rate.
    Powers of two come first, then the sizes nearest to the best one; when time is up the best so far is taken.

    Args:
        profile: Curves, model, cluster and network.
        goal: What to look for.
        max_batch_size: The largest batch to consider.
        settings: Options; the defaults when absent.
        time_limit_s: Seconds for all of it; `SEARCH_SECONDS` when absent.
        say: Told in words what was left undone for want of time.
        inputs: Files to name in the plan.

    Raises:
        InfeasibleError: Not even one sample fits.
        TimeLimitError: No plan was found in time.
    """
    settings = settings or PlanSettings()
    seconds = SEARCH_SECONDS if time_limit_s is None else time_limit_s
    deadline = time.monotonic() + seconds
    largest = largest_batch(profile, settings, max_batch_size)
    if not largest:
        raise infeasible(make_problem(profile, settings, 1))

    def plan_within(batch: int, most_s: float) -> Plan:
        left_s = max(LEAST_SECONDS, deadline - time.monotonic())
        return make_plan(profile, batch, settings=settings, time_limit_s=min(most_s, left_s), inputs=inputs)

    if goal == "max":
        return plan_within(largest, seconds)

    def bound_s(batch: int) -> float:
        return compute_bound_s(make_problem(profile, settings, batch))

    best, untried = _quickest(largest, plan_within, bound_s, seconds=seconds, deadline=deadline)
    if largest > ALL_BATCHES and say is not None:
        say(f"of batch sizes above {ALL_BATCHES} up to {largest} one in about 2 % was tried")
    if untried and say is not None:
        say(f"time was up after {seconds:g} s: {untried} batch sizes up to {largest} were not tried")
    if best.solver.status == "time-limit":
        again = plan_within(best.global_batch_size, seconds)
        best = again if again.expected.step_s <= best.expected.step_s else best
    return best


def _quickest(
    largest: int,
    plan_within: Callable[[int, float], Plan],
    bound_s: Callable[[int], float],
    *,
    seconds: float,
    deadline: float,
) -> tuple[Plan, int]:
    """The plan with most samples a second, and how many sizes were not tried for want of time."""
    best: Plan | None = None
    untried = set(_batches(largest))
    while untried:
        if time.monotonic() > deadline - seconds * KEPT_BACK:
            break
        batch = _next_batch(untried, None if best is None else best.global_batch_size)
        untried.remove(batch)
        if best is not None and batch <= best.expected.samples_per_s * bound_s(batch):
            continue
        try:
            plan = plan_within(batch, seconds / PLANS)
        except (InfeasibleError, TimeLimitError):
            continue
        if best is None or plan.expected.samples_per_s > best.expected.samples_per_s * (1.0 + SAME):
            best = plan
    if best is None:
        raise TimeLimitError("no plan was found in time", where="--time-limit", hint="allow more seconds")
    return best, len(untried)


def _batches(most: int) -> Iterator[int]:
    """Batch sizes to consider, the largest first."""
    batch = most
    while batch >= 1:
        yield batch
        batch = min(batch - 1, int(batch / 1.02)) if batch > ALL_BATCHES else batch - 1


def _next_batch(untried: set[int], best: int | None) -> int:
    """The smallest untried power of two, then the size nearest to the best one."""
    powers = [batch for batch in untried if batch.bit_count() == 1]
    if powers:
        return min(powers)
    if best is None:
        return min(untried)
    return min(untried, key=lambda batch: (abs(math.log(batch / best)), batch))
