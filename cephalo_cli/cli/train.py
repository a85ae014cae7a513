"""``cephalo train``: run a plan with real tensors."""

from typing import TYPE_CHECKING, Annotated

import typer

from cephalo_cli.cli.options import Engine, Force, Json, OutputPath, Quiet

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Literal

    from rich.console import RenderableType

    from cephalo_cli.artifacts import Plan
    from cephalo_cli.artifacts.report import StepReport

__all__ = ["NAME", "SUMMARY", "command"]

NAME = "train"
SUMMARY = "Train with a plan."


def command(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan file; - reads standard input.")],
    data: Annotated[
        str,
        typer.Option(
            metavar="SOURCE", help="A text file or folder, python-stdlib (the running Python's text), random."
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, help="Number of the last step; a resumed run does what is left.")],
    engine: Annotated[
        Engine, typer.Option(help="cephalo follows the plan; fsdp2 and ddp train the same through PyTorch's own.")
    ] = "cephalo",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of weights, sample order and dropout; 0, or the checkpoint's.")
    ] = None,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate of AdamW.")] = 3e-4,
    weight_decay: Annotated[float, typer.Option(help="Decay of matrices; norms and biases never decay.")] = 0.1,
    clip: Annotated[float, typer.Option(help="Largest norm of the whole gradient; 0 never clips.")] = 1.0,
    dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="Compute dtype: float32, bfloat16, float16 or float64.")
    ] = None,
    even_split: Annotated[
        bool, typer.Option("--even-split", help="fsdp2 and ddp: split the batch evenly instead of as planned.")
    ] = False,
    microbatch_size: Annotated[
        int | None, typer.Option(min=1, help="With --even-split: samples of a microbatch; one microbatch if absent.")
    ] = None,
    checkpoint_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where checkpoints go; one is saved at the end.")
    ] = None,
    checkpoint_every: Annotated[int | None, typer.Option(min=1, help="Steps between checkpoints.")] = None,
    keep: Annotated[int | None, typer.Option(min=1, help="How many checkpoints stay; all if absent.")] = None,
    async_checkpoint: Annotated[
        bool | None,
        typer.Option(
            "--async-checkpoint/--no-async-checkpoint",
            help="Go on training during a save, from a copy in host memory; the default for accelerators.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="DIR|latest", help="Go on from a checkpoint; latest looks in --checkpoint-dir."),
    ] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="TRACE.json", help="Write the last step as a trace that Perfetto opens.")
    ] = None,
    metrics: Annotated[str | None, typer.Option(metavar="FILE.jsonl", help="Write one JSON line a step.")] = None,
    memory_limit: Annotated[
        bool, typer.Option("--memory-limit/--no-memory-limit", help="Hold emulated devices to their memory.")
    ] = True,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long a rank may wait for another.")] = 600.0,
    output: OutputPath = None,
    json: Json = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Train: the loss is that of one big device, whatever the plan.

    Starts the plan's ranks on this host; under torchrun (or any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT) each process is one rank.

    Example: cephalo train plans/laptop.json --data python-stdlib --steps 20 -o measured.json
    """
    import os
    from contextlib import ExitStack

    from cephalo_cli.artifacts import Plan, store
    from cephalo_cli.cli.output import Output
    from cephalo_cli.cli.settings import train_options
    from cephalo_cli.errors import TrainingError, UsageError
    from cephalo_cli.executor import Callbacks, run_training
    from cephalo_cli.runtime.launch import external_launcher

    external = external_launcher(os.environ)
    speaks = external is None or external.rank == 0
    out = Output(json=json, quiet=quiet or not speaks, path=output)
    if timeout <= 0:
        raise UsageError(f"--timeout is {timeout:g}, expected seconds above 0")
    if speaks:
        for path in (output, trace, metrics):
            if path is not None:
                store.check_writable(path, force=force)
    wanted, source = store.read_input(plan, Plan)
    options = train_options(
        data=data,
        num_steps=steps,
        engine=engine,
        seed=seed,
        dtype=dtype,
        learning_rate=lr,
        weight_decay=weight_decay,
        clip=clip or None,
        checkpoint_dir=checkpoint_dir,
        checkpoint_every=checkpoint_every,
        keep=keep,
        async_checkpoint=async_checkpoint,
        resume=resume,
        even_split=even_split,
        microbatch_size=microbatch_size,
    )
    with ExitStack() as stack:
        lines = stack.enter_context(_open_new(metrics)) if metrics is not None and speaks else None
        advance = stack.enter_context(out.progress("training"))
        result = run_training(
            wanted,
            options,
            Callbacks(
                on_step=_each_step(wanted, steps, engine, out.note, advance, lines),
                on_checkpoint=lambda path: out.note(f"saved {path}"),
                on_notice=out.note,
            ),
            external=external,
            enforce_memory=memory_limit,
            timeout_s=timeout,
        )
    if result is None:
        return
    report = result.report.model_copy(update={"inputs": (source,)})
    if trace is not None:
        from cephalo_cli.reporting import write_trace

        write_trace(result.timeline, trace, force=force)

    def tables() -> "list[RenderableType]":
        from cephalo_cli.reporting import artifact_tables

        return artifact_tables(report)

    out.artifact(report, tables, force=force)
    if output not in (None, "-"):
        out.hint(f"cephalo show {plan} {output}")
    if result.unsaved is not None:
        raise TrainingError(f"all steps are done, but {result.unsaved}")


def _open_new(path: str) -> "IO[str]":
    from pathlib import Path

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return Path(path).open("w", encoding="utf-8")


def _each_step(
    plan: "Plan",
    num_steps: int,
    engine: 'Literal["cephalo", "fsdp2", "ddp"]',
    note: "Callable[[str], None]",
    advance: "Callable[[float, str], None]",
    lines: "IO[str] | None",
) -> "Callable[[StepReport], None]":
    """Say one line a step, move the progress bar, and write one JSON line a step."""
    import json

    from cephalo_cli.quantities import format_rate, format_seconds

    expected = f", {format_seconds(plan.expected.step_s)} planned" if engine == "cephalo" else ""

    def tell(step: "StepReport") -> None:
        loss = "none" if step.loss is None else f"{step.loss:.4f}"
        norm = "none" if step.grad_norm is None else f"{step.grad_norm:.3f}"
        rate = format_rate(step.tokens / step.step_s, "tokens") if step.step_s else "-"
        took = format_seconds(step.step_s)
        advance(step.step / num_steps, f"step {step.step}/{num_steps}")
        note(f"step {step.step}/{num_steps}  loss {loss}  gradient {norm}  {rate}  {took}{expected}")
        if lines is not None:
            lines.write(json.dumps(step.model_dump(mode="json")) + "\n")
            lines.flush()

    return tell
