"""State shares for chosen microbatches: within what limits on time leave, memories filled evenly."""

from collections.abc import Sequence
from dataclasses import replace

from cephalo_cli.costmodel import RankChoice
from cephalo_cli.planner.groups import DeviceGroup
from cephalo_cli.planner.options import BELOW
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.shares import ShareLimits, fair_shares
from cephalo_cli.planner.sizes import kind_seconds

__all__ = ["place_shares"]


def place_shares(problem: Problem, choices: Sequence[RankChoice], limits: ShareLimits) -> tuple[RankChoice, ...]:
    """Give every rank its share: as the limits allow, memories filled evenly."""
    lows, highs, free, sizes = [], [], [], []
    groups = {group.name: group for group in problem.groups}
    cache: dict[RankChoice, tuple[float, float, float, float]] = {}
    for choice in choices:
        if choice not in cache:
            cache[choice] = _share_bounds(problem, groups[choice.device], choice, limits)
        low, high, room, size = cache[choice]
        lows.append(low)
        highs.append(high)
        free.append(room)
        sizes.append(size)
    shares = fair_shares(lows, highs, free, sizes)
    return tuple(replace(choice, state_share=share) for choice, share in zip(choices, shares, strict=True))


def _share_bounds(
    problem: Problem, group: DeviceGroup, choice: RankChoice, limits: ShareLimits
) -> tuple[float, float, float, float]:
    """Least and largest share, the share that would fill the memory, and the memory limit in shares."""
    memory = problem.memory(choice)
    free = (memory.limit_bytes - memory.total_bytes) / problem.state_bytes * BELOW
    low, high = 0.0, min(1.0, free, group.startup_share)
    network = problem.network
    if network is not None:
        low = max(0.0, 1.0 - limits.busiest)
        if network.direct:
            high = min(high, limits.busiest / (network.num_ranks - 1))
    if group.optimizer_s > 0:
        high = min(high, limits.optimizer_s / group.optimizer_s)
    if network is not None and group.moving_s_per_byte > 0:
        constant, slope = network.handled
        num_again = choice.num_recomputed(problem.basis.model.num_layers)
        own_s = kind_seconds(problem, group.device, choice.microbatch_sizes, num_again)
        for stage, seconds in zip(problem.stages, limits.stages_s, strict=True):
            own = own_s[stage.kind]
            if stage.moved_bytes and slope:
                reach = ((seconds - own) / (group.moving_s_per_byte * stage.moved_bytes) - constant) / slope
                low, high = (low, min(high, reach)) if slope > 0 else (max(low, reach), high)
    high = max(0.0, high)  # a rank that sets a stage's limit reaches it up to rounding
    return min(low, high), high, free, memory.limit_bytes / problem.state_bytes
