"""From a plan to a simulated run: its report, its time line, and why it takes as long as it does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cephalo_cli.artifacts.base import InputFile
from cephalo_cli.artifacts.plan import Plan
from cephalo_cli.artifacts.report import RankReport, Report
from cephalo_cli.costmodel.memory import gradient_bytes
from cephalo_cli.errors import UsageError
from cephalo_cli.layout import shard_ranges
from cephalo_cli.simulator import explain, lanes
from cephalo_cli.simulator.memory import peak
from cephalo_cli.simulator.parts import Disturbance, Setting, setting
from cephalo_cli.simulator.play import PartPlay, StepPlay, steady_step
from cephalo_cli.simulator.utilisation import check_speeds, flops_utilization
from cephalo_cli.simulator.whatif import parse_sweep, with_changes
from cephalo_cli.timeline import Timeline
from cephalo_cli.units import DTYPE_BYTES

__all__ = ["SimulatedRun", "simulate", "sweep"]

SLOWEST = 1e6
"""The largest factor by which a rank may be slower."""


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """One step of a plan, played out."""

    report: Report
    """What the step did, in the schema that measured runs share."""
    setting: Setting
    """What was played."""
    play: StepPlay
    """When everything happened."""
    all_step_s: tuple[float, ...]
    """Seconds of every step played until the reported one was chosen."""

    @cached_property
    def timeline(self) -> Timeline:
        """Every span and every change of memory, of all ranks; built when first asked for."""
        return lanes.timeline(self.setting, self.play)

    @property
    def shortfalls(self) -> tuple[str, ...]:
        """One sentence for every rank that would run out of memory: where and by how much."""
        return explain.shortfalls(self.report)


def simulate(
    plan: Plan,
    *,
    changes: Sequence[str] = (),
    jitter_sigma: float = 0.0,
    seed: int = 0,
    stragglers: Mapping[int, float] | None = None,
    inputs: Sequence[InputFile] = (),
) -> SimulatedRun:
    """Play a plan's step with the durations of the cost model.

    Args:
        plan: The plan, which carries cluster, model and profile.
        changes: What to make different first, such as ``network.bandwidth_bytes_per_s=2x``; see `whatif`.
        jitter_sigma: Standard deviation of the logarithm of a random factor on every compute action (its mean is 1).
        seed: Seed of the jitter; the same seed gives the same report.
        stragglers: Factors by which ranks compute more slowly.
        inputs: Files the plan came from, for the report.

    Raises:
        ArtifactError: A unit's curve is faster than its device's peak, or a changed value is out of its range.
        UsageError: A change cannot be made, a straggler is not a rank of the plan, or a factor or the jitter is out of
            range.
    """
    where = inputs[0].path if inputs else "plan"
    changed = with_changes(plan, changes)
    check_speeds(changed, where=where)
    slow = dict(stragglers or {})
    for rank, factor in slow.items():
        if not 0 <= rank < len(plan.ranks):
            hint = f"the plan has ranks 0 to {len(plan.ranks) - 1}"
            raise UsageError(f"there is no rank {rank}", where="--straggler", hint=hint)
        if not 1 <= factor <= SLOWEST:
            raise UsageError(
                f"factor {factor:g} of rank {rank} must be between 1 and {SLOWEST:g}",
                where="--straggler",
                hint="such as 1.3",
            )
    if not 0 <= jitter_sigma <= 2:
        raise UsageError(f"--jitter is {jitter_sigma:g}, expected 0 to 2", hint="0.05 is a noisy machine")
    ready = setting(changed, Disturbance(jitter_sigma=jitter_sigma, seed=seed, stragglers=slow))
    play, all_step_s = steady_step(ready)
    told = [*changes, *(f"straggler {rank}:{factor:g}" for rank, factor in sorted(slow.items()))]
    if jitter_sigma:
        told.append(f"jitter {jitter_sigma:g}, seed {seed}")
    report = _report(ready, play, inputs).model_copy(update={"changes": tuple(told)})
    return SimulatedRun(report=report, setting=ready, play=play, all_step_s=tuple(all_step_s))


def sweep(
    plan: Plan, values: str, *, changes: Sequence[str] = (), inputs: Sequence[InputFile] = ()
) -> list[tuple[str, SimulatedRun]]:
    """Simulate a plan once for each value of ``PATH=a,b,c``; return each change with its run.

    Raises:
        UsageError: ``values`` cannot be read, or as `simulate`.
        ArtifactError: As `simulate`.
    """
    with_changes(plan, changes)
    swept = parse_sweep(values)
    try:
        return [(change, simulate(plan, changes=[*changes, change], inputs=inputs)) for change in swept]
    except UsageError as error:  # what was changed besides is sound
        error.where = error.where and error.where.replace("--set", "--sweep")
        raise


def _report(ready: Setting, play: StepPlay, inputs: Sequence[InputFile]) -> Report:
    plan = ready.plan
    moved = _moved_bytes(ready)
    ranks: dict[int, RankReport] = {}
    for part_play in play.parts:
        for rank in part_play.part.ranks:
            if rank == part_play.part.ranks[0]:
                first = _rank_report(ready, play, part_play, moved[rank])
                ranks[rank] = first
                continue
            place = plan.ranks[rank]
            gathered, reduced = moved[rank]
            ranks[rank] = first.model_copy(
                update={"rank": rank, "node": place.node, "gathered_bytes": gathered, "reduced_bytes": reduced}
            )
    per_s = 1.0 / play.step_s if play.step_s else 0.0
    samples_per_s = plan.global_batch_size * per_s
    used = flops_utilization(plan, play.step_s)
    report = Report(
        source="simulated",
        inputs=tuple(inputs),
        strategy=plan.strategy,
        schedule=plan.schedule,
        cluster_name=plan.cluster.name,
        model_name=plan.model.name,
        dtype=plan.dtype,
        seq_len=plan.seq_len,
        global_batch_size=plan.global_batch_size,
        step_s=play.step_s,
        samples_per_s=samples_per_s,
        tokens_per_s=samples_per_s * plan.model.tokens_per_sample(plan.seq_len),
        model_flops_utilization=None if used is None else used[0],
        hardware_flops_utilization=None if used is None else used[1],
        predicted_step_s=plan.expected.step_s,
        numerics={},
        ranks=tuple(ranks[rank] for rank in range(len(plan.ranks))),
    )
    told = {"bottleneck": explain.bottleneck(report, plan), "difference": explain.difference(ready, play)}
    return report.model_copy(update=told)


def _rank_report(ready: Setting, play: StepPlay, part_play: PartPlay, moved: tuple[int, int]) -> RankReport:
    part = part_play.part
    place = ready.plan.ranks[part.ranks[0]]
    forward, backward, optimizer = lanes.busy(part_play)
    compute = forward + backward + optimizer
    memory, at = peak(ready, play, part_play)
    return RankReport(
        rank=part.ranks[0],
        node=place.node,
        device=place.device,
        num_samples=sum(part.choice.microbatch_sizes),
        state_share=part.choice.state_share,
        compute_s=compute,
        wait_s=max(0.0, play.step_s - compute),
        forward_s=forward,
        backward_s=backward,
        optimizer_s=optimizer,
        exposed_gather_s=part_play.wait.gather,
        exposed_reduce_s=part_play.wait.reduce,
        exposed_copy_s=part_play.wait.copy,
        late_s=part_play.wait.late,
        gathered_bytes=moved[0],
        reduced_bytes=moved[1],
        peak_memory_bytes=memory.total_bytes,
        peak_memory_at=at,
        memory=memory,
    )


def _moved_bytes(ready: Setting) -> list[tuple[int, int]]:
    """Bytes every rank receives in a step's gathers and reductions, over the exact ranges of `layout`.

    A gather brings a rank what it does not store. A direct reduction brings it one piece of the size of its own shard
    from every other rank; round a ring a rank receives all but one shard, as in a gather. An all-reduce is a reduction
    and a gather over equal shards.
    """
    plan = ready.plan
    number = len(plan.ranks)
    if number == 1:
        return [(0, 0)]
    replicated = plan.schedule == "replicated"
    shares = [1.0 / number] * number if replicated else [rank.state_share for rank in plan.ranks]
    direct = plan.network != "ideal" and plan.network.algorithm == "direct"
    units = ready.step.units
    trained = [[len(each) for each in shard_ranges(unit.num_trained, shares)] for unit in units]
    frozen = [[len(each) for each in shard_ranges(unit.num_frozen, shares)] for unit in units]
    per_parameter, per_gradient = DTYPE_BYTES[plan.dtype], gradient_bytes(ready.step, plan.dtype)
    per_rank = []
    for rank in range(number):
        gathered = reduced = 0
        for collective in ready.collectives:
            whole, mine = units[collective.unit].num_trained, trained[collective.unit][rank]
            if collective.is_gather:
                rest = units[collective.unit].num_frozen - frozen[collective.unit][rank]
                gathered += (whole - mine + rest) * per_parameter
                continue
            elements = (number - 1) * mine if direct else whole - mine
            elements += whole - mine if replicated else 0
            reduced += elements * per_gradient
        per_rank.append((gathered, reduced))
    return per_rank
