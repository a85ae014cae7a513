"""What a training would do, without doing it: who keeps which elements, in how many bytes, and the order of a step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.base import DType
from cephalo_cli.layout import shard_ranges
from cephalo_cli.reporting.sheet import Column, Fact, Facts, Part, Sheet, Value, plain
from cephalo_cli.reporting.words import memory_sheet, microbatches
from cephalo_cli.schedule import Stage, StepStages, plan_stages, rank_records
from cephalo_cli.timeline import event_name
from cephalo_cli.units import DTYPE_BYTES, Unit

__all__ = ["describe_dry_run", "plain_dry_run"]

NUM_MOMENTS = {"adamw": 2, "sgd": 0, "sgd with momentum": 1}
"""Numbers the optimizer keeps for every parameter."""
OptimizerKind = Literal["adamw", "sgd", "sgd with momentum"]


def describe_dry_run(plan: Plan, dtype: DType, optimizer: OptimizerKind) -> list[Part]:
    """Say what every rank would keep and what a step would be.

    Args:
        plan: Who does what.
        dtype: Compute dtype in force.
        optimizer: What keeps moments.
    """
    step = plan_stages(plan)
    facts = Facts(
        name="training",
        title=f"Training {plan.model.name} on {plan.cluster.name}, not started",
        facts=(
            Fact(key="schedule", label="schedule", value=plan.schedule),
            Fact(key="global_batch_size", label="batch", value=plan.global_batch_size, more="samples a step"),
            Fact(key="compute_dtype", label="compute", value=dtype, more="(parameters as gathered, activations)"),
            Fact(
                key="state_dtype",
                label="state",
                value=_state_dtype(dtype),
                more=f"(master weights, gradients, reductions, {optimizer})",
            ),
        ),
    )
    memory = memory_sheet([(rank.rank, rank.memory) for rank in plan.ranks])
    return [facts, _ranks(plan, step, dtype, optimizer), memory, _shards(plan, step, dtype, optimizer), _stages(step)]


def plain_dry_run(plan: Plan, dtype: DType, optimizer: OptimizerKind) -> dict[str, object]:
    """Give the same as JSON values, with every rank's records in the order in which it would issue them."""
    step = plan_stages(plan)
    names = [unit.name for unit in step.units]
    records = [
        [
            event_name(record.op, None if record.unit is None else names[record.unit], record.microbatch)
            for record in rank_records(
                step, num_microbatches=len(rank.microbatch_sizes), recompute=rank.recompute, offload=rank.offload
            )
        ]
        for rank in plan.ranks
    ]
    return plain(describe_dry_run(plan, dtype, optimizer)) | {"records": records}


def _state_dtype(dtype: DType) -> DType:
    return "float64" if dtype == "float64" else "float32"


def _bytes_per_parameter(dtype: DType, optimizer: OptimizerKind) -> int:
    """Master weight, gradient and moments."""
    return DTYPE_BYTES[_state_dtype(dtype)] * (2 + NUM_MOMENTS[optimizer])


def _shares(plan: Plan) -> list[float]:
    return [rank.state_share for rank in plan.ranks]


def _lengths(plan: Plan, unit: Unit, rank: int) -> tuple[int, int]:
    """First element of a rank's shard and one beyond its last; all of the unit where state is replicated."""
    if plan.schedule == "replicated":
        return 0, unit.num_parameters
    own = shard_ranges(unit.num_parameters, _shares(plan))[rank]
    return own.start, own.stop


def _ranks(plan: Plan, step: StepStages, dtype: DType, optimizer: OptimizerKind) -> Sheet:
    rows: list[Mapping[str, Value]] = []
    for rank in plan.ranks:
        elements = sum(stop - start for start, stop in (_lengths(plan, unit, rank.rank) for unit in step.units))
        rows.append(
            {
                "ranks": [rank.rank],
                "device": rank.device,
                "node": rank.node,
                "microbatch_sizes": microbatches(rank.microbatch_sizes),
                "state_share": rank.state_share,
                "num_elements": elements,
                "state_bytes": elements * _bytes_per_parameter(dtype, optimizer),
            }
        )
    return Sheet(
        name="ranks",
        title="What every rank would run and keep",
        columns=(
            Column(key="ranks", title="rank", kind="ranks"),
            Column(key="device", title="device"),
            Column(key="node", title="node"),
            Column(key="microbatch_sizes", title="microbatches"),
            Column(key="state_share", title="share", kind="percent"),
            Column(key="num_elements", title="parameters", kind="count"),
            Column(key="state_bytes", title="state", kind="bytes"),
        ),
        rows=tuple(rows),
    )


def _shards(plan: Plan, step: StepStages, dtype: DType, optimizer: OptimizerKind) -> Sheet:
    rows: list[Mapping[str, Value]] = []
    for first, last in _alike(step.units):
        for rank in plan.ranks:
            start, stop = _lengths(plan, first, rank.rank)
            rows.append(
                {
                    "units": first.name if first is last else f"{first.name} to {last.name}, each",
                    "ranks": [rank.rank],
                    "start": start,
                    "stop": stop,
                    "state_bytes": (stop - start) * _bytes_per_parameter(dtype, optimizer),
                }
            )
    return Sheet(
        name="shards",
        title="Elements of each unit's flat buffer, from the first to before the last",
        columns=(
            Column(key="units", title="unit"),
            Column(key="ranks", title="rank", kind="ranks"),
            Column(key="start", title="from", kind="count"),
            Column(key="stop", title="to", kind="count"),
            Column(key="state_bytes", title="state", kind="bytes"),
        ),
        rows=tuple(rows),
    )


def _alike(units: Sequence[Unit]) -> Iterator[tuple[Unit, Unit]]:
    """First and last of each run of units that are cut in the same way."""
    first = last = units[0]
    for unit in units[1:]:
        if (unit.kind, unit.num_parameters) == (first.kind, first.num_parameters):
            last = unit
        else:
            yield first, last
            first = last = unit
    yield first, last


def _stages(step: StepStages) -> Sheet:
    names = [unit.name for unit in step.units]

    def of(units: Sequence[int]) -> str | None:
        return ", ".join(names[unit] for unit in units) or None

    def row(stage: Stage) -> dict[str, str | int | None]:
        return {
            "phase": stage.phase,
            "unit": names[stage.unit],
            "microbatch": stage.round,
            "gathers": of(stage.unshard),
            "frees": of(stage.reshard),
            "reduces": of(stage.reduce),
        }

    return Sheet(
        name="stages",
        title="A step, stage by stage, the same on all ranks"
        + (f", which starts by gathering {of(step.first)}" if step.first else ""),
        columns=(
            Column(key="phase", title="phase"),
            Column(key="unit", title="unit"),
            *([Column(key="microbatch", title="microbatch", kind="count")] if step.num_rounds > 1 else []),
            Column(key="gathers", title="gathers meanwhile"),
            Column(key="frees", title="then frees"),
            Column(key="reduces", title="then reduces"),
        ),
        rows=tuple(row(stage) for stage in step.stages),
    )
