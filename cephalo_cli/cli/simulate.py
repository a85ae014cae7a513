"""``cephalo simulate``: what a plan will do, before anything runs, and what would help."""

import contextlib
import json as json_text
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from cephalo_cli.cli.options import Force, Json, OutputPath, Quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cephalo_cli.artifacts import Plan, Report
    from cephalo_cli.artifacts.base import InputFile
    from cephalo_cli.cli.output import Output
    from cephalo_cli.simulator import SimulatedRun

__all__ = ["EXAMPLES", "NAME", "SUMMARY", "command"]

NAME = "simulate"
SUMMARY = "Play a plan's step out before anything runs."
EXAMPLES = (
    "cephalo simulate plans/laptop-mixed.json --plot step.png -o simulated.json",
    "cephalo simulate plans/home-lab.json --sweep nodes.tower.link.bandwidth_bytes_per_s=1x,2x,10x",
    "cephalo simulate plans/laptop-mixed.json --set devices.cpu-80.speed=2x --straggler 3:1.3",
)


def command(
    plans: Annotated[
        list[str],
        typer.Argument(metavar="PLAN", help="A plan file, or several to compare; - reads standard input."),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="What if: devices.p40.speed=2x, device_types.p40.memory_bytes=48GiB,"
            " nodes.tower.link.bandwidth_bytes_per_s=48GB/s (of plans/home-lab.json). May be repeated.",
        ),
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="PATH=A,B,C", help="What if, for several values: a table, CSV and picture.")
    ] = None,
    csv: Annotated[str | None, typer.Option(metavar="FILE.csv", help="With --sweep: write its table.")] = None,
    jitter: Annotated[
        float | None, typer.Option(metavar="SIGMA", help="Random spread of compute times (of their logarithm).")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", min=0, help="With --jitter: seed of the spread.")] = None,
    straggler: Annotated[
        list[str] | None, typer.Option(metavar="RANK:FACTOR", help="A rank that computes more slowly, such as 3:1.3.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="TRACE.json", help="Write the step as a trace that Perfetto opens.")
    ] = None,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE.png|svg", help="Draw the step and the memory of every rank.")
    ] = None,
    output: OutputPath = None,
    json: Json = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Play a plan's step out: who computes, who waits, who fills up, and what the step is bound by."""
    from cephalo_cli.artifacts import Plan, store
    from cephalo_cli.cli.output import Output
    from cephalo_cli.simulator import simulate

    out = Output(json=json, quiet=quiet, path=output)
    one = len(plans) == 1 and sweep is None
    _refuse(plans.count("-") > 1, "standard input can be read once", "give - once")
    _refuse(csv is not None and sweep is None, "--csv has no effect without --sweep", "leave it out")
    _refuse(seed is not None and jitter is None, "--seed has no effect without --jitter", "leave it out")
    _refuse(
        sweep is not None and bool(jitter or straggler),
        "--sweep stands without --jitter and --straggler",
        "leave one out",
    )
    _refuse(sweep is not None and len(plans) > 1, "--sweep takes one plan", "sweep the plans one by one")
    _refuse(not one and bool(output or trace), "-o and --trace are for one plan and one run", "leave them out")
    for path in filter(None, (output, trace, plot, csv)):
        store.check_writable(path, force=force)
    read = [store.read_input(path, Plan) for path in plans]
    if sweep is not None:
        _show_sweep(out, read[0], sweep, changes or (), csv=csv, plot=plot, force=force)
        return
    slow = dict(map(_straggler, straggler or ()))
    with out.progress("simulating"):
        runs = [
            simulate(
                plan,
                changes=changes or (),
                jitter_sigma=jitter or 0.0,
                seed=seed or 0,
                stragglers=slow,
                inputs=(source,),
            )
            for plan, source in read
        ]
    if not one:
        _show_several(out, [run.report for run in runs], plans, plot=plot, force=force)
        return
    _show_one(out, runs[0], trace=trace, plot=plot, force=force)
    if plans[0] != "-" and not changes:
        _name_next(out, read[0][0], plans[0], fits=not runs[0].shortfalls)


def _name_next(out: "Output", plan: "Plan", path: str, *, fits: bool) -> None:
    """Name the command that trains with the plan, or for one that does not fit, that plans again."""
    from cephalo_cli.cli.launching import training_commands, unused

    if not fits:
        batch = f"--batch-size {plan.global_batch_size}"
        out.hint(f"cephalo plan {shlex.quote(_profile_of(plan))} {batch} -o {unused('plan.json')}")
        return
    for command in training_commands(plan, path, output=unused("measured.json")):
        out.hint(command)


def _profile_of(plan: "Plan") -> str:
    """The profile that a plan was made from, where it is still there."""
    from cephalo_cli.artifacts import Profile, store
    from cephalo_cli.errors import ArtifactError

    for source in plan.inputs:
        with contextlib.suppress(ArtifactError):
            store.read(source.path, Profile)
            return source.path
    return "PROFILE"


def _refuse(contradicts: bool, message: str, hint: str) -> None:  # noqa: FBT001  (reads as a sentence)
    from cephalo_cli.errors import UsageError

    if contradicts:
        raise UsageError(message, hint=hint)


def _show_one(out: "Output", run: "SimulatedRun", *, trace: str | None, plot: str | None, force: bool) -> None:
    from cephalo_cli.reporting import artifact_tables, plot_step, write_trace

    if trace is not None:
        write_trace(run.timeline, trace, force=force)
    if plot is not None:
        plot_step(run.timeline, plot, force=force)
    out.artifact(run.report, lambda: artifact_tables(run.report), force=force)
    for shortfall in run.shortfalls:
        out.note(f"does not fit: {shortfall}")


def _show_several(out: "Output", reports: "list[Report]", plans: list[str], *, plot: str | None, force: bool) -> None:
    from cephalo_cli.reporting import compare, plot_artifact

    if plot is not None:
        plot_artifact(reports, plot, names=plans, force=force)
    comparison = compare(reports, plans)
    out.data(lambda: json_text.dumps(comparison.rows, indent=2) + "\n", comparison.tables)


def _show_sweep(
    out: "Output",
    read: "tuple[Plan, InputFile]",
    sweep: str,
    changes: "Sequence[str]",
    *,
    csv: str | None,
    plot: str | None,
    force: bool,
) -> None:
    from cephalo_cli.artifacts import store
    from cephalo_cli.reporting import Sweep
    from cephalo_cli.simulator import sweep as play_sweep

    plan, source = read
    with out.progress("simulating"):
        played = play_sweep(plan, sweep, changes=changes, inputs=(source,))
    shown = Sweep(changes=tuple(change for change, _ in played), reports=tuple(run.report for _, run in played))
    if csv is not None:
        store.write_text(shown.csv(), csv, force=force)
    if plot is not None:
        shown.plot(plot, force=force)
    out.data(lambda: json_text.dumps(shown.rows, indent=2) + "\n", shown.tables)


def _straggler(text: str) -> tuple[int, float]:
    from cephalo_cli.errors import UsageError

    rank, _, factor = text.partition(":")
    try:
        return int(rank), float(factor)
    except ValueError as error:
        raise UsageError(f"{text!r} is not RANK:FACTOR", where="--straggler", hint="write it like 3:1.3") from error
