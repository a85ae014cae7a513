"""What a training is asked for, what it hands back, and what is refused before anything starts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from cephalo_cli.artifacts.base import DType, NonNegativeInt, PositiveFloat, PositiveInt, Value
from cephalo_cli.artifacts.plan import Plan
from cephalo_cli.artifacts.report import Report, StepReport
from cephalo_cli.errors import UsageError
from cephalo_cli.schedule import Record
from cephalo_cli.timeline import Timeline

__all__ = ["Callbacks", "Engine", "TrainOptions", "TrainingResult", "check_options", "microbatch_split"]

Engine = Literal["cephalo", "fsdp2", "ddp"]
TRAINABLE_FAMILIES = ("gpt", "llama")
"""Families that `cephalo_cli.models` has modules for; told here so that nothing need load torch to refuse."""
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class TrainOptions(Value):
    """What a training is asked for."""

    data: str
    """Where tokens come from, see `cephalo_cli.executor.data.open_source`."""
    num_steps: PositiveInt
    """Number of the last step, counted from the start of the training: a resumed run does the rest."""
    engine: Engine = "cephalo"
    """cephalo follows the plan; fsdp2 and ddp run the same model, data and microbatches through PyTorch's own."""
    seed: NonNegativeInt | None = None
    """Seed of weights, sample order and dropout; when absent the resumed checkpoint's, else 0."""
    dtype: DType | None = None
    """Compute dtype; the plan's when absent."""
    learning_rate: PositiveFloat = 3e-4
    """Constant learning rate of AdamW."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.1
    """Decoupled decay of matrices; gains and biases never decay."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Decay rates of AdamW's moments."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
    clip: PositiveFloat | None = 1.0
    """Largest norm of the whole gradient; null never clips."""
    checkpoint_dir: str | None = None
    """Where checkpoints go; one is saved at the end."""
    checkpoint_every: PositiveInt | None = None
    """Steps between checkpoints."""
    keep: PositiveInt | None = None
    """How many checkpoints stay; all of them when absent."""
    async_checkpoint: bool | None = None
    """Whether training goes on during a save; when absent where a copy for it does not take device memory."""
    resume: str | None = None
    """A checkpoint, a folder of checkpoints, or ``latest``."""
    even_split: bool = False
    """fsdp2 and ddp: split the global batch evenly over the ranks instead of as planned."""
    microbatch_size: PositiveInt | None = None
    """With ``even_split``: samples of a microbatch; one microbatch a rank when absent."""


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Whom to tell."""

    on_step: Callable[[StepReport], None] = lambda _: None
    """Told after each step (rank 0)."""
    on_checkpoint: Callable[[str], None] = lambda _: None
    """Told the path of each saved checkpoint (rank 0)."""
    on_notice: Callable[[str], None] = lambda _: None
    """Told what a person should know, in one sentence."""
    on_record: Callable[[Record], None] = lambda _: None
    """Told each record when it is run (every rank; engine cephalo)."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a training hands back."""

    report: Report
    """What it did."""
    timeline: Timeline
    """The last step on all ranks."""
    unsaved: str | None = None
    """Why the last checkpoint could not be written, if it could not."""


def microbatch_split(plan: Plan, options: TrainOptions) -> list[list[int]]:
    """Microbatch sizes of every rank: the plan's, or an even split of the global batch."""
    if not options.even_split:
        return [list(rank.microbatch_sizes) for rank in plan.ranks]
    num_ranks = len(plan.ranks)
    base, extra = divmod(plan.global_batch_size, num_ranks)
    split = []
    for rank in range(num_ranks):
        num_samples = base + (rank < extra)
        size = options.microbatch_size or max(num_samples, 1)
        full, rest = divmod(num_samples, size)
        split.append([size] * full + ([rest] if rest else []))
    return split


def check_options(plan: Plan, options: TrainOptions) -> None:
    """Refuse what cannot be trained, or an option that would have no effect.

    Raises:
        UsageError: With the option or the field of the plan.
    """
    _check_plan(plan)
    if options.engine == "cephalo":
        _refuse(options.even_split, "--even-split is for --engine fsdp2 and ddp; cephalo follows the plan")
    else:
        _check_torch_engine(plan, options)
    _refuse(
        options.microbatch_size is not None and not options.even_split,
        "--microbatch-size needs --even-split; otherwise the plan's microbatches are used",
    )
    _refuse(
        options.checkpoint_every is not None and options.checkpoint_dir is None,
        "--checkpoint-every needs --checkpoint-dir",
    )
    _refuse(options.keep is not None and options.checkpoint_dir is None, "--keep needs --checkpoint-dir")
    _refuse(
        options.async_checkpoint is not None and options.checkpoint_dir is None,
        "--async-checkpoint and --no-async-checkpoint need --checkpoint-dir",
    )
    _refuse(
        options.resume == "latest" and options.checkpoint_dir is None,
        "--resume latest needs --checkpoint-dir to look in",
    )


def _check_plan(plan: Plan) -> None:
    if plan.model.family not in TRAINABLE_FAMILIES:
        raise UsageError(
            f"models of family {plan.model.family!r} can be planned and simulated, but not trained yet",
            where="model.family",
            hint=f"{' and '.join(TRAINABLE_FAMILIES)} models can be trained",
        )
    longest = plan.model.max_seq_len
    if longest is not None and plan.seq_len > longest:
        raise UsageError(
            f"the plan's sequences have {plan.seq_len} tokens, model {plan.model.name} takes at most {longest}",
            where="seq_len",
        )
    if plan.num_frozen_parameters:
        raise UsageError(
            f"{plan.num_frozen_parameters} parameters are frozen; training with frozen parameters is not built yet",
            where="num_frozen_parameters",
            hint="profile and plan without frozen parameters",
        )
    for rank in plan.ranks:
        where = f"ranks[{rank.rank}].offload"
        backend = plan.cluster.device_types[rank.device].backend
        if rank.offload and backend == "cpu":
            raise UsageError(
                "a cpu device's memory is host memory already", where=where, hint="plan with --offload off"
            )
        if rank.offload and not rank.recompute:
            raise UsageError("offloading needs recompute", where=where, hint="plan with --recompute auto or on")


def _check_torch_engine(plan: Plan, options: TrainOptions) -> None:
    engine = options.engine
    _refuse(
        options.checkpoint_dir is not None or options.resume is not None,
        f"checkpoints are those of --engine cephalo, {engine} has none",
    )
    _refuse(
        (options.dtype or plan.dtype) == "float16",
        f"float16 needs a scaled loss, which --engine {engine} does not have here",
        hint="use bfloat16 or float32, or --engine cephalo",
    )
    counts = [len(sizes) for sizes in microbatch_split(plan, options)]
    _refuse(
        min(counts) == 0,
        f"--engine {engine} needs samples on every rank, rank {counts.index(min(counts))} has none",
        hint="--even-split splits the batch evenly",
    )
    _refuse(
        engine == "fsdp2" and len(set(counts)) > 1,
        f"--engine fsdp2 gathers anew for each microbatch, so all ranks need the same number, found {counts}",
        hint="--even-split gives every rank one microbatch",
    )


def _refuse(condition: bool, message: str, *, hint: str | None = None) -> None:  # noqa: FBT001 - reads as a sentence
    if condition:
        raise UsageError(message, hint=hint)
