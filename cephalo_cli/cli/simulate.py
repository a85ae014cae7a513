"""``cephalo simulate``: what a plan will do, before anything runs."""

from typing import TYPE_CHECKING, Annotated

import typer

from cephalo_cli.cli.options import Force, Json, OutputPath, Quiet

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["NAME", "SUMMARY", "command"]

NAME = "simulate"
SUMMARY = "Play a plan's step out before anything runs."


def command(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan file; - reads standard input.")],
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
    """Play a plan's step out: who computes, who waits, who fills up, and what the step is bound by.

    Example: cephalo simulate plans/laptop.json --trace step.trace.json --plot step.png -o simulated.json
    """
    from cephalo_cli.artifacts import Plan, store
    from cephalo_cli.cli.output import Output
    from cephalo_cli.simulator import simulate

    out = Output(json=json, quiet=quiet, path=output)
    for path in (output, trace, plot):
        if path is not None:
            store.check_writable(path, force=force)
    wanted, source = store.read_input(plan, Plan)
    with out.progress("simulating"):
        run = simulate(wanted, inputs=(source,))

    if trace is not None:
        from cephalo_cli.reporting import write_trace

        write_trace(run.timeline, trace, force=force)
    if plot is not None:
        from cephalo_cli.reporting import plot_step

        plot_step(run.timeline, plot, force=force)

    def tables() -> "list[RenderableType]":
        from cephalo_cli.reporting import artifact_tables

        return artifact_tables(run.report)

    out.artifact(run.report, tables, force=force)
    out.hint(f"cephalo train {plan} --data python-stdlib --steps 20 -o measured.json")
