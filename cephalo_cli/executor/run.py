"""Starting a training: local ranks for the plan's cluster, or this process as one rank of an outer launcher."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cephalo_cli.artifacts.plan import Plan
from cephalo_cli.artifacts.report import Report, StepReport
from cephalo_cli.artifacts.store import dumps
from cephalo_cli.executor.options import Callbacks, TrainingResult, TrainOptions, check_options
from cephalo_cli.executor.over_memory import MemoryLog, explain_memory
from cephalo_cli.runtime.launch import RankEnvironment, run_ranks
from cephalo_cli.runtime.memory_limit import MemoryLimitError
from cephalo_cli.timeline import Event, MemorySample, Timeline

if TYPE_CHECKING:
    from cephalo_cli.runtime.process import ProcessContext  # loads torch

__all__ = ["run_training", "train_rank"]


def run_training(
    plan: Plan,
    options: TrainOptions,
    callbacks: Callbacks | None = None,
    *,
    external: RankEnvironment | None = None,
    enforce_memory: bool = True,
    use_cgroups: bool = True,
    timeout_s: float = 600.0,
) -> TrainingResult | None:
    """Train a plan.

    Args:
        plan: Who does what.
        options: What is asked for.
        callbacks: Whom to tell; ``on_record`` is not called from here. With local ranks they run in another thread.
        external: The outer launcher, if one started this process as a rank.
        enforce_memory: Whether emulated devices are held to their memory.
        use_cgroups: Whether control groups may hold emulated devices.
        timeout_s: How long one rank may wait for another.

    Returns:
        Report and time line; None where this process is a rank other than 0 of an outer launcher, and where the
        resumed checkpoint is that of the last step, so that nothing was trained.

    Raises:
        CephaloError: As `cephalo_cli.executor.trainer.train` and `cephalo_cli.runtime.launch.run_ranks`.
    """
    check_options(plan, options)
    told, memory = callbacks or Callbacks(), MemoryLog()
    try:
        result = run_ranks(
            "cephalo_cli.executor.run:train_rank",
            {"plan": json.loads(dumps(plan)), "options": options.model_dump(mode="json")},
            plan.cluster,
            external=external,
            on_event=lambda rank, event: _tell(told, memory, rank, event),
            enforce_memory=enforce_memory,
            use_cgroups=use_cgroups,
            timeout_s=timeout_s,
            holds_signals=True,
        )
    except MemoryLimitError as error:
        explain_memory(error, plan, memory, compiles=options.compile)
        raise
    return None if result is None else _result_from_json(result)


def train_rank(context: "ProcessContext", arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Train on one rank; arguments and result are JSON values, callbacks become events."""
    from cephalo_cli.executor.trainer import train  # noqa: PLC0415 - loads torch

    result = train(
        Plan.model_validate_json(json.dumps(arguments["plan"])),
        TrainOptions.model_validate_json(json.dumps(arguments["options"])),
        context,
        Callbacks(
            on_step=lambda step: context.emit({"step": step.model_dump(mode="json")}),
            on_checkpoint=lambda path: context.emit({"checkpoint": path}),
            on_notice=lambda sentence: context.emit({"notice": sentence}),
            on_numerics=lambda numerics: context.emit({"numerics": numerics}),
            on_memory=lambda step, peak_bytes: context.emit({"memory": [step, peak_bytes]}),
        ),
    )
    if result is None:
        return None
    return {
        "report": json.loads(dumps(result.report)),
        "timeline": asdict(result.timeline),
        "unsaved": result.unsaved,
    }


def _tell(callbacks: Callbacks, memory: MemoryLog, rank: int, event: dict[str, Any]) -> None:
    if "memory" in event:
        memory.note(rank, *event["memory"])
    elif "step" in event:
        callbacks.on_step(StepReport.model_validate_json(json.dumps(event["step"])))
    elif "checkpoint" in event:
        callbacks.on_checkpoint(event["checkpoint"])
    elif "numerics" in event:
        callbacks.on_numerics(event["numerics"])
    else:
        callbacks.on_notice(event["notice"])


def _result_from_json(result: dict[str, Any]) -> TrainingResult:
    timeline = result["timeline"]
    events = tuple(Event(**{**event, "waited_for": tuple(event["waited_for"])}) for event in timeline["events"])
    memory = tuple(MemorySample(**sample) for sample in timeline["memory"])
    return TrainingResult(
        report=Report.model_validate_json(json.dumps(result["report"])),
        timeline=Timeline(
            rank_names=tuple(timeline["rank_names"]),
            duration_s=timeline["duration_s"],
            events=events,
            memory=memory,
            limit_bytes=tuple(timeline["limit_bytes"]),
        ),
        unsaved=result["unsaved"],
    )
