"""``cephalo plan``: who computes how much and who stores how much, proven best."""

from typing import Annotated, Literal

import typer

from cephalo_cli.cli.options import (
    LARGEST_INTEGER,
    Dtype,
    Force,
    Json,
    Lora,
    Optimizer,
    OutputPath,
    Quiet,
    RecomputeChoice,
    SwitchChoice,
)

__all__ = ["EXAMPLES", "NAME", "SUMMARY", "command"]

NAME = "plan"
SUMMARY = "Find the fastest plan that fits, and prove it."
EXAMPLES = (
    "cephalo plan profiles/laptop-mixed.json --batch-size 32 -o plan.json",
    "cephalo plan --gpus rtx-3090:2,rtx-4090,p40:2 --model llama-3b --seq-len 2048 --batch-size 64",
    "cephalo plan profiles/home-lab.json -b auto --explain",
)


def command(
    profile: Annotated[
        str | None, typer.Argument(metavar="PROFILE", help="A profile file; - reads standard input.")
    ] = None,
    batch_size: Annotated[
        str | None,
        typer.Option(
            "--batch-size",
            "-b",
            metavar="N|auto|max",
            help="Samples of a step over the whole cluster; auto: best throughput, max: largest that fits.",
        ),
    ] = None,
    max_batch_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=LARGEST_INTEGER,
            help="With --batch-size auto or max: the largest to consider; 1024 if absent.",
        ),
    ] = None,
    strategy: Annotated[
        Literal["cephalo", "fsdp", "compute-balanced", "memory-balanced", "whale", "poplar", "all"],
        typer.Option(
            help="How to split work and state. all: shows cephalo's, with the others as its alternatives, "
            "and with -o FILE writes FILE.STRATEGY.json for each that fits."
        ),
    ] = "cephalo",
    objective: Annotated[
        Literal["time", "cost"], typer.Option(help="cost: the least currency a token, by price_per_hour.")
    ] = "time",
    drop_devices: Annotated[
        bool, typer.Option("--drop-devices", help="Leave out devices that only slow the others down.")
    ] = False,
    memory_fraction: Annotated[
        float, typer.Option(metavar="X", help="Fraction of each device's memory a plan may use.")
    ] = 0.9,
    reserve: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory kept free on every rank, such as 2GiB; the profile's own if absent."),
    ] = None,
    recompute: Annotated[
        RecomputeChoice,
        typer.Option(
            help="Activation checkpointing: auto decides per rank, all blocks or none; blocks also decides how many, "
            "which takes longer to search."
        ),
    ] = "auto",
    offload: Annotated[SwitchChoice, typer.Option(help="Boundary activations in host memory: decided or forced.")] = (
        "auto"
    ),
    keep_unsharded: Annotated[
        str,
        typer.Option(
            metavar="off|auto|N",
            help="How many blocks stay unsharded from forward to backward on all ranks: memory for fewer gathers; "
            "auto decides, which takes longer to search.",
        ),
    ] = "off",
    microbatch_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=LARGEST_INTEGER,
            help="The only microbatch size allowed (a last, smaller one excepted).",
        ),
    ] = None,
    optimizer: Annotated[
        Optimizer, typer.Option(help="Whose moments must fit: two numbers a parameter for adamw, none for sgd.")
    ] = "adamw",
    momentum: Annotated[
        float, typer.Option(metavar="X", help="With --optimizer sgd: above 0, one number a parameter.")
    ] = 0.0,
    optimizer_in_backward: Annotated[
        bool,
        typer.Option(
            "--optimizer-in-backward",
            help="Plan for train --optimizer-in-backward, which holds gradients of one unit instead of all.",
        ),
    ] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Return the best plan found by then, with its gap; 30 for auto and max."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what binds on each rank and what changes would gain, planned again.")
    ] = False,
    check: Annotated[
        str | None, typer.Option(metavar="PLAN", help="Verify a plan file from its own content, and do nothing else.")
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Instead of PROFILE: catalog devices, estimated; such as l4:2,p40."),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="With --gpus: the model.")] = None,
    seq_len: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=LARGEST_INTEGER, help="With --gpus: tokens of one sample.")
    ] = None,
    dtype: Annotated[Dtype | None, typer.Option(help="With --gpus: compute dtype; if absent one that all run.")] = None,
    lora: Lora = None,
    output: OutputPath = None,
    json: Json = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Find the fastest plan that fits, prove it, and say what to expect."""
    from cephalo_cli.cli.output import Output
    from cephalo_cli.cli.planning import Question, check_file

    out = Output(json=json, quiet=quiet, path=output)
    if check is not None:
        check_file(out, check, alone=profile is None and gpus is None and batch_size is None)
        return
    Question(
        profile=profile,
        gpus=gpus,
        model=model,
        seq_len=seq_len,
        dtype=dtype,
        lora=lora,
        batch_size=batch_size,
        max_batch_size=max_batch_size,
        strategy=strategy,
        objective=objective,
        drop_devices=drop_devices,
        memory_fraction=memory_fraction,
        reserve=reserve,
        recompute=recompute,
        offload=offload,
        keep_unsharded=keep_unsharded,
        microbatch_size=microbatch_size,
        optimizer=optimizer,
        momentum=momentum,
        optimizer_in_backward=optimizer_in_backward,
        time_limit=time_limit,
        explain=explain,
    ).answer(out, force=force)
