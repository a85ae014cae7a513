"""The answer in words: what a step is bound by, who does not fit, and why it differs from the closed form."""

from cephalo_cli.artifacts.plan import Plan
from cephalo_cli.artifacts.report import RankReport, Report
from cephalo_cli.costmodel.step import StepEstimate, step_estimate
from cephalo_cli.quantities import format_bytes, format_percent, format_seconds
from cephalo_cli.schedule import plan_stages
from cephalo_cli.simulator.parts import Disturbance, Setting, rank_choice, setting
from cephalo_cli.simulator.play import StepPlay, steady_step

__all__ = ["bottleneck", "closed_form_s", "difference", "shortfalls"]

TOLERANCE = 0.02
"""Relative distance from the closed form that needs no explanation."""
VISIBLE = 0.05
"""Part of a step from which on waiting may be what it is bound by."""
BALANCED = 0.05
"""Ranks whose compute is this close to the busiest one's are as busy."""


def bottleneck(report: Report, plan: Plan) -> str:
    """Name what the step is bound by, in one sentence, with the share of the step that it takes.

    Of ranks that compute most of the step and visibly wait for the network or for copies too, the closed form decides
    which it is: where compute runs in the shadow of collectives that take longer, faster devices would gain nothing.
    """
    step_s = report.step_s
    if step_s == 0:
        return "Nothing in the profile takes any time."
    critical = min(report.ranks, key=lambda rank: (round(_waits_for_others(rank) / step_s, 3), -rank.compute_s))
    gather, reduce = critical.exposed_gather_s or 0.0, critical.exposed_reduce_s or 0.0
    slowest = max(report.ranks, key=lambda rank: rank.optimizer_s or 0.0)
    parts = {
        "compute": (critical.forward_s or 0.0) + (critical.backward_s or 0.0),
        "network": gather + reduce - (critical.late_s or 0.0),
        "copy": critical.exposed_copy_s or 0.0,
        "optimizer": slowest.optimizer_s or 0.0,
    }
    most = max(parts, key=lambda part: parts[part])
    if most == "compute" and max(parts["network"], parts["copy"]) > VISIBLE * step_s:
        most = _estimate(plan).bound
    share = format_percent(parts[most] / step_s)
    if most == "compute":
        return _compute_bound(report, critical, share)
    if most == "copy":
        return f"Copies to and from host memory: {_who(critical)} waits for them {share} of the step."
    if most == "optimizer":
        return f"The optimizer: {_who(slowest)} spends {share} of the step in it."
    what = "parameters" if gather > reduce else "gradients"
    return f"The network: even {_who(critical)} waits for it {share} of the step, mostly for {what}."


def _waits_for_others(rank: RankReport) -> float:
    """Seconds in which a rank waits for nothing but slower ranks; the rank with the least sets the pace."""
    named = (rank.exposed_gather_s or 0.0) + (rank.exposed_reduce_s or 0.0) + (rank.exposed_copy_s or 0.0)
    return (rank.late_s or 0.0) + max(0.0, rank.wait_s - named)


def shortfalls(report: Report) -> tuple[str, ...]:
    """Say of every rank that would run out of memory where in the step it does and by how much."""
    return tuple(
        f"{_who(rank)} needs {format_bytes(rank.memory.total_bytes)} at {rank.peak_memory_at}, "
        f"{format_bytes(rank.memory.total_bytes - rank.memory.limit_bytes)} more than it may use"
        for rank in report.ranks
        if rank.memory is not None and rank.memory.total_bytes > rank.memory.limit_bytes
    )


def closed_form_s(plan: Plan) -> float:
    """Seconds of a step by the planner's closed form, worked out again from what the plan carries."""
    return _estimate(plan).step_s


def difference(ready: Setting, play: StepPlay) -> str | None:
    """Say why the played step and the closed form differ, if they do by more than 2 %.

    The same plan is played and estimated again without disturbances, without host copies and over an ideal network;
    what each changes in the played step beyond what it changes in the closed form is its part of the difference.
    """
    plan = ready.plan
    closed = closed_form_s(plan)
    if abs(play.step_s - closed) <= TOLERANCE * closed:
        return None
    no_copies = _with_devices(plan, "host_copy")
    ideal = no_copies.model_copy(update={"network": "ideal"})
    played = [_played(each) for each in (plan, no_copies, ideal)]
    estimated = [closed, closed_form_s(no_copies), closed_form_s(ideal)]
    alone_s = played[0] - _played(_with_devices(plan, "collective_alone_part"))
    sums_s, networked_s = ready.sums_s, played[1] - played[2] - (estimated[1] - estimated[2])
    reasons = {
        "the slow or noisy ranks that were asked for": play.step_s - played[0],
        "copies to and from host memory that nothing hides": played[0] - played[1] - (estimated[0] - estimated[1]),
        "collectives that run past the end of a stage": networked_s - sums_s - alone_s,
        "ranks without samples, which move bytes for less": alone_s,
        "the sums over ranks of tokens, loss and gradient norm": sums_s,
        "ranks that need not meet after every stage": played[2] - estimated[2],
    }
    told = [
        f"{reason} ({'+' if seconds > 0 else '-'}{format_seconds(abs(seconds))})"
        for reason, seconds in sorted(reasons.items(), key=lambda each: -abs(each[1]))
        if abs(seconds) > TOLERANCE / 4 * closed
    ]
    off = (play.step_s - closed) / closed
    word = "longer" if off > 0 else "shorter"
    return f"The step is {format_percent(abs(off))} {word} than the plan expects, because of {'; '.join(told)}."


def _estimate(plan: Plan) -> StepEstimate:
    choices = [rank_choice(plan, rank) for rank in range(len(plan.ranks))]
    return step_estimate(plan, choices, plan_stages(plan))


def _compute_bound(report: Report, critical: RankReport, share: str) -> str:
    busy = [rank for rank in report.ranks if rank.compute_s >= (1 - BALANCED) * critical.compute_s]
    if len(busy) == len(report.ranks):
        many = "its only rank computes" if len(busy) == 1 else "all ranks are equally busy and compute"
        return f"Compute: {many} {share} of the step."
    if len(busy) == 1:
        return f"Compute of {_who(critical)}: {share} of the step, and the other ranks wait for it."
    return (
        f"Compute of {len(busy)} of {len(report.ranks)} ranks, such as {_who(critical)}: {share} of the step, "
        "and the other ranks wait for them."
    )


def _who(rank: RankReport) -> str:
    return f"rank {rank.rank} ({rank.device} on {rank.node})"


def _with_devices(plan: Plan, without: str) -> Plan:
    """Give the plan with one field of every device left out."""
    devices = {name: each.model_copy(update={without: None}) for name, each in plan.devices.items()}
    return plan.model_copy(update={"devices": devices})


def _played(plan: Plan) -> float:
    play, _ = steady_step(setting(plan, Disturbance()))
    return play.step_s
