"""``cephalo train``: run a plan with real tensors."""

from typing import Annotated

import typer

from cephalo_cli.cli.options import (
    Dtype,
    Engine,
    Force,
    Json,
    LrSchedule,
    OnNonfinite,
    Optimizer,
    OutputPath,
    Quiet,
    TokenDtype,
)

__all__ = ["EXAMPLES", "NAME", "SUMMARY", "command"]

NAME = "train"
SUMMARY = "Train with a plan."
EXAMPLES = (
    "cephalo train plans/laptop-mixed.json --data python-stdlib --steps 20 -o measured.json",
    ("torchrun --nproc-per-node 4 --no-python cephalo train plans/laptop-mixed.json --data python-stdlib --steps 20"),
)


def command(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan file; - reads standard input.")],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="A text file or folder, .jsonl or .parquet (text, or prompt and completion), a .bin or .npy token "
            "file, a folder of images, python-stdlib (the running Python's text), random.",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|DIR", help="A tokenizer.json, or a folder that has one; without it bytes are tokens."
        ),
    ] = None,
    end_token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN", help="What ends documents: a text with --tokenizer (its eos_token if absent), else an id."
        ),
    ] = None,
    document_mask: Annotated[
        bool | None,
        typer.Option(
            "--document-mask/--no-document-mask",
            help="Keep documents in one sample apart; the default where an end token is known.",
        ),
    ] = None,
    mask_token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN", help="bert: what stands for a masked token, as --end-token; 256 for bytes if absent."
        ),
    ] = None,
    mask_rate: Annotated[
        float | None, typer.Option(metavar="X", help="bert: part of the tokens to be found; 0.15 if absent.")
    ] = None,
    cache_dir: Annotated[
        str,
        typer.Option(metavar="DIR", envvar="CEPHALO_CACHE_DIR", help="Where tokenised data is kept for the next time."),
    ] = "~/.cache/cephalo",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Tokenise anew, and keep nothing.")] = False,
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of the last step; a resumed run does what is left, if anything."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="For a plan of a model of one's own: its code, which is run."),
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="cephalo follows the plan; fsdp2 and ddp train the same through PyTorch's own.")
    ] = "cephalo",
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Seed of weights, sample order and dropout; 0, or the checkpoint's."),
    ] = None,
    optimizer: Annotated[Optimizer, typer.Option(help="torch.optim's AdamW or SGD.")] = "adamw",
    lr: Annotated[float, typer.Option("--lr", metavar="X", help="Learning rate, or its peak.")] = 3e-4,
    lr_schedule: Annotated[
        LrSchedule, typer.Option(help="How the learning rate goes on after the warm-up.")
    ] = "constant",
    warmup_steps: Annotated[int, typer.Option(metavar="N", min=0, help="Steps in which the learning rate climbs.")] = 0,
    min_lr: Annotated[float, typer.Option(metavar="X", help="What cosine and linear reach with the last step.")] = 0.0,
    momentum: Annotated[float, typer.Option(metavar="X", help="Momentum of SGD.")] = 0.0,
    weight_decay: Annotated[
        float, typer.Option(metavar="X", help="Decay of matrices; norms and biases never decay.")
    ] = 0.1,
    clip: Annotated[float, typer.Option(metavar="X", help="Largest norm of the whole gradient; 0 never clips.")] = 1.0,
    dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="Compute dtype: float32, bfloat16, float16 or float64.")
    ] = None,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Run blocks through torch.compile; the first three steps do not count.")
    ] = False,
    optimizer_in_backward: Annotated[
        bool,
        typer.Option(
            "--optimizer-in-backward", help="Update a unit as soon as its gradient is reduced; with --clip 0."
        ),
    ] = False,
    on_nonfinite: Annotated[
        OnNonfinite, typer.Option(help="When loss or gradient is not finite on any rank: stop, or skip the update.")
    ] = "stop",
    token_dtype: Annotated[TokenDtype | None, typer.Option(help="Dtype of a .bin file; uint16 if absent.")] = None,
    data_mask: Annotated[
        str | None,
        typer.Option(metavar="FILE.npy", help="One number a token of a token file: 0 counts nothing as a target."),
    ] = None,
    drop_last: Annotated[
        bool, typer.Option("--drop-last", help="Leave out an epoch's short last batch instead of training it.")
    ] = False,
    validation_fraction: Annotated[
        float, typer.Option(metavar="X", help="Part of the data, at its end, that is kept for validation.")
    ] = 0.0,
    validate_every: Annotated[int | None, typer.Option(metavar="N", min=1, help="Steps between validations.")] = None,
    validation_steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Most batches of one validation.")
    ] = None,
    even_split: Annotated[
        bool, typer.Option("--even-split", help="fsdp2 and ddp: split the batch evenly instead of as planned.")
    ] = False,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="With --even-split: recompute activations in the backward pass.")
    ] = False,
    microbatch_size: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="With --even-split: samples of a microbatch; one microbatch if absent."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Start from the weights of a Hugging Face folder (safetensors) instead of drawn ones."
        ),
    ] = None,
    export: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write the trained weights as a folder that transformers loads.")
    ] = None,
    export_dtype: Annotated[
        Dtype | None,
        typer.Option(help="With --export: dtype of the weights; that of --weights, or float32, if absent."),
    ] = None,
    checkpoint_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where checkpoints go; one is saved at the end.")
    ] = None,
    checkpoint_every: Annotated[int | None, typer.Option(metavar="N", min=1, help="Steps between checkpoints.")] = None,
    keep: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many checkpoints stay; all if absent.")
    ] = None,
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
    tensorboard: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write TensorBoard scalars; needs the package tensorboard.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show each rank's layout, bytes and schedule; start nothing.")
    ] = False,
    memory_limit: Annotated[
        bool, typer.Option("--memory-limit/--no-memory-limit", help="Hold emulated devices to their memory.")
    ] = True,
    elastic: Annotated[
        bool,
        typer.Option(
            "--elastic",
            help="Under torchrun: plan again if the devices have changed, and go on from the last checkpoint.",
        ),
    ] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long a rank may wait for another.")] = 600.0,
    output: OutputPath = None,
    json: Json = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Train: the loss is that of one big device, whatever the plan.

    Starts the plan's ranks on this host; under torchrun (or any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT) each process is one rank.
    """
    from cephalo_cli.cli.training import Training

    Training(
        plan=plan,
        data=data,
        steps=steps,
        checkpoint_dir=checkpoint_dir,
        resume=resume,
        trace=trace,
        metrics=metrics,
        tensorboard=tensorboard,
        dry_run=dry_run,
        memory_limit=memory_limit,
        elastic=elastic,
        timeout_s=timeout,
        output=output,
        json=json,
        quiet=quiet,
        force=force,
    ).run(
        engine=engine,
        model=model,
        seed=seed,
        dtype=dtype,
        optimizer=optimizer,
        learning_rate=lr,
        lr_schedule=lr_schedule,
        warmup_steps=warmup_steps,
        min_lr=min_lr,
        momentum=momentum,
        weight_decay=weight_decay,
        clip=clip or None,
        compile=compile_,
        optimizer_in_backward=optimizer_in_backward,
        on_nonfinite=on_nonfinite,
        tokenizer=tokenizer,
        end_token=end_token,
        document_mask=document_mask,
        mask_token=mask_token,
        mask_rate=mask_rate,
        cache_dir=None if no_cache else cache_dir,
        token_dtype=token_dtype,
        data_mask=data_mask,
        drop_last=drop_last,
        validation_fraction=validation_fraction,
        validate_every=validate_every,
        validation_steps=validation_steps,
        weights=weights,
        export=export,
        export_dtype=export_dtype,
        checkpoint_every=checkpoint_every,
        keep=keep,
        async_checkpoint=async_checkpoint,
        even_split=even_split,
        recompute=recompute,
        microbatch_size=microbatch_size,
    )
