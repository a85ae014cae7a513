"""A step taken apart: kinds of stages, and classes of stages that are equal in everything.

Note: parts of the backward
    A rank that recomputes the first m of the blocks u = a..b of a part takes ``B + F`` in those and B in the others.
    Here every block of the part is given the average, ``B + m / (b - a + 1) * F``. The blocks of a part have equal
    network times, and the largest of several sums is at most the sum of the largest, so the step found is a lower
    bound; it is exact where no rank's number of recomputed blocks lies inside a part (`spend` cuts parts where that
    matters).
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.costmodel.memory import accumulation_bytes
from cephalo_cli.planner.network import Network
from cephalo_cli.schedule import Phase, Stage, StepStages
from cephalo_cli.units import DTYPE_BYTES

__all__ = ["BLOCK_FORWARD", "Exposed", "Kind", "StageClass", "list_kinds", "stage_classes"]


class Kind(NamedTuple):
    """A kind of stage k; of the backward of blocks only those from ``first`` to ``last``, counted from 1."""

    unit: UnitKind
    phase: Phase
    first: int = 0
    last: int = 0

    def part_again(self, num_recomputed: int) -> float:
        """Fraction of its blocks that a rank runs again which recomputes so many from the first block on."""
        if self.unit != "block" or self.phase != "backward":
            return 0.0
        return min(1.0, max(0, num_recomputed - self.first + 1) / (self.last - self.first + 1))


BLOCK_FORWARD = 1
"""Index of the forward of blocks among a problem's kinds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageClass:
    """Stages that are equal in everything."""

    kind: int
    """Index into the problem's kinds."""
    count: int
    """How often it occurs in a step (n_g)."""
    floor_s: float
    """Latencies of its collectives."""
    slope_s: float
    """Seconds of its collectives per unit of w, latencies left out."""
    moved_bytes: int
    """Bytes of its collectives (y_g)."""


class Exposed(NamedTuple):
    """The first gather and the last reduction, which no stage hides: ``floor_s + slope_s * w``."""

    floor_s: float
    slope_s: float


def list_kinds(step: StepStages, network: Network | None, cuts: Collection[int] | None) -> tuple[Kind, ...]:
    """List the kinds of stages, in the order in which a step meets them.

    Args:
        step: The stages of a layer-major step.
        network: Where there is one, the blocks of a part move the same bytes.
        cuts: Numbers of recomputed blocks that parts of the backward end with; None: the backward is one part.
    """
    last = sum(unit.kind == "block" for unit in step.units)
    parts = [(1, last)]
    if cuts is not None:
        moved = {
            stage.unit: (
                [step.units[unit].num_parameters for unit in stage.unshard],
                [step.units[unit].num_trained for unit in before],
            )
            for stage, before in _with_reductions(step)
            if stage.phase == "backward"
        }
        starts = [
            1,
            *(u for u in range(2, last + 1) if u - 1 in cuts or (network is not None and moved[u] != moved[u - 1])),
        ]
        parts = [(first, after - 1) for first, after in zip(starts, [*starts[1:], last + 1], strict=True)]
    return (
        Kind("embedding", "forward"),
        Kind("block", "forward"),
        Kind("head", "forward-backward"),
        *(Kind("block", "backward", *part) for part in reversed(parts)),
        Kind("embedding", "backward"),
    )


def stage_classes(
    step: StepStages, kinds: Sequence[Kind], network: Network | None, dtype: DType
) -> tuple[tuple[StageClass, ...], Exposed]:
    """Gather equal stages into classes; also what of the network is exposed.

    Args:
        step: The stages of a layer-major step.
        kinds: Its kinds.
        network: Whose collectives take time; None: they take none.
        dtype: The compute dtype, in which units are gathered.
    """
    gather_bytes, reduce_bytes = DTYPE_BYTES[dtype], accumulation_bytes(dtype)

    def moved(gathered: Sequence[int], reduced: Sequence[int]) -> tuple[list[int], list[int]]:
        return (
            [gather_bytes * step.units[unit].num_parameters for unit in gathered],
            [reduce_bytes * step.units[unit].num_trained for unit in reduced],
        )

    def affine(gathered: Sequence[int], reduced: Sequence[int]) -> tuple[float, float]:
        floor = slope = 0.0
        if network is not None:
            for fit, sizes in zip((network.gather, network.reduce), moved(gathered, reduced), strict=True):
                for unit_bytes in filter(None, sizes):
                    floor += fit.latency_s
                    slope += unit_bytes / fit.bandwidth_bytes_per_s
        return floor, slope

    counted = Counter(
        (
            _kind_of(step, kinds, stage),
            *affine(stage.unshard, before),
            sum(map(sum, moved(stage.unshard, before))),
        )
        for stage, before in _with_reductions(step)
    )
    classes = tuple(
        StageClass(kind=kind, count=count, floor_s=floor, slope_s=slope, moved_bytes=moved_bytes)
        for (kind, floor, slope, moved_bytes), count in counted.items()
    )
    first, last = affine(step.first, ()), affine((), step.stages[-1].reduce)
    return classes, Exposed(floor_s=first[0] + last[0], slope_s=first[1] + last[1])


def _with_reductions(step: StepStages) -> list[tuple[Stage, tuple[int, ...]]]:
    """Every stage with the units whose reduction runs in it: those complete after the stage before."""
    return list(zip(step.stages, [(), *(stage.reduce for stage in step.stages[:-1])], strict=True))


def _kind_of(step: StepStages, kinds: Sequence[Kind], stage: Stage) -> int:
    unit = step.units[stage.unit]
    return next(
        index
        for index, kind in enumerate(kinds)
        if (kind.unit, kind.phase) == (unit.kind, stage.phase)
        and (not kind.last or kind.first <= unit.index <= kind.last)
    )
