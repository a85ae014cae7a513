"""The planning problem in numbers: what the search needs from a profile, and nothing else.

Symbols (used throughout the planner)

    n            number of ranks; device types d have N_d ranks each
    b, s         samples of a rank; size of one microbatch
    k            kind of stage: embedding forward, block forward, head, block backward (in parts where ranks may
                 recompute some blocks), embedding backward
    g            class of stages that are equal in everything: kind k(g), times it occurs n_g, network time
                 ``floor_g + slope_g * w`` with w the busiest fraction of `costmodel.network`, bytes moved y_g
    T_g          time of one stage of the class; ``T_g >= network``, ``T_g >= t_k(x)`` for every rank's option x
    x            an option: a multiset of microbatch sizes with a mode: how many blocks recompute, and offload
    M(x)         largest state share that fits beside the option
    O, rho_d     optimizer limit; seconds of a device's optimizer step if it held the whole state

    step = exposed(w) + sum_g n_g * T_g + O

`costmodel.step_estimate` stays the objective: every plan is priced by it at the end; this module only takes it apart.

Note: parts of the backward
    A rank that recomputes the first m of the blocks u = a..b of a part takes ``B + F`` in those and B in the others.
    Here every block of the part is given the average, ``B + m / (b - a + 1) * F``. The blocks of a part have equal
    network times, and the largest of several sums is at most the sum of the largest, so the step found is a lower
    bound; it is exact where no rank's number of recomputed blocks lies inside a part (`spend` cuts parts where that
    matters).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.profile import Basis, DeviceProfile, UnitKind
from cephalo_cli.costmodel.compute import RankChoice, optimizer_s
from cephalo_cli.costmodel.memory import accumulation_bytes, limit_bytes, planned_state_bytes, weights_bytes
from cephalo_cli.errors import UsageError
from cephalo_cli.planner.sane import refuse_absurd
from cephalo_cli.schedule import Phase, Stage, StepStages, step_stages
from cephalo_cli.units import DTYPE_BYTES, model_units

__all__ = [
    "BLOCK_FORWARD",
    "DeviceGroup",
    "Kind",
    "Mode",
    "Network",
    "Problem",
    "Space",
    "StageClass",
    "make_problem",
    "partial_counts",
    "startup_bytes",
]


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
class Space:
    """Which plans a problem is about, beyond those of a rank that recomputes all blocks or none."""

    keep_unsharded: int = 0
    """How many blocks before the last one stay unsharded between their phases."""
    charged: int | None = None
    """For how many of them memory is charged: fewer give a bound on all numbers in between; all when absent."""
    partial: bool = False
    """Whether ranks may recompute some of the blocks."""
    stride: int = 1
    """Distance between the numbers of recomputed blocks that are considered, from all but one downwards."""
    cuts: tuple[int, ...] = ()
    """Numbers of recomputed blocks that are priced exactly, see the note on parts."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """How shares act on collectives; only for two ranks or more on a network that is not ideal."""

    direct: bool
    """Whether every rank sends its shard to every other (else a ring)."""
    num_ranks: int

    @property
    def least_busiest(self) -> float:
        """The smallest w: equal shares."""
        return 1.0 - 1.0 / self.num_ranks

    @property
    def handled(self) -> tuple[float, float]:
        """Constant and slope of `handled_fraction` in the share."""
        return (1.0, self.num_ranks - 1.0) if self.direct else (2.0, -2.0)


@dataclass(frozen=True, slots=True)
class Mode:
    """How a rank treats activations."""

    recompute: bool
    offload: bool
    recompute_blocks: int | None = None
    """How many blocks recompute, where not all do."""

    def choice(self, device: str, sizes: tuple[int, ...], share: float) -> RankChoice:
        """What a rank decides that runs in this mode."""
        return RankChoice(
            device=device,
            microbatch_sizes=sizes,
            state_share=share,
            recompute=self.recompute,
            offload=self.offload,
            recompute_blocks=self.recompute_blocks,
        )


@dataclass(frozen=True, kw_only=True)
class DeviceGroup:
    """Equal devices."""

    name: str
    device: DeviceProfile
    ranks: tuple[int, ...]
    modes: tuple[Mode, ...]
    """What the settings and the device allow, the fastest first."""
    families: tuple[tuple[int, ...], ...]
    """Modes that differ only in how many blocks recompute, but not all: what a microbatch costs is linear in that."""
    optimizer_s: float
    """Optimizer step on the whole state (rho_d)."""
    moving_s_per_byte: float
    """Compute that handling one byte of a collective costs."""
    limit_bytes: int
    reserve_bytes: int
    startup_share: float
    """Largest share with which it can start: shard of the weights, one whole unit and the reserve."""

    @property
    def count(self) -> int:
        """Number of ranks N_d."""
        return len(self.ranks)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A layer-major planning problem."""

    basis: Basis
    settings: PlanSettings
    batch_size: int
    space: Space
    step: StepStages
    """Whose time counts."""
    memory_step: StepStages
    """Whose memory counts: the same step, or one that keeps fewer blocks unsharded."""
    kinds: tuple[Kind, ...]
    """Kinds of stages k, in the order in which a step meets them."""
    groups: tuple[DeviceGroup, ...]
    stages: tuple[StageClass, ...]
    exposed_floor_s: float
    exposed_slope_s: float
    network: Network | None
    """None where shares do not act on time through collectives."""
    state_bytes: int
    tables: dict[tuple[object, ...], Any] = field(default_factory=dict, compare=False, repr=False)
    """What has been tabulated for it so far (`sizes`), so that every strategy shares it."""

    @cached_property
    def num_ranks(self) -> int:
        """Number of ranks n."""
        return len(self.basis.cluster.ranks)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How often each kind of stage occurs."""
        return tuple(sum(stage.count for stage in self.stages if stage.kind == kind) for kind in range(len(self.kinds)))

    @property
    def moves(self) -> bool:
        """Whether a rank's share acts on its compute."""
        return any(group.moving_s_per_byte > 0 for group in self.groups)


def make_problem(
    basis: Basis,
    settings: PlanSettings,
    batch_size: int,
    space: Space | None = None,
    groups: tuple[DeviceGroup, ...] | None = None,
) -> Problem:
    """Take a profile apart into the numbers of the search.

    Args:
        basis: Curves, model, cluster and network.
        settings: Limits and switches.
        batch_size: Samples of a step.
        space: Which plans; when absent those whose ranks recompute all blocks or none, and that keep as many blocks
            unsharded as the settings say, none where they say auto.
        groups: Device groups of another problem whose ranks may recompute as many blocks; found anew when absent.

    Raises:
        UsageError: The settings ask for something a device type or the model cannot do.
        ArtifactError: The profile has a number that no hardware has.
    """
    refuse_absurd(basis)
    num_layers = basis.model.num_layers
    asked = settings.keep_unsharded if isinstance(settings.keep_unsharded, int) else 0
    if asked >= num_layers:
        raise UsageError(
            f"{asked} blocks cannot stay unsharded beside the last one: the model has {num_layers}",
            where="--keep-unsharded",
            hint=f"at most {num_layers - 1}",
        )
    if settings.optimizer_in_backward and basis.dtype == "float16":
        raise UsageError(
            "in float16 a step whose scaled gradient overflows is left out, so all gradients come before any update",
            where="--optimizer-in-backward",
            hint="profile in bfloat16 or float32",
        )
    if space is None:
        space = Space(keep_unsharded=asked)
    charged = space.keep_unsharded if space.charged is None else space.charged
    units = model_units(basis.model)
    step = step_stages("layer-major", units, keep_unsharded=space.keep_unsharded)
    kinds = _kinds(basis, step, space)
    stages, first, last = _stage_classes(basis, step, kinds)
    num_ranks = len(basis.cluster.ranks)
    network = None
    if basis.network != "ideal" and num_ranks > 1:
        network = Network(direct=basis.network.algorithm == "direct", num_ranks=num_ranks)
    return Problem(
        basis=basis,
        settings=settings,
        batch_size=batch_size,
        space=space,
        step=step,
        memory_step=step_stages("layer-major", units, keep_unsharded=charged),
        kinds=kinds,
        groups=groups or device_groups(basis, settings, stride=space.stride if space.partial else None),
        stages=stages,
        exposed_floor_s=first[0] + last[0],
        exposed_slope_s=first[1] + last[1],
        network=network,
        state_bytes=planned_state_bytes(basis, settings, step=step, num_ranks=num_ranks),
    )


def device_groups(basis: Basis, settings: PlanSettings, *, stride: int | None) -> tuple[DeviceGroup, ...]:
    """Group the ranks by device type, in the order of their first rank.

    Raises:
        UsageError: The settings ask for something a device type cannot do.
    """
    ranks: dict[str, list[int]] = {}
    for place in basis.cluster.ranks:
        ranks.setdefault(place.device, []).append(place.rank)
    moving = basis.network != "ideal" and len(basis.cluster.ranks) > 1
    weight_bytes = accumulation_bytes(basis.dtype)
    groups = []
    for name, members in ranks.items():
        device = basis.devices[name]
        whole = RankChoice(device=name, microbatch_sizes=(), state_share=1.0, recompute=True, offload=False)
        limit = limit_bytes(basis, name, settings)
        reserve = device.reserve_bytes if settings.reserve_bytes is None else settings.reserve_bytes
        room = limit - reserve - startup_bytes(basis, 0.0) - weight_bytes
        modes = _modes(basis, settings, name, stride=stride)
        groups.append(
            DeviceGroup(
                name=name,
                device=device,
                ranks=tuple(members),
                modes=modes,
                families=_families(modes),
                optimizer_s=optimizer_s(basis, whole),
                moving_s_per_byte=device.collective_compute_s_per_byte if moving else 0.0,
                limit_bytes=limit,
                reserve_bytes=reserve,
                startup_share=room / weights_bytes(basis),
            )
        )
    return tuple(groups)


def startup_bytes(basis: Basis, share: float) -> int:
    """Bytes while weights are made unit by unit: the shard of the weights and one whole unit."""
    largest = max(unit.num_parameters for unit in model_units(basis.model))
    return math.ceil(share * weights_bytes(basis)) + accumulation_bytes(basis.dtype) * largest


def partial_counts(basis: Basis, settings: PlanSettings, name: str) -> range:
    """How many blocks a device type may recompute beside none and all."""
    block = basis.devices[name].units.get("block")
    keeps = block is None or block.saved_bytes is not None
    allowed = keeps and settings.recompute == "blocks" and settings.offload != "on"
    return range(1, basis.model.num_layers if allowed else 1)


def _modes(basis: Basis, settings: PlanSettings, name: str, *, stride: int | None) -> tuple[Mode, ...]:
    block = basis.devices[name].units.get("block")
    keeps = block is None or block.saved_bytes is not None
    copies = basis.cluster.device_types[name].backend != "cpu"
    if settings.recompute == "off" and settings.offload == "on":
        raise UsageError(
            "offload needs recompute: only boundary activations are moved to host memory",
            where="--offload on",
            hint="leave out --recompute off",
        )
    if settings.recompute == "off" and not keeps:
        raise UsageError(
            f"the profile does not say what {name} keeps without recompute (no saved_bytes for blocks)",
            where="--recompute off",
            hint="use --recompute on, or measure a profile",
        )
    if settings.offload == "on" and not copies:
        raise UsageError(
            f"{name} has the cpu backend: its memory is host memory, so there is nowhere to offload to",
            where="--offload on",
            hint="use --offload off",
        )
    counts = () if stride is None else partial_counts(basis, settings, name)[::-1][::stride][::-1]
    some = [Mode(True, False, count) for count in counts]
    every = (Mode(False, False), *some, Mode(True, False), Mode(True, True))
    return tuple(
        mode
        for mode in every
        if (settings.recompute in ("auto", "blocks") or mode.recompute == (settings.recompute == "on"))
        and (settings.offload == "auto" or mode.offload == (settings.offload == "on"))
        and (mode.recompute or keeps)
        and (copies or not mode.offload)
    )


def _families(modes: Sequence[Mode]) -> tuple[tuple[int, ...], ...]:
    some = tuple(index for index, mode in enumerate(modes) if not mode.recompute or mode.recompute_blocks is not None)
    others = tuple((index,) for index in range(len(modes)) if index not in some)
    return (some, *others) if some else others


def _collectives(step: StepStages) -> list[tuple[Stage, tuple[int, ...]]]:
    """Every stage with the units whose reduction runs in it."""
    return list(zip(step.stages, [(), *(stage.reduce for stage in step.stages[:-1])], strict=True))


def _kinds(basis: Basis, step: StepStages, space: Space) -> tuple[Kind, ...]:
    """Kinds of stages; the backward of blocks in one part, or in parts of equal collectives that are cut further."""
    last = basis.model.num_layers
    parts = [(1, last)]
    if space.partial:
        moved = {
            stage.unit: (
                [(step.units[unit].num_parameters) for unit in stage.unshard],
                [step.units[unit].num_trained for unit in before],
            )
            for stage, before in _collectives(step)
            if stage.phase == "backward"
        }
        same = basis.network == "ideal" or len(basis.cluster.ranks) == 1
        starts = [1, *(u for u in range(2, last + 1) if u - 1 in space.cuts or (not same and moved[u] != moved[u - 1]))]
        parts = [(first, after - 1) for first, after in zip(starts, [*starts[1:], last + 1], strict=True)]
    return (
        Kind("embedding", "forward"),
        Kind("block", "forward"),
        Kind("head", "forward-backward"),
        *(Kind("block", "backward", *part) for part in reversed(parts)),
        Kind("embedding", "backward"),
    )


def _kind_of(step: StepStages, kinds: Sequence[Kind], stage: Stage) -> int:
    unit = step.units[stage.unit]
    return next(
        index
        for index, kind in enumerate(kinds)
        if (kind.unit, kind.phase) == (unit.kind, stage.phase)
        and (not kind.last or kind.first <= unit.index <= kind.last)
    )


def _stage_classes(
    basis: Basis, step: StepStages, kinds: Sequence[Kind]
) -> tuple[tuple[StageClass, ...], tuple[float, float], tuple[float, float]]:
    """Classes of stages, and latency and slope of the exposed first gather and last reduction."""
    sizes = [unit.num_parameters for unit in step.units]
    trained = [unit.num_trained for unit in step.units]
    gather_bytes = DTYPE_BYTES[basis.dtype]
    reduce_bytes = accumulation_bytes(basis.dtype)
    ideal = basis.network == "ideal" or len(basis.cluster.ranks) == 1

    def cost(gathered: Sequence[int], reduced: Sequence[int]) -> tuple[float, float]:
        if basis.network == "ideal" or ideal:
            return 0.0, 0.0
        floor = slope = 0.0
        for fit, elements, element_bytes in (
            (basis.network.all_gather, [sizes[unit] for unit in gathered], gather_bytes),
            (basis.network.reduce_scatter, [trained[unit] for unit in reduced], reduce_bytes),
        ):
            for number in filter(None, elements):
                floor += fit.latency_s
                slope += number * element_bytes / fit.bandwidth_bytes_per_s
        return floor, slope

    counted: dict[tuple[int, float, float, int], int] = {}
    last: tuple[int, ...] = step.stages[-1].reduce
    for stage, before in _collectives(step):
        kind = _kind_of(step, kinds, stage)
        moved = gather_bytes * sum(sizes[unit] for unit in stage.unshard)
        moved += reduce_bytes * sum(trained[unit] for unit in before)
        key = (kind, *cost(stage.unshard, before), moved)
        counted[key] = counted.get(key, 0) + 1
    classes = tuple(
        StageClass(kind=kind, count=count, floor_s=floor, slope_s=slope, moved_bytes=moved)
        for (kind, floor, slope, moved), count in counted.items()
    )
    return classes, cost(step.first, ()), cost((), last)
