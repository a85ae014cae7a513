"""``cephalo plan``: who computes how much and who stores how much, proven best."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cephalo_cli.cli.options import Force, Json, OutputPath, Quiet, SwitchChoice

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["NAME", "SUMMARY", "command"]

NAME = "plan"
SUMMARY = "Find the fastest plan that fits, and prove it."


def command(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="A profile file; - reads standard input.")],
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", min=1, help="Samples of one step over the whole cluster.")
    ],
    strategy: Annotated[
        Literal["cephalo", "fsdp", "compute-balanced", "memory-balanced", "whale", "poplar"],
        typer.Option(help="How to split work and state; the others are shown beside it."),
    ] = "cephalo",
    memory_fraction: Annotated[float, typer.Option(help="Fraction of each device's memory a plan may use.")] = 0.9,
    reserve: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory kept free on every rank, such as 2GiB; the profile's own if absent."),
    ] = None,
    recompute: Annotated[SwitchChoice, typer.Option(help="Activation checkpointing: decided per rank, or forced.")] = (
        "auto"
    ),
    offload: Annotated[SwitchChoice, typer.Option(help="Boundary activations in host memory: decided or forced.")] = (
        "auto"
    ),
    microbatch_size: Annotated[
        int | None, typer.Option(min=1, help="The only microbatch size allowed (a last, smaller one excepted).")
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Return the best plan found by then, with its true gap.")
    ] = None,
    output: OutputPath = None,
    json: Json = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Find the fastest plan that fits, prove it, and say what to expect.

    Example: cephalo plan profiles/laptop.json --batch-size 32 -o plans/laptop.json
    """
    from cephalo_cli.artifacts import Profile, store
    from cephalo_cli.artifacts.plan import PlanSettings
    from cephalo_cli.cli.output import Output
    from cephalo_cli.errors import UsageError
    from cephalo_cli.planner import make_plan
    from cephalo_cli.quantities import parse_bytes

    out = Output(json=json, quiet=quiet, path=output)
    if not 0.0 < memory_fraction <= 1.0:
        raise UsageError(f"--memory-fraction is {memory_fraction:g}, expected a number above 0 and at most 1")
    if time_limit is not None and time_limit <= 0:
        raise UsageError(f"--time-limit is {time_limit:g}, expected seconds above 0")
    if recompute == "off" and offload == "on":
        raise UsageError("--offload on needs recompute", hint="leave out --recompute off")
    if output is not None:
        store.check_writable(output, force=force)
    basis, source = store.read_input(profile, Profile)
    settings = PlanSettings(
        memory_fraction=memory_fraction,
        reserve_bytes=None if reserve is None else parse_bytes(reserve),
        recompute=recompute,
        offload=offload,
        microbatch_size=microbatch_size,
    )
    with out.progress("planning"):
        plan = make_plan(
            basis,
            batch_size,
            strategy=strategy,
            settings=settings,
            time_limit_s=time_limit,
            inputs=(source,),
        )

    def tables() -> "list[RenderableType]":
        from cephalo_cli.reporting import artifact_tables

        return artifact_tables(plan)

    out.artifact(plan, tables, force=force)
    if output not in (None, "-"):
        out.hint(f"cephalo simulate {output}   or   cephalo train {output} --data python-stdlib --steps 20")
