"""State shares for fixed microbatches: the best limits in closed form, then the fairest shares within them.

With every rank's option fixed, and shares not acting on compute, the rest is a linear program in the shares s_j, the
busiest fraction w and the optimizer limit O (N_j equal ranks a line, M_j what fits, T_k the stages' compute):

    minimise  A(w) + O,   A(w) = exposed(w) + sum_g n_g * max(floor_g + slope_g * w, T_k(g))
    s_j <= M_j,  rho_j s_j <= O,  1 - w <= s_j,  (n - 1) s_j <= w (direct),  sum_j N_j s_j = 1

For a given w the least O is a level: ``sum_j N_j min(M_j, w / (n - 1), O / rho_j) = 1``. It is piecewise linear and
convex in w, with kinks only where two of the three terms are equal for some j, so evaluating all kinks finds the
optimum exactly.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cephalo_cli.planner.network import Network
from cephalo_cli.planner.problem import Problem

__all__ = ["ROUNDING", "Holder", "ShareLimits", "best_limits", "fair_shares", "fixed_seconds"]

ROUNDING = 1e-12
"""How far sums of shares may miss 1 through rounding."""
DUST = 1e-10
"""A share below this is no share: less than an element of ten billion, and no step is known as precisely."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Equal ranks with equal options."""

    count: int
    cap: float
    """Largest share that fits (M_j)."""
    optimizer_s: float
    """Optimizer step on the whole state (rho_j)."""


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """Limits on shares and the time they lead to."""

    step_s: float
    busiest: float
    """Busiest fraction w."""
    optimizer_s: float
    """Optimizer limit O."""
    stages_s: tuple[float, ...] = ()
    """T_g by class of stages, where shares act on compute."""


def fixed_seconds(problem: Problem, kinds_s: Sequence[float], busiest: float) -> float:
    """A(w): all of the step but the optimizer.

    Args:
        problem: The problem.
        kinds_s: Compute of one stage by kind.
        busiest: w.
    """
    total = problem.exposed.floor_s + problem.exposed.slope_s * busiest
    for stage in problem.stages:
        total += stage.count * max(stage.floor_s + stage.slope_s * busiest, kinds_s[stage.kind])
    return total


def best_limits(problem: Problem, kinds_s: Sequence[float], holders: Sequence[Holder]) -> ShareLimits | None:
    """Minimise the step over the shares; None where the state does not fit.

    Args:
        problem: The problem.
        kinds_s: Compute of one stage by kind, on the slowest rank.
        holders: All ranks.
    """
    if (
        min(holder.cap for holder in holders) < 0
        or sum(holder.count * holder.cap for holder in holders) < 1.0 - ROUNDING
    ):
        return None
    network = problem.network
    if network is None:
        optimizer = _level([(holder.count, holder.cap, _rate(holder)) for holder in holders])
        return ShareLimits(fixed_seconds(problem, kinds_s, 0.0) + optimizer, 0.0, optimizer)
    spread = network.num_ranks - 1.0
    slowest = max(holder.optimizer_s for holder in holders)

    def level(busiest: float) -> float:
        clip = busiest / spread if network.direct else math.inf
        return _level([(holder.count, min(holder.cap, clip), _rate(holder)) for holder in holders])

    points = _kinks(problem, network, kinds_s, holders)
    levels = [level(point) for point in points]
    # Every rank stores 1 - w or more, which takes the slowest its time: O is no less. This line may cross the level.
    heights = [above - slowest * (1.0 - point) for above, point in zip(levels, points, strict=True)]
    crossings = [
        left + (right - left) * before / (before - after)
        for left, right, before, after in zip(points, points[1:], heights, heights[1:], strict=False)
        if before * after < 0
    ]
    best: ShareLimits | None = None
    for point, above in [*zip(points, levels, strict=True), *((point, level(point)) for point in crossings)]:
        optimizer = max(above, slowest * (1.0 - point))
        step = fixed_seconds(problem, kinds_s, point) + optimizer
        if best is None or step < best.step_s:
            best = ShareLimits(step, point, optimizer)
    return best


def _kinks(problem: Problem, network: Network, kinds_s: Sequence[float], holders: Sequence[Holder]) -> list[float]:
    """Ends of the range of w, and every w between them at which the slope of A or of the level may change."""
    spread = network.num_ranks - 1.0
    least = max(network.least_busiest, 1.0 - min(holder.cap for holder in holders))
    if network.direct:
        least = max(least, spread * _level([(holder.count, holder.cap, 1.0) for holder in holders]))
    most = max(network.most_busiest, least)
    kinks = [(kinds_s[stage.kind] - stage.floor_s) / stage.slope_s for stage in problem.stages if stage.slope_s > 0]
    if network.direct:
        kinks += [spread * holder.cap for holder in holders]
        kinks += [_horizontal(holders, holder.optimizer_s * holder.cap, spread) for holder in holders]
        kinks += [_ray(holders, holder.optimizer_s, spread) for holder in holders]
    return sorted({kink for kink in kinks if least <= kink <= most} | {least, most})


def fair_shares(
    lows: Sequence[float], highs: Sequence[float], free: Sequence[float], sizes: Sequence[float]
) -> list[float]:
    """Shares between bounds that sum to 1 and leave the same fraction of every memory empty, as far as bounds allow.

    Args:
        lows: Least share of each rank.
        highs: Largest share of each rank; they sum to 1 or more (up to rounding).
        free: Share that would fill each rank's memory.
        sizes: Each rank's memory limit, in shares.
    """

    def shares(empty: float) -> list[float]:
        return [min(max(f - empty * s, lo), hi) for f, s, lo, hi in zip(free, sizes, lows, highs, strict=True)]

    full, bare = -1.0 / min(sizes), 1.0
    for _ in range(200):
        middle = (full + bare) / 2
        if middle in (full, bare):
            break
        if math.fsum(shares(middle)) >= 1.0:
            full = middle
        else:
            bare = middle
    return _without_dust(_to_one(shares(full), lows, highs), free)


def _without_dust(shares: list[float], free: Sequence[float]) -> list[float]:
    """Give what rounding left on a rank, less than an element, to ranks that hold more and have memory for it."""
    kept = [share if share >= DUST else 0.0 for share in shares]
    dust = math.fsum(shares) - math.fsum(kept)
    room = [max(0.0, most - share) if share else 0.0 for share, most in zip(kept, free, strict=True)]
    if dust == 0.0 or math.fsum(room) < dust:
        return shares
    return _to_one(kept, kept, [share + space for share, space in zip(kept, room, strict=True)])


def _to_one(shares: list[float], lows: Sequence[float], highs: Sequence[float]) -> list[float]:
    """Spread the rest that rounding left over the ranks that have room."""
    rest = 1.0 - math.fsum(shares)
    room = [(high - share) if rest > 0 else (share - low) for share, low, high in zip(shares, lows, highs, strict=True)]
    total = math.fsum(room)
    if total > 0:
        part = min(1.0, abs(rest) / total)
        shares = [share + math.copysign(part * space, rest) for share, space in zip(shares, room, strict=True)]
    return shares


def _rate(holder: Holder) -> float:
    """Share per second of optimizer limit."""
    return 1.0 / holder.optimizer_s if holder.optimizer_s > 0 else math.inf


def _level(terms: Sequence[tuple[int, float, float]]) -> float:
    """Smallest x with ``sum count * min(cap, rate * x) >= 1``; infinity where there is none."""
    missing = 1.0
    corners = []
    for count, cap, rate in terms:
        if rate == math.inf:
            missing -= count * cap
        elif cap > 0 and rate > 0:
            corners.append((cap / rate, count * rate, count * cap))
    if missing <= ROUNDING:
        return 0.0
    corners.sort()
    slopes = list(itertools.accumulate(rate for _, rate, _ in reversed(corners)))[::-1]
    for (corner, _, most), slope in zip(corners, slopes, strict=True):
        if missing <= slope * corner:
            return missing / slope
        missing -= most
    return corners[-1][0] if corners and missing <= ROUNDING else math.inf


def _horizontal(holders: Sequence[Holder], optimizer_s: float, spread: float) -> float:
    """Find the w at which the state just fits under an optimizer limit."""
    terms = [
        (
            holder.count,
            holder.cap if holder.optimizer_s == 0 else min(holder.cap, optimizer_s / holder.optimizer_s),
            1.0,
        )
        for holder in holders
    ]
    return spread * _level(terms)


def _ray(holders: Sequence[Holder], optimizer_s: float, spread: float) -> float:
    """Find the w at which the state just fits when the optimizer limit is ``optimizer_s * w / (n - 1)``."""
    terms = [
        (holder.count, holder.cap, 1.0 if holder.optimizer_s <= optimizer_s else optimizer_s / holder.optimizer_s)
        for holder in holders
    ]
    return spread * _level(terms)
