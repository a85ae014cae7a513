"""Verifies a plan from its own content: every sum, byte and second in it, counted again (see `recount`).

Shares no code with the search or the cost model, so that it can catch them out.
"""

import math
from typing import NoReturn

from cephalo_cli.artifacts.faults import one_of, shown
from cephalo_cli.artifacts.plan import Plan, RankPlan
from cephalo_cli.errors import ArtifactError
from cephalo_cli.planner.recount import by_rank
from cephalo_cli.planner.recount_memory import RankMemory
from cephalo_cli.planner.recount_time import RankTime, StepTime
from cephalo_cli.quantities import format_bytes, format_seconds
from cephalo_cli.schedule import plan_stages
from cephalo_cli.units import num_parameters

__all__ = ["check_plan"]

BOUNDS = ("compute", "network", "copy", "optimizer")
"""What a step may wait for most."""

CLOSE = 1e-9
"""Relative difference of seconds that rounding may cause."""

ROUNDED_BYTES = 2
"""Difference of bytes that rounding may cause."""


def check_plan(plan: Plan) -> None:
    """Verify a plan: splits, settings, memory of every rank (start-up included), expected times, proof, alternatives.

    Raises:
        ArtifactError: A number does not hold; the message names its field, what was found and what was expected.
    """
    _check_model(plan)
    step = plan_stages(plan)
    memories, time = by_rank(plan, lambda rank: RankMemory(plan, rank, step)), StepTime(plan, step)
    _check_splits(plan)
    _check_kept(plan)
    for index, (rank, memory, seconds) in enumerate(zip(plan.ranks, memories, time.ranks, strict=True)):
        where = f"ranks[{index}]"
        _check_settings(plan, rank, where)
        _check_memory(rank, memory, where)
        _check_times(rank, seconds, where)
    _check_step(plan, time)
    _check_proof(plan)
    _check_alternatives(plan)


def _fail(where: str, message: str) -> NoReturn:
    raise ArtifactError(message, where=where, hint="plan again from the profile")


def _check_model(plan: Plan) -> None:
    counted = num_parameters(plan.model)
    imported = any(device.method == "imported" for device in plan.devices.values())
    if plan.num_parameters != counted and not imported:
        _fail("num_parameters", f"found {plan.num_parameters}, expected {counted}, the model's own count")


def _check_splits(plan: Plan) -> None:
    samples = sum(sum(rank.microbatch_sizes) for rank in plan.ranks)
    if samples != plan.global_batch_size:
        _fail("global_batch_size", f"the ranks have {samples} samples, expected {plan.global_batch_size}")
    shares = math.fsum(rank.state_share for rank in plan.ranks)
    if plan.schedule == "replicated":
        for index, rank in enumerate(plan.ranks):
            if rank.state_share != 1.0:
                _fail(f"ranks[{index}].state_share", f"found {rank.state_share:g}, expected 1: the state is replicated")
    elif abs(shares - 1.0) > CLOSE:
        _fail("ranks", f"state shares sum to {shares:.12g}, expected 1")


def _check_kept(plan: Plan) -> None:
    """Hold how many blocks stay unsharded against the settings."""
    asked, kept = plan.settings.keep_unsharded or 0, plan.num_kept_unsharded
    if isinstance(plan.settings.keep_unsharded, int) and plan.strategy == "cephalo" and plan.schedule != "layer-major":
        _fail("schedule", f"found {shown(plan.schedule)}, but the settings keep {asked} blocks: layer-major only")
    if asked != "auto" and plan.schedule == "layer-major" and plan.strategy == "cephalo" and kept != asked:
        _fail("keep_unsharded", f"found {kept}, but the settings keep {asked or 'none'}")


def _check_settings(plan: Plan, rank: RankPlan, where: str) -> None:
    settings = plan.settings
    for name, setting, value in (
        ("recompute", settings.recompute, rank.recompute),
        ("offload", settings.offload, rank.offload),
    ):
        if setting in ("on", "off") and rank.microbatch_sizes and value != (setting == "on"):
            _fail(f"{where}.{name}", f"found {str(value).lower()}, but the settings say {setting}")
    layers = plan.model.num_layers
    if settings.recompute == "on" and rank.microbatch_sizes and rank.num_recomputed(layers) < layers:
        _fail(f"{where}.recompute_blocks", f"found {rank.recompute_blocks}, but the settings recompute all {layers}")
    if settings.recompute == "auto" and 0 < rank.num_recomputed(layers) < layers:
        _fail(f"{where}.recompute_blocks", f"found {rank.recompute_blocks}, but the settings recompute all or none")
    if rank.offload and rank.num_recomputed(layers) < layers:
        _fail(f"{where}.offload", "only boundaries are offloaded, so offload needs recompute of all blocks")
    if rank.offload and plan.cluster.device_types[rank.device].backend == "cpu":
        _fail(f"{where}.offload", f"{rank.device} has the cpu backend: its memory is host memory")
    block = plan.devices[rank.device].units.get("block")
    if (
        rank.num_recomputed(layers) < layers
        and rank.microbatch_sizes
        and block is not None
        and block.saved_bytes is None
    ):
        _fail(f"{where}.recompute", f"what {rank.device} keeps without recompute is not known (no saved_bytes)")
    only, sizes = settings.microbatch_size, sorted(rank.microbatch_sizes)
    if only is not None and sizes and (sizes[-1] > only or any(size != only for size in sizes[1:])):
        _fail(f"{where}.microbatch_sizes", f"found {list(rank.microbatch_sizes)}, but only size {only} is allowed")


def _check_memory(rank: RankPlan, counted: RankMemory, where: str) -> None:
    memory = rank.memory
    for name, found, expected in (
        ("state_bytes", memory.state_bytes, counted.state_bytes),
        ("buffers_bytes", memory.buffers_bytes, counted.buffers_bytes),
        ("working_bytes", memory.working_bytes, counted.working_bytes),
        ("saved_bytes", memory.saved_bytes, counted.saved_bytes),
        ("reserve_bytes", memory.reserve_bytes, counted.reserve_bytes),
        ("limit_bytes", memory.limit_bytes, counted.limit_bytes),
    ):
        if abs(found - expected) > ROUNDED_BYTES + CLOSE * expected:
            _fail(f"{where}.memory.{name}", f"found {found}, expected {expected}")
    if memory.total_bytes > memory.limit_bytes:
        over = format_bytes(memory.total_bytes - memory.limit_bytes)
        _fail(f"{where}.memory.total_bytes", f"{format_bytes(memory.total_bytes)} is {over} over the limit")
    if counted.startup_bytes > memory.limit_bytes:
        over = format_bytes(counted.startup_bytes - memory.limit_bytes)
        _fail(f"{where}.memory", f"starting up needs its shard and one whole unit: {over} over the limit")


def _check_times(rank: RankPlan, counted: RankTime, where: str) -> None:
    for name, found, expected in (
        ("forward_s", rank.expected.forward_s, counted.forward_s),
        ("backward_s", rank.expected.backward_s, counted.backward_s),
        ("optimizer_s", rank.expected.optimizer_s, counted.optimizer_s),
    ):
        _same_seconds(f"{where}.expected.{name}", found, expected)


def _same_seconds(where: str, found: float, expected: float) -> None:
    if not math.isclose(found, expected, rel_tol=CLOSE, abs_tol=1e-15):
        _fail(where, f"found {found:.12g} ({format_seconds(found)}), expected {expected:.12g}")


def _check_step(plan: Plan, time: StepTime) -> None:
    expected = plan.expected
    _same_seconds("expected.step_s", expected.step_s, time.step_s())
    rate = plan.global_batch_size / expected.step_s if expected.step_s > 0 else 0.0
    _same_seconds("expected.samples_per_s", expected.samples_per_s, rate)
    tokens = rate * plan.model.tokens_per_sample(plan.seq_len)
    _same_seconds("expected.tokens_per_s", expected.tokens_per_s, tokens)
    if expected.bound not in BOUNDS:
        _fail("expected.bound", f"found {shown(expected.bound)}, expected {one_of(BOUNDS)}")


def _check_proof(plan: Plan) -> None:
    step_s, proof = plan.expected.step_s, plan.solver
    if proof.lower_bound_s > step_s * (1.0 + CLOSE):
        _fail("solver.lower_bound_s", f"{proof.lower_bound_s:.12g} is above the step, {step_s:.12g}")
    gap = (step_s - proof.lower_bound_s) / step_s if step_s > 0 else 0.0
    if abs(proof.gap - gap) > 2 * CLOSE:
        _fail("solver.gap", f"found {proof.gap:.12g}, expected {gap:.12g}")
    if proof.status == "optimal" and gap > 2 * CLOSE:
        _fail("solver.status", f"says optimal, but the gap is {gap:.3g}")


def _check_alternatives(plan: Plan) -> None:
    seen = {plan.strategy}
    # Where a number of blocks is to stay unsharded, others are shown that do not do so, and may be faster.
    is_free = not isinstance(plan.settings.keep_unsharded, int)
    is_best = plan.strategy == "cephalo" and plan.solver.status == "optimal" and is_free
    for index, other in enumerate(plan.alternatives):
        where = f"alternatives[{index}]"
        if other.strategy in seen:
            _fail(f"{where}.strategy", f"{other.strategy} is already there")
        seen.add(other.strategy)
        if other.feasible != (other.reason is None):
            _fail(f"{where}.reason", "a reason is given exactly where a strategy is not feasible")
        if other.feasible and (other.step_s is None or (other.peak_memory_fraction or 0.0) > 1.0):
            _fail(where, "says feasible, but has no step time or more memory than its limit")
        if other.step_s is not None and other.step_s > 0.0:
            rate = plan.global_batch_size / other.step_s
            _same_seconds(f"{where}.samples_per_s", other.samples_per_s or 0.0, rate)
        faster = other.feasible and other.step_s is not None and other.step_s < plan.expected.step_s * (1.0 - CLOSE)
        if is_best and faster:
            _fail(f"{where}.step_s", f"{other.strategy} is faster than a plan that says it is optimal")
