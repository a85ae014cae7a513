"""A second account of a plan: every number of its ranks and its step, from the plan's own content and nothing else.

Written apart from the cost model and the search on purpose, so that a mistake in one of them shows. Only the contracts
(artifacts, units, schedule) are shared. `recount_memory` counts bytes, `recount_time` seconds; here is what both read.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from cephalo_cli.artifacts.plan import Plan, RankPlan

__all__ = ["by_rank", "value_at"]

Account = TypeVar("Account")


def by_rank(plan: Plan, account: Callable[[RankPlan], Account]) -> list[Account]:
    """One account a rank; ranks that do the same share the first one's, so that large clusters are counted quickly."""
    known: dict[tuple[str, tuple[int, ...], float, int, bool], Account] = {}
    accounts = []
    for rank in plan.ranks:
        num_again = rank.num_recomputed(plan.model.num_layers)
        does = (rank.device, rank.microbatch_sizes, rank.state_share, num_again, rank.offload)
        if does not in known:
            known[does] = account(rank)
        accounts.append(known[does])
    return accounts


def value_at(points: Sequence[int], values: Sequence[float], size: int) -> float:
    """Read a measured curve: flat before the first point, straight between points, on with the last points' slope.

    Where those fall, or there is one point only, it goes on in proportion to the size.

    Args:
        points: Microbatch sizes that were measured, increasing.
        values: What was measured at them.
        size: Where to read; 0 samples cost nothing.
    """
    if size <= 0:
        return 0.0
    if size <= points[0]:
        return max(0.0, float(values[0]))
    for (x0, y0), (x1, y1) in zip(
        zip(points, values, strict=True), zip(points[1:], values[1:], strict=True), strict=False
    ):
        if size <= x1:
            part = (size - x0) / (x1 - x0)
            return max(0.0, y0 * (1.0 - part) + y1 * part)
    start = max(0, len(points) - 5)
    if len(points) == 1 or values[-1] < values[start]:
        return max(0.0, values[-1] * size / points[-1])
    slope = (values[-1] - values[start]) / (points[-1] - points[start])
    return max(0.0, values[-1] + (size - points[-1]) * slope)
