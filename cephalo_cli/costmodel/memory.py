"""Memory of one rank, every term by name.

state      shards of master weights, gradients and moments: with AdamW 16 bytes a trained parameter, 4 a frozen one
           (twice that for float64), or 2 where the model says that frozen ones are stored in 16 bits. Where units are
           updated as soon as their gradients are reduced, gradients of one unit instead of all (see the note)
buffers    the largest sum, over the stages of a step, of unsharded parameters (compute dtype) and unsharded gradients
           of trained ones (accumulation dtype, or the schedule's own: the stage's and those still being reduced, in
           microbatch-major order all of them from the first round on, unless every round reduces). A rank that keeps
           everything (one rank, or replicated state) has only a copy of all parameters in the compute dtype, and not
           even that of those that are stored in it
working    the most live tensors inside one unit for the largest microbatch
saved      what lives from forward to backward; of blocks that are not recomputed all that autograd keeps
reserve    runtime context and fragmentation

Note: updates in backward
    A rank that updates a unit as soon as its gradient is reduced keeps no gradients of its shard but those of the unit
    being reduced: the reduction before is finished, and its gradient let go of, before the next one starts. So state
    counts its share of the largest unit's gradients. A rank that keeps everything has no second copy of a gradient, so
    what it holds are the gradients that are alive together at the fullest stage, as other ranks do in buffers.
    Source of the idea: Lv et al., LOMO (arXiv 2306.09782).

An imported table's ``working_bytes`` were measured with the buffers inside, so its buffers are only what units add that
stay unsharded between their phases.

Note: recomputing some blocks
    A rank that recomputes the first n of L blocks is fullest before any of the kept ones, the last L - n, has gone
    through its backward: later, in a recomputed block, the block's own tensors are back, but at least one kept block's
    are gone. So its working memory is that of a rank that recomputes nothing, and its saved memory is linear in n.
"""

import math
from collections.abc import Iterator, Sequence

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.plan import Memory, OptimizerKind, PlanSettings
from cephalo_cli.artifacts.profile import Basis, DeviceProfile
from cephalo_cli.costmodel.compute import RankChoice
from cephalo_cli.costmodel.tables import interpolate
from cephalo_cli.schedule import Stage, StepStages, resharding
from cephalo_cli.units import DTYPE_BYTES, boundary_bytes

__all__ = [
    "accumulation_bytes",
    "buffers_bytes",
    "copies_bytes",
    "gradient_bytes",
    "limit_bytes",
    "num_moments",
    "planned_state_bytes",
    "rank_memory",
    "saved_bytes",
    "state_bytes",
    "weights_bytes",
    "working_bytes",
]


def accumulation_bytes(dtype: DType) -> int:
    """Bytes of one element of master weights, accumulated gradients and moments: float32, or float64 for float64."""
    return max(4, DTYPE_BYTES[dtype])


def gradient_bytes(step: StepStages, dtype: DType) -> int:
    """Bytes of one element of a whole gradient, as it accumulates and is reduced."""
    return accumulation_bytes(dtype) if step.reduce_dtype is None else DTYPE_BYTES[step.reduce_dtype]


def num_moments(optimizer: OptimizerKind | None) -> int:
    """How many numbers an optimizer keeps for every trained parameter."""
    return {"adamw": 2, "sgd": 0, "sgd with momentum": 1}[optimizer or "adamw"]


def state_bytes(basis: Basis, optimizer: OptimizerKind | None = None, *, num_gradients: int | None = None) -> int:
    """Bytes of the whole training state: master, gradient and moments; frozen parameters have only the first.

    Args:
        basis: Number of parameters and dtype.
        optimizer: Whose moments.
        num_gradients: How many gradients there are at once; one for every trained parameter when absent.
    """
    trained = basis.num_parameters - basis.num_frozen_parameters
    gradients = trained if num_gradients is None else min(trained, num_gradients)
    return weights_bytes(basis) + accumulation_bytes(basis.dtype) * (num_moments(optimizer) * trained + gradients)


def planned_state_bytes(basis: Basis, settings: PlanSettings, *, step: StepStages, num_ranks: int) -> int:
    """Bytes of the whole training state under a plan's settings, see the note on updates in backward."""
    if not settings.optimizer_in_backward:
        return state_bytes(basis, settings.optimizer)
    if num_ranks == 1 or step.name == "replicated":
        most = max(num_gradients for _, num_gradients in _gradients_by_stage(step))
    else:
        most = max(unit.num_trained for unit in step.units)
    return state_bytes(basis, settings.optimizer, num_gradients=most)


def weights_bytes(basis: Basis) -> int:
    """Bytes of all master weights."""
    wide, stored = accumulation_bytes(basis.dtype), basis.model.frozen_dtype
    trained = basis.num_parameters - basis.num_frozen_parameters
    return wide * trained + (wide if stored is None else DTYPE_BYTES[stored]) * basis.num_frozen_parameters


def copies_bytes(step: StepStages, dtype: DType, frozen_dtype: DType | None = None) -> int:
    """Bytes of the copies in the compute dtype that a rank has which keeps everything."""
    is_wide = DTYPE_BYTES[dtype] == accumulation_bytes(dtype)
    keeps_frozen = is_wide if frozen_dtype is None else frozen_dtype == dtype
    trained = 0 if is_wide else sum(unit.num_trained for unit in step.units)
    frozen = 0 if keeps_frozen else sum(unit.num_frozen for unit in step.units)
    return DTYPE_BYTES[dtype] * (trained + frozen)


def buffers_bytes(step: StepStages, *, num_ranks: int, dtype: DType, frozen_dtype: DType | None = None) -> int:
    """Bytes of unsharded parameters and gradients at the fullest stage of a step; the same on every rank."""
    per_gradient, per_parameter = gradient_bytes(step, dtype), DTYPE_BYTES[dtype]
    sizes = [unit.num_parameters for unit in step.units]
    if num_ranks == 1 or step.name == "replicated":
        return copies_bytes(step, dtype, frozen_dtype)
    return max(
        per_parameter * sum(sizes[unit] for unit in stage.unsharded) + per_gradient * num_gradients
        for stage, num_gradients in _gradients_by_stage(step)
    )


def _gradients_by_stage(step: StepStages) -> Iterator[tuple[Stage, int]]:
    """Every stage with how many whole gradients are alive in it: accumulating, or being reduced."""
    trained = [unit.num_trained for unit in step.units]
    num_accumulating = 0
    accumulating: set[int] = set()
    reducing: set[int] = set()
    for stage in step.stages:
        if stage.phase != "forward":
            borrowed = step.units[stage.unit].borrows
            for unit in ({stage.unit} if borrowed is None else {stage.unit, borrowed}) - accumulating:
                accumulating.add(unit)
                num_accumulating += trained[unit]
        yield stage, num_accumulating + sum(trained[unit] for unit in reducing - accumulating)
        reducing = set(stage.reduce)
        num_accumulating -= sum(trained[unit] for unit in reducing & accumulating)
        accumulating -= reducing


def working_bytes(device: DeviceProfile, sizes: Sequence[int], *, recompute: bool) -> int:
    """Largest live tensors inside one unit for the rank's largest microbatch.

    Unless all blocks are recomputed, what autograd keeps of a block is counted under saved, so it is taken off here.
    """
    if not sizes:
        return 0
    largest = max(sizes)
    most = 0.0
    for kind, unit in device.units.items():
        live = interpolate(unit.microbatch, unit.working_bytes, largest)
        if kind == "block" and not recompute and unit.saved_bytes is not None:
            live = max(0.0, live - interpolate(unit.microbatch, unit.saved_bytes, largest))
        most = max(most, live)
    return math.ceil(most)


def saved_bytes(
    basis: Basis, device: DeviceProfile, sizes: Sequence[int], *, step: StepStages, num_recomputed: int, offload: bool
) -> int:
    """Bytes that live from forward to backward.

    The head's input, the inputs of the ``num_recomputed`` blocks, and what autograd keeps of the other blocks and of
    the embedding. Layer-major keeps all microbatches, the other schedules one. Offloaded boundaries do not count.
    """
    alive = sizes if step.name == "layer-major" else [max(sizes, default=0)]
    num_blocks = sum(unit.kind == "block" for unit in step.units)
    boundary = boundary_bytes(basis.model, basis.seq_len, basis.dtype, sum(alive))
    embedding, block = device.units.get("embedding"), device.units.get("block")
    total = 0.0
    if embedding is not None and embedding.saved_bytes is not None:
        total += sum(interpolate(embedding.microbatch, embedding.saved_bytes, size) for size in alive)
    if block is not None and block.saved_bytes is not None:
        kept = num_blocks - num_recomputed
        total += kept * sum(interpolate(block.microbatch, block.saved_bytes, size) for size in alive)
    return math.ceil(total) + (0 if offload else (num_recomputed + 1) * boundary)


def limit_bytes(basis: Basis, device: str, settings: PlanSettings) -> int:
    """What a rank on a device type may use: memory fraction times capacity."""
    capacity = basis.cluster.device_types[device].memory_bytes
    if capacity is None:
        raise AssertionError(f"device type {device!r} has no memory_bytes: catalog facts were not filled in")
    return math.floor(settings.memory_fraction * capacity)


def rank_memory(
    basis: Basis, settings: PlanSettings, choice: RankChoice, *, step: StepStages, num_ranks: int
) -> Memory:
    """All terms of one rank's peak, in bytes."""
    device = basis.devices[choice.device]
    sizes = choice.microbatch_sizes
    whole = planned_state_bytes(basis, settings, step=step, num_ranks=num_ranks)
    state = math.ceil(choice.state_share * whole)
    num_blocks, frozen_dtype = len(step.units) - 2, basis.model.frozen_dtype
    num_recomputed = choice.num_recomputed(num_blocks)
    buffers = buffers_bytes(step, num_ranks=num_ranks, dtype=basis.dtype, frozen_dtype=frozen_dtype)
    if device.method == "imported":
        usual = resharding(step)
        buffers -= buffers_bytes(usual, num_ranks=num_ranks, dtype=basis.dtype, frozen_dtype=frozen_dtype)
    elif choice.offload and sizes:
        buffers += 4 * boundary_bytes(basis.model, basis.seq_len, basis.dtype, max(sizes))
    working = working_bytes(device, sizes, recompute=num_recomputed == num_blocks)
    saved = saved_bytes(basis, device, sizes, step=step, num_recomputed=num_recomputed, offload=choice.offload)
    reserve = device.reserve_bytes if settings.reserve_bytes is None else settings.reserve_bytes
    return Memory(
        state_bytes=state,
        buffers_bytes=buffers,
        working_bytes=working,
        saved_bytes=saved,
        reserve_bytes=reserve,
        total_bytes=state + buffers + working + saved + reserve,
        limit_bytes=limit_bytes(basis, choice.device, settings),
    )
