"""Why a plan is as fast as it is: what binds on every rank, and what a change would gain, planned again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cephalo_cli.artifacts.plan import Plan, RankPlan
from cephalo_cli.artifacts.profile import Basis
from cephalo_cli.costmodel import RankChoice, step_estimate
from cephalo_cli.errors import InfeasibleError
from cephalo_cli.planner.make import make_plan
from cephalo_cli.planner.variants import with_card, with_faster_network, with_memory
from cephalo_cli.schedule import plan_stages

__all__ = ["Binding", "Explanation", "Gain", "explain", "phases_that_wait", "plan_choices"]

Phase = Literal["forward", "backward", "optimizer"]

PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")

NEAR = 0.995
"""From this fraction of a limit on it is said to bind."""

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Binding:
    """What holds one rank back."""

    rank: int
    device: str
    constraints: tuple[str, ...]
    """Any of forward, backward, optimizer (the slowest rank), network (the rank most bytes pass through, where its
    collectives take longer than what they hide behind), memory (full); none for a rank that waits for others."""
    memory_fraction: float
    """Its memory's total divided by its limit."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What one change would gain."""

    change: str
    """The change in words."""
    step_s: float | None
    """Step after planning again; absent where that does not fit."""
    speedup: float | None
    """Old step divided by the new one."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Bindings by rank and gains by change."""

    bindings: tuple[Binding, ...]
    gains: tuple[Gain, ...]


def explain(plan: Plan) -> Explanation:
    """Explain a plan from its own content; every gain is the step of a new cephalo plan, not an estimate."""
    types = sorted({rank.device for rank in plan.ranks})
    waits = phases_that_wait(plan)
    changes: list[tuple[str, Basis]] = [(f"1 GiB more on each {name}", with_memory(plan, name, GIB)) for name in types]
    if plan.network != "ideal":
        changes.append(("a network twice as fast", with_faster_network(plan, 2.0)))
    changes += [(f"one more {name}", with_card(plan, name)) for name in types]
    slowest_s = {phase: max(_phase_s(rank, phase) for rank in plan.ranks) for phase in PHASES}
    return Explanation(
        bindings=tuple(_binding(plan, rank, waits, slowest_s) for rank in plan.ranks),
        gains=tuple(_gain(plan, change, basis) for change, basis in changes),
    )


def plan_choices(plan: Plan) -> list[RankChoice]:
    """What a plan decides, one a rank."""
    return [
        RankChoice(
            device=rank.device,
            microbatch_sizes=rank.microbatch_sizes,
            state_share=rank.state_share,
            recompute=rank.recompute,
            offload=rank.offload,
            recompute_blocks=rank.recompute_blocks,
        )
        for rank in plan.ranks
    ]


def phases_that_wait(plan: Plan) -> Sequence[str]:
    """Phases whose stages wait for collectives longer than for compute."""
    if plan.network == "ideal":
        return ()
    step = plan_stages(plan)
    if plan.schedule == "replicated":  # reductions hide behind the backward of the last microbatch, or they do not
        whole = step_estimate(plan, plan_choices(plan), step).stages[0]
        return ["backward"] if whole.network_end_s > whole.compute_s else ()
    waited = {"forward": 0.0, "backward": 0.0}
    for stage, estimate in zip(step.stages, step_estimate(plan, plan_choices(plan), step).stages, strict=True):
        phase = "forward" if stage.phase == "forward" else "backward"
        is_network = estimate.network_s > max(estimate.compute_s, estimate.copy_s)
        waited[phase] += estimate.seconds if is_network else -estimate.seconds
    return [phase for phase, seconds in waited.items() if seconds > 0]


def _sets_the_pace(plan: Plan, rank: RankPlan) -> bool:
    """Whether no rank passes more bytes of a collective, see the note on the busiest rank in `costmodel.network`."""
    shares = [other.state_share for other in plan.ranks]
    if plan.network != "ideal" and plan.network.algorithm == "direct":
        return rank.state_share >= NEAR * max(shares)
    return rank.state_share * NEAR <= min(shares)


def _phase_s(rank: RankPlan, phase: Phase) -> float:
    expected = rank.expected
    return {"forward": expected.forward_s, "backward": expected.backward_s, "optimizer": expected.optimizer_s}[phase]


def _binding(plan: Plan, rank: RankPlan, waits: Sequence[str], slowest_s: Mapping[Phase, float]) -> Binding:
    fraction = rank.memory.total_bytes / rank.memory.limit_bytes
    hidden = () if plan.schedule == "replicated" else waits  # its reductions begin after most of backward
    found: list[str] = [
        phase
        for phase, seconds in slowest_s.items()
        if phase not in hidden and seconds > 0 and _phase_s(rank, phase) >= NEAR * seconds
    ]
    if waits and _sets_the_pace(plan, rank):
        found.append("network")
    if fraction >= NEAR:
        found.append("memory")
    return Binding(rank=rank.rank, device=rank.device, constraints=tuple(found), memory_fraction=fraction)


def _gain(plan: Plan, change: str, basis: Basis) -> Gain:
    try:
        step_s = make_plan(basis, plan.global_batch_size, settings=plan.settings).expected.step_s
    except InfeasibleError:
        return Gain(change=change, step_s=None, speedup=None)
    return Gain(change=change, step_s=step_s, speedup=plan.expected.step_s / step_s if step_s > 0 else None)
