"""What a training would do, without doing it: who keeps which elements, in how many bytes, and the order of a step."""

from collections.abc import Iterator, Mapping, Sequence

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.plan import OptimizerKind
from cephalo_cli.costmodel.memory import num_moments
from cephalo_cli.layout import Range, shard_ranges
from cephalo_cli.reporting.sheet import Column, Fact, Facts, Part, Sheet, Value, plain
from cephalo_cli.reporting.words import memory_sheet, microbatches
from cephalo_cli.schedule import Stage, StepStages, plan_stages, rank_records
from cephalo_cli.timeline import event_name
from cephalo_cli.units import DTYPE_BYTES, Unit

__all__ = ["describe_dry_run", "plain_dry_run"]


def describe_dry_run(plan: Plan, dtype: DType, optimizer: OptimizerKind, *, brief: bool = True) -> list[Part]:
    """Say what every rank would keep and what a step would be.

    Args:
        plan: Who does what.
        dtype: Compute dtype in force.
        optimizer: What keeps moments.
        brief: Whether stages that do the same for one unit after the other share a row.
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
    stages = _stages(step, list(_runs(step) if brief else ([stage] for stage in step.stages)))
    return [facts, _ranks(plan, step, dtype, optimizer), memory, _shards(plan, step, dtype, optimizer), stages]


def plain_dry_run(plan: Plan, dtype: DType, optimizer: OptimizerKind) -> dict[str, object]:
    """Give the same as JSON values, with every rank's records in the order in which it would issue them."""
    step = plan_stages(plan)
    names = [unit.name for unit in step.units]
    records = [
        [
            event_name(record.op, None if record.unit is None else names[record.unit], record.microbatch)
            for record in rank_records(
                step,
                num_microbatches=len(rank.microbatch_sizes),
                recompute=rank.recompute,
                offload=rank.offload,
                recompute_blocks=rank.recompute_blocks,
            )
        ]
        for rank in plan.ranks
    ]
    return plain(describe_dry_run(plan, dtype, optimizer, brief=False)) | {"records": records}


def _state_dtype(dtype: DType) -> DType:
    return "float64" if dtype == "float64" else "float32"


def _bytes_per_parameter(dtype: DType, optimizer: OptimizerKind) -> int:
    """Master weight, gradient and moments."""
    return DTYPE_BYTES[_state_dtype(dtype)] * (2 + num_moments(optimizer))


def _shard(plan: Plan, num_elements: int, rank: int) -> Range:
    """A rank's part of a flat buffer; all of it where state is replicated."""
    if plan.schedule == "replicated":
        return Range(0, num_elements)
    return shard_ranges(num_elements, [each.state_share for each in plan.ranks])[rank]


def _buffers(plan: Plan, unit: Unit, dtype: DType, optimizer: OptimizerKind) -> dict[str, tuple[int, int]]:
    """Elements, and bytes an element takes on the rank that keeps it, of trained and frozen parameters.

    By what is said of them behind the unit's name.
    """
    frozen_bytes = DTYPE_BYTES[plan.model.frozen_dtype or _state_dtype(dtype)]
    sizes = {
        "": (unit.num_parameters - unit.num_frozen, _bytes_per_parameter(dtype, optimizer)),
        ", frozen": (unit.num_frozen, frozen_bytes),
    }
    return {said: size for said, size in sizes.items() if size[0]}


def _ranks(plan: Plan, step: StepStages, dtype: DType, optimizer: OptimizerKind) -> Sheet:
    rows: list[Mapping[str, Value]] = []
    for rank in plan.ranks:
        buffers = [size for unit in step.units for size in _buffers(plan, unit, dtype, optimizer).values()]
        kept = [(len(_shard(plan, num_elements, rank.rank)), each) for num_elements, each in buffers]
        rows.append(
            {
                "ranks": [rank.rank],
                "device": rank.device,
                "node": rank.node,
                "microbatch_sizes": microbatches(rank.microbatch_sizes),
                "state_share": rank.state_share,
                "num_elements": sum(num_elements for num_elements, _ in kept),
                "state_bytes": sum(num_elements * each for num_elements, each in kept),
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
            Column(key="state_share", title="share", kind="share"),
            Column(key="num_elements", title="parameters", kind="count"),
            Column(key="state_bytes", title="state", kind="bytes"),
        ),
        rows=tuple(rows),
    )


def _shards(plan: Plan, step: StepStages, dtype: DType, optimizer: OptimizerKind) -> Sheet:
    rows: list[Mapping[str, Value]] = []
    for first, last in _alike(step.units):
        alike = first.name if first is last else f"{first.name} to {last.name}, each"
        for said, (num_elements, each) in _buffers(plan, first, dtype, optimizer).items():
            for rank in plan.ranks:
                own = _shard(plan, num_elements, rank.rank)
                rows.append(
                    {
                        "units": alike + said,
                        "ranks": [rank.rank],
                        "start": own.start,
                        "stop": own.stop,
                        "state_bytes": len(own) * each,
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
        if (unit.kind, unit.num_parameters, unit.num_frozen) == (first.kind, first.num_parameters, first.num_frozen):
            last = unit
        else:
            yield first, last
            first = last = unit
    yield first, last


def _runs(step: StepStages) -> Iterator[list[Stage]]:
    """Stages that do the same for one block after the other, together; others alone."""
    run: list[Stage] = []
    for stage in step.stages:
        if run and not _goes_on(run, stage, [unit.kind for unit in step.units]):
            yield run
            run = []
        run.append(stage)
    yield run


def _goes_on(run: Sequence[Stage], stage: Stage, kinds: Sequence[str]) -> bool:
    """Whether a stage does to the next unit, and with units of the same kinds, what the last of a run does."""
    last, way = run[-1], stage.unit - run[-1].unit
    if abs(way) != 1 or (stage.phase, stage.round) != (last.phase, last.round):
        return False
    if len(run) > 1 and way != last.unit - run[-2].unit:
        return False
    before, after = ((each.unshard, each.reshard, each.reduce, (each.unit,)) for each in (last, stage))
    if [[unit + way for unit in units] for units in before] != [list(units) for units in after]:
        return False
    return [[kinds[unit] for unit in units] for units in before] == [[kinds[unit] for unit in units] for units in after]


def _stages(step: StepStages, runs: Sequence[Sequence[Stage]]) -> Sheet:
    names = [unit.name for unit in step.units]

    def of(first: Sequence[int], last: Sequence[int]) -> str | None:
        """Units by name, or from the first stage's to the last stage's, such as ``block.1-28``."""
        several = [
            names[one] + (f"-{names[other].rpartition('.')[2]}" if other != one else "")
            for one, other in zip(first, last, strict=True)
        ]
        return ", ".join(several) or None

    def row(run: Sequence[Stage]) -> dict[str, str | int | None]:
        first, last = run[0], run[-1]
        return {
            "phase": first.phase,
            "unit": of([first.unit], [last.unit]),
            "microbatch": first.round,
            "gathers": of(first.unshard, last.unshard),
            "frees": of(first.reshard, last.reshard),
            "reduces": of(first.reduce, last.reduce),
        }

    return Sheet(
        name="stages",
        title="A step, stage by stage: what all ranks gather meanwhile, then free and reduce"
        + (f"; {of(step.first, step.first)} is gathered first" if step.first else ""),
        columns=(
            Column(key="phase", title="phase"),
            Column(key="unit", title="unit"),
            *([Column(key="microbatch", title="microbatch", kind="count")] if step.num_rounds > 1 else []),
            Column(key="gathers", title="gathers"),
            Column(key="frees", title="frees"),
            Column(key="reduces", title="reduces"),
        ),
        rows=tuple(row(run) for run in runs),
    )
