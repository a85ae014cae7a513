"""Which devices are worth having: plans with some of them left out."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from cephalo_cli.artifacts.base import InputFile
from cephalo_cli.artifacts.plan import Plan, PlanSettings
from cephalo_cli.artifacts.profile import Basis
from cephalo_cli.errors import InfeasibleError, UsageError
from cephalo_cli.planner.make import SAME, make_plan
from cephalo_cli.planner.problem import make_problem
from cephalo_cli.planner.repair import infeasible
from cephalo_cli.planner.variants import with_devices

__all__ = ["choose_devices", "cost_per_token"]

Objective = Literal["time", "cost"]

ALL_SUBSETS = 128
"""Up to so many subsets of devices are all planned; beyond it devices are left out one type at a time."""


@dataclass(frozen=True, kw_only=True)
class _Best:
    """A plan with a subset of the devices."""

    value: float
    """What is made small: seconds, or currency a token."""
    plan: Plan
    counts: tuple[int, ...]
    """Devices of each type."""


def choose_devices(
    profile: Basis,
    batch_size: int,
    settings: PlanSettings | None = None,
    *,
    objective: Objective = "time",
    inputs: Sequence[InputFile] = (),
) -> Plan:
    """Plan with the devices that are worth having: those left out are not in the plan's cluster.

    Args:
        profile: Curves, model, cluster and network.
        batch_size: Samples of a step.
        settings: Options; the defaults when absent.
        objective: time: the quickest step. cost: the least currency a token, from each type's ``price_per_hour``.
        inputs: Files to name in the plan.

    Raises:
        InfeasibleError: Nothing fits, whichever devices are left out.
        UsageError: The objective is cost and a device type has no price.
    """
    settings = settings or PlanSettings()
    members = [place.device for place in profile.cluster.ranks]
    names = sorted(set(members))
    if objective == "cost":
        for name in names:
            if profile.cluster.device_types[name].price_per_hour is None:
                raise UsageError(
                    f"device type {name} has no price_per_hour",
                    where="--objective cost",
                    hint=f'give device_types.{name} "price_per_hour" in the cluster file (one currency), '
                    "and profile again",
                )
    most = tuple(members.count(name) for name in names)

    def evaluate(counts: tuple[int, ...]) -> _Best | None:
        basis = with_devices(profile, dict(zip(names, counts, strict=True)))
        try:
            plan = make_plan(basis, batch_size, settings=settings, inputs=inputs)
        except InfeasibleError:
            return None
        value = plan.expected.step_s if objective == "time" else cost_per_token(plan)
        return _Best(value=value, plan=plan, counts=counts)

    best = _best_subset(most, evaluate)
    if best is None:
        raise infeasible(make_problem(profile, settings, batch_size))
    return best.plan


def cost_per_token(plan: Plan) -> float:
    """Currency a token of a plan's cluster costs.

    Raises:
        UsageError: A device type has no price.
    """
    total = 0.0
    for rank in plan.ranks:
        price = plan.cluster.device_types[rank.device].price_per_hour
        if price is None:
            raise UsageError(f"device type {rank.device} has no price_per_hour", where="--objective cost")
        total += price
    return total / 3600.0 / plan.expected.tokens_per_s


def _best_subset(most: tuple[int, ...], evaluate: Callable[[tuple[int, ...]], _Best | None]) -> _Best | None:
    """All subsets where they are few; else from all devices on, the best single change until none helps."""
    subsets = 1
    for count in most:
        subsets *= count + 1
    if subsets <= ALL_SUBSETS:
        ranges = [range(count, -1, -1) for count in most]
        tried = (evaluate(counts) for counts in itertools.product(*ranges) if any(counts))
        return min((found for found in tried if found is not None), key=lambda found: found.value, default=None)
    best = evaluate(most)
    counts = most
    while True:
        steps = [
            (*counts[:index], fewer, *counts[index + 1 :])
            for index, count in enumerate(counts)
            for fewer in sorted({count - 1, count // 2, 0})
            if 0 <= fewer < count
        ]
        tried = (evaluate(step) for step in steps if any(step))
        better = min((found for found in tried if found is not None), key=lambda found: found.value, default=None)
        if better is None or (best is not None and better.value >= best.value * (1.0 - SAME)):
            return best
        best, counts = better, better.counts
