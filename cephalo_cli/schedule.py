"""A step as data: per rank a list of small records that the simulator times and the executor runs.

Note: stages and records
    A step is first a list of *stages*, equal on all ranks: one unit in one phase, with the units to unshard while it
    runs, to reshard and to reduce after it. A rank's *records* follow from the stages and its own microbatches. All
    collectives belong to stages, so their sequence is the same on every rank, whether it has 0, 1 or 50 microbatches:
    that is why no plan can deadlock.

Note: order and overlap
    Records are in the order in which a rank issues them. UNSHARD, REDUCE_GRAD, ALL_REDUCE, FETCH and OFFLOAD only
    start their work; FORWARD, RECOMPUTE and BACKWARD wait for what they need (their unit unsharded, their boundary
    fetched), and OPTIMIZER_STEP waits for every reduction. Each stage first starts the gather of the next stage's
    units, then the reduction of the stage before, then computes; so at most the units of two stages are unsharded,
    and the gradients of two stages are alive. A unit that is needed again within two stages stays unsharded, which is
    why the last block and the head are gathered once.

Note: memory for time
    Two things cost memory and save time. ``keep_unsharded`` blocks before the last one stay unsharded from their
    forward to their backward, which saves their second gather (the idea of SHARD_GRAD_OP, by unit; Zhao et al., PyTorch
    FSDP, VLDB 2023); it is the same on all ranks, because gathers are. A rank may recompute only the first n blocks and
    keep what autograd needs of the others (selective checkpointing: Chen et al., arXiv 1604.06174; by a count of layers
    as in Megatron-LM, Korthikanti et al., MLSys 2023). The first ones are recomputed, because the last ones' tensors
    are the first to be freed: while a recomputed block is in backward, the kept blocks' tensors are gone already.

Source: layered gradient accumulation, Guo et al., Cephalo, ICS 2025 (arXiv 2411.01075), section 4; the microbatch-major
order is that of PyTorch FSDP (Zhao et al., VLDB 2023), with its SHARD_GRAD_OP and its reduction after every
microbatch as options; the replicated one is that of DistributedDataParallel (Li et al., VLDB 2020).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.plan import FsdpOptions, Plan, ScheduleName
from cephalo_cli.units import Unit, model_units

__all__ = [
    "COLLECTIVES",
    "Op",
    "Record",
    "Stage",
    "StepStages",
    "is_recomputed",
    "plan_stages",
    "rank_records",
    "resharding",
    "step_stages",
]

Phase = Literal["forward", "forward-backward", "backward"]


class Op(StrEnum):
    """What a record does."""

    UNSHARD = "UNSHARD"
    """Start gathering the whole unit from its shards."""
    RESHARD = "RESHARD"
    """Free the whole unit."""
    FORWARD = "FORWARD"
    """Run a unit on a microbatch; for the head also the loss."""
    RECOMPUTE = "RECOMPUTE"
    """Run a block's forward again from its input, keeping what backward needs."""
    BACKWARD = "BACKWARD"
    """Run a unit's backward on a microbatch and add to the unit's gradient."""
    REDUCE_GRAD = "REDUCE_GRAD"
    """Start summing the unit's gradient over ranks into its shards."""
    ALL_REDUCE = "ALL_REDUCE"
    """Start summing the unit's gradient over ranks into every rank (replicated state)."""
    OFFLOAD = "OFFLOAD"
    """Start copying the unit's output boundary to host memory."""
    FETCH = "FETCH"
    """Start copying the unit's output boundary back to the device."""
    OPTIMIZER_STEP = "OPTIMIZER_STEP"
    """Update the local shards."""


COLLECTIVES = frozenset({Op.UNSHARD, Op.REDUCE_GRAD, Op.ALL_REDUCE})
"""Records that every rank must issue in the same order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One thing a rank does."""

    op: Op
    unit: int | None = None
    """Index of the unit; for OFFLOAD and FETCH the unit whose output is copied. None for OPTIMIZER_STEP."""
    microbatch: int | None = None
    """Index of the microbatch on this rank, where the record concerns one."""
    tensor: Literal["activation", "gradient"] | None = None
    """What OFFLOAD and FETCH copy: the boundary's activation or its gradient."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One unit in one phase, the same on all ranks."""

    unit: int
    phase: Phase
    round: int | None = None
    """The only microbatch that runs; None runs all of the rank's microbatches (layer-major)."""
    unshard: tuple[int, ...] = ()
    """Units to start gathering when the stage starts, for the stage after it."""
    unsharded: tuple[int, ...] = ()
    """Units held whole during the stage, those being gathered included."""
    reshard: tuple[int, ...] = ()
    """Units to free when the stage ends."""
    reduce: tuple[int, ...] = ()
    """Units whose gradient is complete when the stage ends."""


@dataclass(frozen=True, kw_only=True)
class StepStages:
    """All stages of a step."""

    name: ScheduleName
    units: tuple[Unit, ...]
    first: tuple[int, ...]
    """Units to gather before the first stage."""
    stages: tuple[Stage, ...]
    num_rounds: int = field(default=1)
    """How often the stages go through the model: 1 for layer-major, else the largest number of microbatches."""
    reduce_dtype: DType | None = None
    """Dtype of whole gradients and their reduction; None: that of accumulation."""
    keep_unsharded: int = 0
    """How many blocks before the last one stay unsharded from forward to backward (layer-major)."""


def step_stages(
    name: ScheduleName,
    units: Sequence[Unit],
    num_rounds: int = 1,
    fsdp: FsdpOptions | None = None,
    *,
    keep_unsharded: int = 0,
) -> StepStages:
    """List the stages of a step.

    Args:
        name: layer-major: all microbatches of a unit before the next unit. microbatch-major: each microbatch through
            the whole model, gathering every time and reducing in the last round. replicated: as microbatch-major, with
            the whole state on every rank.
        units: The model's units in forward order.
        num_rounds: Largest number of microbatches of any rank; layer-major does not depend on it.
        fsdp: Variants of microbatch-major.
        keep_unsharded: For layer-major, how many blocks before the last one stay unsharded from forward to backward.
    """
    fsdp = fsdp or FsdpOptions()
    kept = frozenset(unit.index for unit in [unit for unit in units if unit.kind == "block"][-1 - keep_unsharded :])
    rounds: Sequence[int | None] = [None] if name == "layer-major" else range(max(num_rounds, 1))
    walk = [(unit, phase, round_) for round_ in rounds for unit, phase in _through_the_model(units)]
    needs = [_needs(unit, phase) for unit, phase, _ in walk] + [frozenset(), frozenset()]
    keeps = [frozenset[int]()] * len(walk)
    if fsdp.keeps_gathered:
        keeps = _needed_again(needs, len(walk) // len(rounds))
    elif name == "layer-major" and keep_unsharded:
        keeps = [again & kept for again in _needed_again(needs, len(walk))]
    whole: set[int] = set(needs[0])
    stages = []
    for position, (unit, phase, round_) in enumerate(walk):
        reduces = fsdp.reduces_every_microbatch or round_ in (None, rounds[-1])
        reduce = _complete_after(unit, phase) if reduces else ()
        if name == "replicated":
            stages.append(Stage(unit=unit.index, phase=phase, round=round_, reduce=reduce))
            continue
        fetch = needs[position + 1] - whole
        whole |= fetch
        free = whole - needs[position + 1] - needs[position + 2] - keeps[position]
        stages.append(
            Stage(
                unit=unit.index,
                phase=phase,
                round=round_,
                unshard=tuple(sorted(fetch)),
                unsharded=tuple(sorted(whole)),
                reshard=tuple(sorted(free)),
                reduce=reduce,
            )
        )
        whole -= free
    first = () if name == "replicated" else tuple(sorted(needs[0]))
    return StepStages(
        name=name,
        units=tuple(units),
        first=first,
        stages=tuple(stages),
        num_rounds=len(rounds),
        reduce_dtype=fsdp.reduce_dtype,
        keep_unsharded=keep_unsharded,
    )


def resharding(step: StepStages) -> StepStages:
    """The same step with every unit resharded after its forward, but those that are needed again at once."""
    if not step.keep_unsharded:
        return step
    return step_stages(step.name, step.units)


def is_recomputed(unit: Unit, *, recompute: bool, recompute_blocks: int | None = None) -> bool:
    """Whether the backward of a unit runs its forward again first.

    Args:
        unit: Any unit; only blocks are ever recomputed.
        recompute: Whether the rank recomputes.
        recompute_blocks: How many blocks, counted from the first; None: all of them.
    """
    return recompute and unit.kind == "block" and (recompute_blocks is None or unit.index <= recompute_blocks)


def rank_records(
    step: StepStages, *, num_microbatches: int, recompute: bool, offload: bool, recompute_blocks: int | None = None
) -> list[Record]:
    """List what one rank does in a step.

    Args:
        step: The stages, the same for all ranks.
        num_microbatches: How many microbatches the rank has; may be 0.
        recompute: Whether the backward of blocks runs their forward again first.
        offload: Whether boundaries live in host memory between their uses (needs recompute of all blocks).
        recompute_blocks: How many blocks, counted from the first, are run again; None: all where ``recompute``.
    """
    reduction = Op.ALL_REDUCE if step.name == "replicated" else Op.REDUCE_GRAD
    records = [Record(op=Op.UNSHARD, unit=unit) for unit in step.first]
    reduce: tuple[int, ...] = ()
    for stage in step.stages:
        records += [Record(op=Op.UNSHARD, unit=unit) for unit in stage.unshard]
        records += [Record(op=reduction, unit=unit) for unit in reduce]
        mine = range(num_microbatches) if stage.round is None else range(stage.round, stage.round + 1)
        unit = step.units[stage.unit]
        again = is_recomputed(unit, recompute=recompute, recompute_blocks=recompute_blocks)
        work = [
            _microbatch_records(unit, stage.phase, microbatch, again=again, offload=offload)
            for microbatch in mine
            if microbatch < num_microbatches
        ]
        records += _fetch_one_ahead(work)
        records += [Record(op=Op.RESHARD, unit=unit) for unit in stage.reshard]
        reduce = stage.reduce
    records += [Record(op=reduction, unit=unit) for unit in reduce]
    records.append(Record(op=Op.OPTIMIZER_STEP))
    return records


def plan_stages(plan: Plan) -> StepStages:
    """List the stages of a plan's step."""
    num_rounds = max(len(rank.microbatch_sizes) for rank in plan.ranks)
    return step_stages(
        plan.schedule, model_units(plan.model), num_rounds, plan.fsdp, keep_unsharded=plan.num_kept_unsharded
    )


def _through_the_model(units: Sequence[Unit]) -> list[tuple[Unit, Phase]]:
    body, head = units[:-1], units[-1]
    down: list[tuple[Unit, Phase]] = [(unit, "forward") for unit in body]
    up: list[tuple[Unit, Phase]] = [(unit, "backward") for unit in reversed(body)]
    return [*down, (head, "forward-backward"), *up]


def _needs(unit: Unit, phase: Phase) -> frozenset[int]:
    """Units whose parameters a stage reads; the backward of most embeddings reads none."""
    if phase == "backward" and not unit.backward_reads:
        return frozenset()
    return frozenset({unit.index} if unit.borrows is None else {unit.index, unit.borrows})


def _needed_again(needs: Sequence[frozenset[int]], round_length: int) -> list[frozenset[int]]:
    """Units that each stage's successors in the same round still read."""
    again: list[frozenset[int]] = []
    for position in range(len(needs) - 3, -1, -1):
        is_last = (position + 1) % round_length == 0
        again.append(frozenset() if is_last else again[-1] | needs[position + 1])
    return again[::-1]


def _complete_after(unit: Unit, phase: Phase) -> tuple[int, ...]:
    """Units whose gradient is complete after a stage; a borrowed matrix waits for its owner's backward."""
    return () if phase == "forward" else (unit.index,)


def _microbatch_records(
    unit: Unit, phase: Phase, microbatch: int, *, again: bool, offload: bool
) -> tuple[list[Record], list[Record]]:
    """Fetches of one microbatch in one stage, and the rest of its records."""
    fetch: list[Record] = []
    work: list[Record] = []
    below = unit.index - 1

    def copy(op: Op, boundary: int, tensor: Literal["activation", "gradient"]) -> Record:
        return Record(op=op, unit=boundary, microbatch=microbatch, tensor=tensor)

    def compute(op: Op) -> Record:
        return Record(op=op, unit=unit.index, microbatch=microbatch)

    if offload and below >= 0:
        fetch.append(copy(Op.FETCH, below, "activation"))
    if offload and phase == "backward":
        fetch.append(copy(Op.FETCH, unit.index, "gradient"))
    if phase != "backward":
        work.append(compute(Op.FORWARD))
    elif again:
        work.append(compute(Op.RECOMPUTE))
    if phase != "forward":
        work.append(compute(Op.BACKWARD))
    if offload and phase == "forward":
        work.append(copy(Op.OFFLOAD, unit.index, "activation"))
    if offload and phase != "forward" and below >= 0:
        work.append(copy(Op.OFFLOAD, below, "gradient"))
    return fetch, work


def _fetch_one_ahead(microbatches: Iterable[tuple[list[Record], list[Record]]]) -> list[Record]:
    """Start the fetches of a microbatch before the compute of the one before it."""
    records: list[Record] = []
    pending: list[Record] = []
    for fetch, work in microbatches:
        records += fetch + pending
        pending = work
    return records + pending
