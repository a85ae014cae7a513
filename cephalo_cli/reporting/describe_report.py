"""What a report says: how long a step took, who waited for what, and who was full."""

from dataclasses import replace

from cephalo_cli.artifacts import Report
from cephalo_cli.artifacts.report import RankReport, StepReport
from cephalo_cli.quantities import format_percent
from cephalo_cli.reporting.sheet import (
    Column,
    Fact,
    Facts,
    Part,
    Sheet,
    Value,
    merged,
    rank_ranges,
    without_empty_columns,
)
from cephalo_cli.reporting.words import change, memory_sheet, throughput

__all__ = ["describe_report"]

MOST_STEPS = 20
"""Steps that are shown of a training."""
WAITS = "wait: time without compute; gather, reduce: its parts for parameters, gradients."
LATE = "late: waits for ranks that had not arrived yet; part of gather and reduce."


def describe_report(report: Report, *, with_steps: bool = True) -> list[Part]:
    """Say what a step did, simulated or measured, and each step of a training unless they were told of before."""
    off = "" if not report.predicted_step_s else f"({change(report.step_s, report.predicted_step_s)} against the plan)"
    if report.source == "measured" and len(report.steps) == 1:
        off = "(a warm-up step alone, which says little of those that follow)"
    facts = [
        Fact(key="strategy", label="plan", value=report.strategy, more=f"({report.schedule}, engine {report.engine})"),
        Fact(
            key="global_batch_size",
            label="batch",
            value=report.global_batch_size,
            more=f"samples of {report.seq_len} tokens, {report.dtype}",
        ),
        Fact(key="step_s", label="step", value=report.step_s, kind="seconds", more=off),
        Fact(key="samples_per_s", label="throughput", value=throughput(report.samples_per_s, report.tokens_per_s)),
    ]
    if report.collectives is not None:
        facts.append(Fact(key="collectives", label="collectives", value=report.collectives))
    if report.changes:
        facts.insert(0, Fact(key="changes", label="changed", value=list(report.changes)))
    if report.model_flops_utilization is not None and report.hardware_flops_utilization is not None:
        hardware = f"of the peaks (with recomputed forwards {format_percent(report.hardware_flops_utilization)})"
        used = report.model_flops_utilization
        facts.append(Fact(key="model_flops_utilization", label="FLOPs used", value=used, kind="percent", more=hardware))
    speedups = [f"{rank.compile_speedup:.2f}" for rank in report.ranks if rank.compile_speedup is not None]
    if speedups:
        words = f"forward and backward {' '.join(speedups)} times as fast as uncompiled, by rank"
        facts.append(Fact(key="compile_speedup", label="compiled", value=words))
    told = (("bottleneck", "bottleneck", report.bottleneck), ("difference", "difference", report.difference))
    facts += [Fact(key=key, label=label, value=words) for key, label, words in told if words]
    if report.steps:
        losses = [step.loss for step in report.steps if step.loss is not None]
        course = f"{losses[0]:.4f} to {losses[-1]:.4f} in {len(report.steps)} steps" if losses else None
        facts.append(Fact(key="loss", label="loss", value=course))
    title = f"{report.source.capitalize()} step of {report.model_name} on {report.cluster_name}"
    parts = [Facts(name="report", title=title, facts=tuple(facts)), _times(report), *_memory(report)]
    return [*parts, *_steps(report)] if with_steps else parts


def _times(report: Report) -> Sheet:
    sheet = Sheet(
        name="ranks",
        title="Time of a step, and what ranks wait for",
        columns=(
            Column(key="ranks", title="rank", kind="ranks"),
            Column(key="device", title="device"),
            Column(key="num_samples", title="samples", kind="count"),
            Column(key="compute_s", title="compute", kind="seconds"),
            Column(key="wait_s", title="wait", kind="seconds"),
            Column(key="exposed_gather_s", title="gather", kind="seconds"),
            Column(key="exposed_reduce_s", title="reduce", kind="seconds"),
            Column(key="exposed_copy_s", title="copy", kind="seconds"),
            Column(key="late_s", title="late", kind="seconds"),
            Column(key="peak_memory_bytes", title="memory", kind="bytes"),
        ),
        rows=tuple(merged(_rank_row(rank) for rank in report.ranks)),
        notes=(WAITS, *([LATE] if any(rank.late_s for rank in report.ranks) else ())),
    )
    return without_empty_columns(sheet)


def _rank_row(rank: RankReport) -> dict[str, Value]:
    return {
        "ranks": [rank.rank],
        "device": rank.device,
        "num_samples": rank.num_samples,
        "compute_s": rank.compute_s,
        "wait_s": rank.wait_s,
        "exposed_gather_s": rank.exposed_gather_s,
        "exposed_reduce_s": rank.exposed_reduce_s,
        "exposed_copy_s": rank.exposed_copy_s or None,
        "late_s": rank.late_s,
        "peak_memory_bytes": None if rank.memory else rank.peak_memory_bytes,
    }


def _memory(report: Report) -> list[Part]:
    """Memory by term, where the report knows the terms, with the moment of the peak below."""
    terms = [(rank.rank, rank.memory) for rank in report.ranks if rank.memory is not None]
    if not terms:
        return []
    moments: dict[str, list[int]] = {}
    for rank in report.ranks:
        if rank.peak_memory_at is not None:
            moments.setdefault(rank.peak_memory_at, []).append(rank.rank)
    if len(moments) == 1:
        notes = tuple(f"Fullest at {moment}." for moment in moments)
    else:
        notes = tuple(f"Rank {rank_ranges(ranks)}: fullest at {moment}." for moment, ranks in moments.items())
    sheet = memory_sheet(terms)
    return [replace(sheet, notes=(*notes, *sheet.notes))]


def _steps(report: Report) -> list[Part]:
    """What a training's steps did; of many, some that are equally far apart."""
    steps = report.steps
    if not steps:
        return []
    last = len(steps) - 1
    told = sorted(
        {round(row * last / min(last, MOST_STEPS - 1)) for row in range(min(len(steps), MOST_STEPS))} if last else {0}
    )
    notes = [f"Step {steps[0].step} is the warm-up, whose time no plan means to predict."]
    if len(told) < len(steps):
        notes.insert(0, f"{len(told)} of {len(steps)} steps; --json prints all.")
    sheet = Sheet(
        name="steps",
        title="Steps of the training",
        columns=(
            Column(key="step", title="step", kind="count"),
            Column(key="loss", title="loss", kind="loss"),
            Column(key="validation_loss", title="validation", kind="loss"),
            Column(key="grad_norm", title="gradient", kind="digits"),
            Column(key="learning_rate", title="lr", kind="digits"),
            Column(key="tokens_per_s", title="tokens/s", kind="count"),
            Column(key="peak_memory_bytes", title="memory", kind="bytes"),
            Column(key="step_s", title="time", kind="seconds"),
            Column(key="off", title="against plan", kind="change"),
        ),
        rows=tuple(_step_row(steps[place], warm_up=place == 0) for place in told),
        notes=tuple(notes),
    )
    return [without_empty_columns(sheet)]


def _step_row(step: StepReport, *, warm_up: bool) -> dict[str, Value]:
    predicted = None if warm_up else step.predicted_step_s
    return {
        **{
            key: getattr(step, key)
            for key in (
                *("step", "loss", "validation_loss", "grad_norm", "learning_rate", "tokens_per_s"),
                *("peak_memory_bytes", "step_s"),
            )
        },
        "off": step.step_s / predicted - 1 if predicted else None,
    }
