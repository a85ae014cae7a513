"""From what every rank wrote down to one report and one time line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from cephalo_cli.artifacts.base import DType, InputFile
from cephalo_cli.artifacts.plan import Plan, ScheduleName
from cephalo_cli.artifacts.report import RankReport, Report, StepReport
from cephalo_cli.executor.compiled import COMPILING_STEP
from cephalo_cli.executor.journal import StepTimes
from cephalo_cli.executor.options import TrainingResult, TrainOptions, microbatch_split
from cephalo_cli.executor.pace import model_flops_utilization
from cephalo_cli.quantities import format_percent
from cephalo_cli.timeline import Event, MemorySample, Timeline

__all__ = ["RankSummary", "Records", "make_result", "summarise"]


SCHEDULE_OF_ENGINE: Mapping[str, ScheduleName] = {"fsdp2": "microbatch-major", "ddp": "replicated"}
"""The order of work in PyTorch's own engines; cephalo follows the plan's."""


@dataclass(kw_only=True)
class Records:
    """What the steps of one run were on one rank. A training may have millions: only the last keeps its events."""

    reports: list[StepReport] = field(default_factory=list)
    times: list[StepTimes] = field(default_factory=list)
    received_bytes: tuple[int, int] | None = None
    """Gathered and reduced in the last step, where that is counted."""

    def add(self, report: StepReport, times: StepTimes, received_bytes: tuple[int, int] | None) -> None:
        """Add a step."""
        if self.times:
            self.times[-1] = replace(self.times[-1], events=(), memory=())
        self.reports.append(report)
        self.times.append(times)
        self.received_bytes = received_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSummary:
    """A typical step of one rank: medians over the steps after the first."""

    step_s: float
    wait_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    exposed_gather_s: float
    exposed_reduce_s: float
    exposed_copy_s: float
    gathered_bytes: int | None
    reduced_bytes: int | None
    peak_memory_bytes: int
    compile_speedup: float | None
    last_step_s: float
    last_events: tuple[Event, ...]
    last_memory: tuple[MemorySample, ...]

    @property
    def compute_s(self) -> float:
        """All compute."""
        return self.forward_s + self.backward_s + self.optimizer_s


def summarise(records: Records, peak_bytes: int, options: TrainOptions) -> RankSummary:
    """Summarise one rank. The first steps of a run warm up and count only where there are no others."""
    reports, times, received = records.reports, records.times, records.received_bytes
    num_warmup = _num_warmup(options)
    steps = reports[num_warmup:] or reports[1:] or reports
    timed = times[num_warmup:] or times[1:] or times

    def typical(value: Callable[[StepTimes], float]) -> float:
        return median(value(step) for step in timed)

    return RankSummary(
        step_s=median(step.step_s for step in steps),
        wait_s=median(max(step.step_s - time.compute_s, 0.0) for step, time in zip(steps, timed, strict=True)),
        forward_s=typical(lambda step: step.forward_s),
        backward_s=typical(lambda step: step.backward_s),
        optimizer_s=typical(lambda step: step.optimizer_s),
        exposed_gather_s=typical(lambda step: step.exposed_gather_s),
        exposed_reduce_s=typical(lambda step: step.exposed_reduce_s),
        exposed_copy_s=typical(lambda step: step.exposed_copy_s),
        gathered_bytes=None if received is None else received[0],
        reduced_bytes=None if received is None else received[1],
        peak_memory_bytes=peak_bytes,
        compile_speedup=_compile_speedup(times, num_warmup),
        last_step_s=times[-1].step_s,
        last_events=times[-1].events,
        last_memory=times[-1].memory,
    )


def _num_warmup(options: TrainOptions) -> int:
    """Steps at the start of a run that do not count."""
    return COMPILING_STEP if options.compile else 1


def _compile_speedup(times: Sequence[StepTimes], num_warmup: int) -> float | None:
    """Forward and backward of the uncompiled second step over those of a compiled one; None where there is none."""
    compiled = [step.forward_s + step.backward_s for step in times[num_warmup:]]
    if num_warmup == 1 or not compiled or median(compiled) == 0:
        return None
    return (times[1].forward_s + times[1].backward_s) / median(compiled)


def make_result(
    *,
    plan: Plan,
    options: TrainOptions,
    dtype: DType,
    numerics: dict[str, str],
    collectives: str | None,
    emulation: Literal["cgroup", "cooperative"] | None,
    reports: Sequence[StepReport],
    ranks: Sequence[RankSummary],
    inputs: Sequence[InputFile] = (),
) -> TrainingResult:
    """Put the ranks together. Steps take as long as rank 0 says: ranks meet in every step."""
    step_s = ranks[0].step_s
    samples_per_s = plan.global_batch_size / step_s
    busiest = max(range(len(ranks)), key=lambda rank: ranks[rank].compute_s)
    report = Report(
        inputs=tuple(inputs),
        source="measured",
        engine=options.engine,
        strategy="fsdp" if options.engine == "fsdp2" and options.even_split else plan.strategy,
        schedule=SCHEDULE_OF_ENGINE.get(options.engine, plan.schedule),
        cluster_name=plan.cluster.name,
        model_name=plan.model.name,
        dtype=dtype,
        seq_len=plan.seq_len,
        global_batch_size=plan.global_batch_size,
        step_s=step_s,
        samples_per_s=samples_per_s,
        tokens_per_s=samples_per_s * plan.model.tokens_per_sample(plan.seq_len),
        model_flops_utilization=model_flops_utilization(plan, dtype, num_samples=plan.global_batch_size, step_s=step_s),
        predicted_step_s=plan.expected.step_s if options.engine == "cephalo" else None,
        bottleneck=f"rank {busiest} ({plan.ranks[busiest].device}) computes for "
        f"{format_percent(ranks[busiest].compute_s / step_s)} of the step, longer than any other",
        ranks=tuple(_rank_report(plan, options, rank, summary) for rank, summary in enumerate(ranks)),
        steps=tuple(reports),
        numerics=numerics,
        collectives=collectives,
        emulation=emulation,
    )
    timeline = Timeline(
        rank_names=tuple(f"rank {rank.rank} · {rank.device} · {rank.node}" for rank in plan.ranks),
        duration_s=max(summary.last_step_s for summary in ranks),
        events=tuple(event for summary in ranks for event in summary.last_events),
        memory=tuple(sample for summary in ranks for sample in summary.last_memory),
        limit_bytes=tuple(rank.memory.limit_bytes for rank in plan.ranks),
    )
    return TrainingResult(report=report, timeline=timeline)


def _rank_report(plan: Plan, options: TrainOptions, rank: int, summary: RankSummary) -> RankReport:
    planned = plan.ranks[rank]
    if options.engine == "cephalo":
        state_share = planned.state_share
    else:
        state_share = 1.0 if options.engine == "ddp" else 1.0 / len(plan.ranks)
    follows_plan = options.engine == "cephalo"
    return RankReport(
        rank=rank,
        node=planned.node,
        device=planned.device,
        num_samples=sum(microbatch_split(plan, options)[rank]),
        state_share=state_share,
        compute_s=summary.compute_s,
        wait_s=summary.wait_s,
        forward_s=summary.forward_s,
        backward_s=summary.backward_s,
        optimizer_s=summary.optimizer_s,
        exposed_gather_s=summary.exposed_gather_s if follows_plan else None,
        exposed_reduce_s=summary.exposed_reduce_s if follows_plan else None,
        exposed_copy_s=summary.exposed_copy_s if follows_plan else None,
        gathered_bytes=summary.gathered_bytes,
        reduced_bytes=summary.reduced_bytes,
        peak_memory_bytes=summary.peak_memory_bytes,
        compile_speedup=summary.compile_speedup,
    )
