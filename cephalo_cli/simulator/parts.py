"""What one rank brings to a step: its program, and the seconds of each of its actions.

Ranks with the same device, microbatches, share, switches and slowness are played once and reported one by one.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cephalo_cli.artifacts.plan import Plan
from cephalo_cli.artifacts.profile import DeviceProfile
from cephalo_cli.costmodel.compute import RankChoice, moving_s_per_byte, optimizer_s, stage_s
from cephalo_cli.costmodel.step import CollectiveTimes, collective_times
from cephalo_cli.schedule import Op, Phase, StepStages, plan_stages
from cephalo_cli.simulator.program import Collective, Compute, Copy, Optimize, Program, Switches, programs
from cephalo_cli.units import boundary_bytes

__all__ = ["Disturbance", "Part", "Setting", "rank_choice", "setting"]


STALL_IN_COMPUTE = 0.5
"""Part of a stall that falls into compute, which takes longer by it; the rest are waits. A rehearsal cannot tell them
apart: for 30 ranks of emulated clusters, bound by compute or by communication, it was 0.47 in the median, and half of
them lay between 0.39 and 0.72."""


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What makes a step slower than the profile says."""

    jitter_sigma: float = 0.0
    """Standard deviation of the logarithm of every compute action's factor (its mean is 1); 0 for none."""
    seed: int = 0
    """Seed of the jitter."""
    stragglers: Mapping[int, float] = field(default_factory=dict)
    """Factor by which a rank computes more slowly, such as ``{3: 1.3}``."""


@dataclass(kw_only=True)
class Part:
    """One group of identical ranks."""

    ranks: tuple[int, ...]
    choice: RankChoice
    device: DeviceProfile
    program: Program
    seconds: tuple[float, ...]
    """Seconds of each action: of compute, copies and the optimizer; 0 for the others."""
    forward: tuple[float, ...]
    """Fraction of each action's seconds that is forward (recomputed forwards count as backward)."""
    moving_s: tuple[float, ...]
    """Seconds of the compute lane that moving each collective's bytes takes (cpu devices)."""
    issue_s: tuple[float, ...]
    """Seconds this rank takes to issue each collective, in which it does not compute (cpu devices)."""
    stall_s: tuple[float, ...]
    """Seconds this rank waits for each collective that runs already (cpu devices)."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that does not change from step to step."""

    plan: Plan
    step: StepStages
    times: CollectiveTimes
    collectives: tuple[Collective, ...]
    collective_s: tuple[float, ...]
    """Seconds of each collective of a step."""
    parts: tuple[Part, ...]
    sums_s: float
    """Seconds of the step's small sums over ranks: its tokens, and its loss and gradient norm."""
    disturbance: Disturbance


def rank_choice(plan: Plan, rank: int) -> RankChoice:
    """Read what a plan decides for one rank."""
    chosen = plan.ranks[rank]
    return RankChoice(
        device=chosen.device,
        microbatch_sizes=chosen.microbatch_sizes,
        state_share=chosen.state_share,
        recompute=chosen.recompute,
        offload=chosen.offload,
        recompute_blocks=chosen.recompute_blocks,
    )


def setting(plan: Plan, disturbance: Disturbance) -> Setting:
    """Group a plan's ranks and work out the seconds of everything they do."""
    step = plan_stages(plan)
    choices = [rank_choice(plan, rank) for rank in range(len(plan.ranks))]
    times = collective_times(plan, step, [choice.state_share for choice in choices])
    folded = programs(step, [_switches(choice) for choice in choices])
    collectives = next(iter(folded.values())).collectives
    groups: dict[tuple[object, ...], list[int]] = {}
    for rank, choice in enumerate(choices):
        alone = rank if disturbance.jitter_sigma else None
        groups.setdefault((choice, disturbance.stragglers.get(rank, 1.0), alone), []).append(rank)
    parts = []
    for ranks in groups.values():
        choice = choices[ranks[0]]
        program = folded[_switches(choice)]
        slowness = disturbance.stragglers.get(ranks[0], 1.0)
        parts.append(_part(plan, step, times, choice=choice, program=program, ranks=ranks, slowness=slowness))
    return Setting(
        plan=plan,
        step=step,
        times=times,
        collectives=collectives,
        collective_s=tuple(_collective_s(times, each, parts) for each in collectives),
        parts=tuple(parts),
        sums_s=0.0 if plan.network == "ideal" or len(choices) == 1 else 2 * (plan.network.small_sum_s or 0.0),
        disturbance=disturbance,
    )


def _switches(choice: RankChoice) -> Switches:
    return Switches(len(choice.microbatch_sizes), choice.recompute, choice.recompute_blocks, choice.offload)


def jitter(part: Part, disturbance: Disturbance, step: int) -> list[float]:
    """Draw a factor for each of a rank's actions in one step; the same seed, rank and step give the same factors."""
    sigma = disturbance.jitter_sigma
    draw = random.Random(f"{disturbance.seed}/{step}/{part.ranks[0]}").gauss  # noqa: S311  (no secret)
    return [math.exp(sigma * draw(0.0, 1.0) - sigma * sigma / 2) for _ in part.seconds]


def _part(
    plan: Plan,
    step: StepStages,
    times: CollectiveTimes,
    *,
    choice: RankChoice,
    program: Program,
    ranks: list[int],
    slowness: float,
) -> Part:
    device = plan.devices[choice.device]
    known: dict[tuple[object, ...], tuple[float, float]] = {}
    seconds, forward = [], []
    for action in program.actions:
        one, fraction = 0.0, 0.0
        if isinstance(action, Compute):
            key = (step.units[action.unit].kind, action.phase, action.records)
            if key not in known:
                known[key] = _compute_s(device, step, choice, action)
            one, fraction = known[key]
            one *= slowness
        elif isinstance(action, Copy):
            one = _copy_s(plan, device, choice, action)
        elif isinstance(action, Optimize):
            one = optimizer_s(plan, choice) * slowness
        seconds.append(one)
        forward.append(fraction)
    moving = [_moving_s(plan, choice, times, each) for each in program.collectives]
    issue_part, stall_part = device.collective_issue_part or 0.0, device.collective_stall_part or 0.0
    if step.name == "replicated":
        # The profile's part is of direct sends. An all-reduce adds up in threads of its own, while compute goes on.
        stall_part = 0.0
    stall_part *= 1.0 - STALL_IN_COMPUTE
    return Part(
        ranks=tuple(ranks),
        choice=choice,
        device=device,
        program=program,
        seconds=tuple(seconds),
        forward=tuple(forward),
        moving_s=tuple(max(0.0, 1.0 - issue_part - stall_part) * each for each in moving),
        issue_s=tuple(issue_part * each for each in moving),
        stall_s=tuple(stall_part * each for each in moving),
    )


def record_s(device: DeviceProfile, step: StepStages, unit: int, op: Op, size: int) -> float:
    """Seconds of one compute record on a microbatch of ``size`` samples."""
    phase: Phase = "backward" if op is Op.BACKWARD else "forward"
    return stage_s(device, step.units[unit].kind, phase, (size,), recompute=False)


def _compute_s(device: DeviceProfile, step: StepStages, choice: RankChoice, action: Compute) -> tuple[float, float]:
    """Seconds of a run of compute records, and the fraction of them that is forward."""
    forward = total = 0.0
    for op, microbatch in action.records:
        seconds = record_s(device, step, action.unit, op, choice.microbatch_sizes[microbatch])
        total += seconds
        forward += seconds if op is Op.FORWARD else 0.0
    return total, forward / total if total else 0.0


def _copy_s(plan: Plan, device: DeviceProfile, choice: RankChoice, action: Copy) -> float:
    host = device.host_copy
    if host is None:
        return 0.0
    num_bytes = boundary_bytes(plan.model, plan.seq_len, plan.dtype, choice.microbatch_sizes[action.boundary[1]])
    return host.latency_s + num_bytes / (host.to_host_bytes_per_s if action.to_host else host.to_device_bytes_per_s)


def _collective_s(times: CollectiveTimes, collective: Collective, parts: Sequence[Part]) -> float:
    """Seconds of a collective; no shorter than what any rank spends on it from then on."""
    seconds = (times.gather_s if collective.is_gather else times.reduce_s)[collective.unit]
    index = collective.index
    return max([seconds, *(part.moving_s[index] + part.stall_s[index] for part in parts)])


def _moving_s(plan: Plan, choice: RankChoice, times: CollectiveTimes, collective: Collective) -> float:
    """Seconds of moving one collective's bytes; a rank without samples is never busy, and spends less."""
    num_bytes = (times.gather_bytes if collective.is_gather else times.reduce_bytes)[collective.unit]
    seconds = moving_s_per_byte(plan, choice, len(plan.ranks), plan.schedule) * num_bytes
    alone = plan.devices[choice.device].collective_alone_part
    return seconds if choice.microbatch_sizes or alone is None else alone * seconds
