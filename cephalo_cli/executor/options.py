"""What a training is asked for, what it hands back, and what is refused before anything starts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from cephalo_cli.artifacts.base import DType, NonNegativeInt, PositiveFloat, PositiveInt
from cephalo_cli.artifacts.plan import OptimizerKind, Plan
from cephalo_cli.artifacts.report import Report, StepReport
from cephalo_cli.costmodel.memory import num_moments
from cephalo_cli.errors import UsageError
from cephalo_cli.executor.datasets.options import DataOptions, check_data_options
from cephalo_cli.executor.learning_rate import Schedule, learning_rate_at
from cephalo_cli.schedule import Record
from cephalo_cli.timeline import Timeline
from cephalo_cli.units import num_frozen_parameters

__all__ = [
    "Callbacks",
    "Engine",
    "OptimizerName",
    "TrainOptions",
    "TrainingResult",
    "check_options",
    "microbatch_split",
]

Engine = Literal["cephalo", "fsdp2", "ddp"]
OptimizerName = Literal["adamw", "sgd"]
ExportDtype = Literal["float32", "bfloat16", "float16"]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class TrainOptions(DataOptions):
    """What a training is asked for, that about its data included."""

    num_steps: PositiveInt
    """Number of the last step, counted from the start of the training: a resumed run does the rest, if there is any."""
    engine: Engine = "cephalo"
    """cephalo follows the plan; fsdp2 and ddp run the same model, data and microbatches through PyTorch's own."""
    model: str | None = None
    """``package.module:function`` of a plan whose model is one's own: agreement to run that code."""
    seed: NonNegativeInt | None = None
    """Seed of weights, sample order and dropout; when absent the resumed checkpoint's, else 0."""
    dtype: DType | None = None
    """Compute dtype; the plan's when absent."""
    optimizer: OptimizerName = "adamw"
    """torch.optim's AdamW or SGD, on the local shards."""
    learning_rate: PositiveFloat = 3e-4
    """Learning rate; with a warm-up or a schedule its peak."""
    lr_schedule: Schedule = "constant"
    """How the learning rate goes on after the warm-up, up to the last step."""
    warmup_steps: NonNegativeInt = 0
    """Steps in which the learning rate climbs to its peak."""
    min_lr: Annotated[float, Field(ge=0.0)] = 0.0
    """What cosine and linear reach with the last step."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.1
    """Decay of matrices; gains and biases never decay. Decoupled for AdamW, added to the gradient for SGD."""
    momentum: Fraction = 0.0
    """Momentum of SGD."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Decay rates of AdamW's moments."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
    clip: PositiveFloat | None = 1.0
    """Largest norm of the whole gradient; null never clips."""
    compile: bool = False
    """Whether blocks run through torch.compile, from the third step of a run on."""
    optimizer_in_backward: bool = False
    """Whether a unit is updated as soon as its gradient is reduced, before the whole gradient's norm is known."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What all ranks do in a step whose loss or gradient is not finite: end the training, or leave the update out."""
    weights: str | None = None
    """A Hugging Face folder whose weights training starts from; drawn from the seed when absent."""
    export: str | None = None
    """Where a Hugging Face folder with the trained weights goes."""
    export_dtype: ExportDtype | None = None
    """Dtype of exported weights; when absent that of ``weights``, else float32."""
    replace_export: bool = False
    """Whether a folder that is there already makes way for the exported one."""
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
    recompute: bool = False
    """With ``even_split``: recompute blocks; otherwise the plan says which ranks do."""
    microbatch_size: PositiveInt | None = None
    """With ``even_split``: samples of a microbatch; one microbatch a rank when absent."""

    @property
    def optimizer_kind(self) -> OptimizerKind:
        """What the optimizer is called where it matters which moments it keeps."""
        return "sgd with momentum" if self.momentum else self.optimizer

    def learning_rate_of(self, step: int) -> float:
        """Give the learning rate of a step, counted from 1."""
        return learning_rate_at(
            step,
            peak=self.learning_rate,
            schedule=self.lr_schedule,
            num_warmup_steps=self.warmup_steps,
            floor=self.min_lr,
            num_steps=self.num_steps,
        )


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Whom to tell."""

    on_step: Callable[[StepReport], None] = lambda _: None
    """Told after each step (rank 0)."""
    on_checkpoint: Callable[[str], None] = lambda _: None
    """Told the path of each saved checkpoint (rank 0)."""
    on_notice: Callable[[str], None] = lambda _: None
    """Told what a person should know, in one sentence."""
    on_numerics: Callable[[dict[str, str]], None] = lambda _: None
    """Told the dtypes in force, by purpose, before the first step (rank 0)."""
    on_memory: Callable[[int, int], None] = lambda _step, _bytes: None
    """Told the peak of a rank's memory after set-up (step 0), and after a step in which it has grown (every rank)."""
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
    _check_model(plan, options)
    _check_moments(plan, options)
    _check_numbers(options)
    check_data_options(options, plan.model.family)
    _refuse(options.compile and options.engine != "cephalo", "--compile is for --engine cephalo")
    _refuse(
        bool(plan.settings.optimizer_in_backward) and not options.optimizer_in_backward,
        "the plan holds the gradients of one unit, not of all",
        hint="train with --optimizer-in-backward --clip 0, or plan without --optimizer-in-backward",
    )
    if options.optimizer_in_backward:
        _check_early_updates(plan, options)
    if options.engine == "cephalo":
        _refuse(options.even_split, "--even-split is for --engine fsdp2 and ddp; cephalo follows the plan")
    else:
        _check_torch_engine(plan, options)
    _refuse(options.recompute and not options.even_split, "--recompute goes with --even-split; the plan says who does")
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
    _refuse(options.export_dtype is not None and options.export is None, "--export-dtype needs --export")
    _refuse(
        options.resume == "latest" and options.checkpoint_dir is None,
        "--resume latest needs --checkpoint-dir to look in",
    )


def _check_model(plan: Plan, options: TrainOptions) -> None:
    own = plan.model.own
    if own is None:
        _refuse(options.model is not None, f"--model is for plans of a model of one's own, this is {plan.model.name}")
        return
    _refuse(
        options.model is None,
        f"the plan is for a model of one's own, whose code would be run: {own.source}",
        hint=f"add --model {own.source} if you trust it",
    )
    _refuse(options.model != own.source, f"--model is {options.model}, the plan was made for {own.source}")
    _refuse(options.weights is not None or options.export is not None, "--weights and --export are for families")


def _check_plan(plan: Plan) -> None:
    longest = plan.model.max_seq_len
    if longest is not None and plan.seq_len > longest:
        raise UsageError(
            f"the plan's sequences have {plan.seq_len} tokens, model {plan.model.name} takes at most {longest}",
            where="seq_len",
        )
    frozen = num_frozen_parameters(plan.model)
    if plan.num_frozen_parameters != frozen:
        raise UsageError(
            f"the plan counts {plan.num_frozen_parameters} frozen parameters, its model has {frozen}",
            where="num_frozen_parameters",
            hint="the model's field frozen says which; profile and plan with it",
        )
    if plan.fsdp is not None:
        raise UsageError(
            "the plan describes a variant of FSDP for the simulator, which the executor does not run",
            where="fsdp",
            hint="plan with --strategy fsdp, or train with --engine fsdp2",
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


def _check_moments(plan: Plan, options: TrainOptions) -> None:
    planned, wanted = plan.settings.optimizer or "adamw", options.optimizer_kind
    _refuse(
        num_moments(wanted) > num_moments(planned),
        f"the plan has room for the moments of {planned}, {wanted} keeps more",
        hint=f"train with {_as_options(planned)}, or plan with {_as_options(wanted)}",
    )


def _as_options(kind: OptimizerKind) -> str:
    return "--optimizer sgd --momentum 0.9" if kind == "sgd with momentum" else f"--optimizer {kind}"


def _check_numbers(options: TrainOptions) -> None:
    _refuse(options.momentum > 0 and options.optimizer != "sgd", "--momentum is for --optimizer sgd")
    _refuse(
        options.min_lr > 0 and options.lr_schedule == "constant",
        "--min-lr needs --lr-schedule cosine or linear, a constant rate has no floor",
    )
    _refuse(
        options.min_lr > options.learning_rate,
        f"--min-lr is {options.min_lr:g}, above --lr {options.learning_rate:g}",
    )
    _refuse(
        options.warmup_steps >= options.num_steps,
        f"--warmup-steps is {options.warmup_steps}, which leaves none of the {options.num_steps} steps",
    )


def _check_early_updates(plan: Plan, options: TrainOptions) -> None:
    """Refuse what must know the whole gradient before any update."""
    option = "--optimizer-in-backward"
    _refuse(options.engine != "cephalo", f"{option} is for --engine cephalo")
    _refuse(
        options.clip is not None,
        f"{option} updates a unit before the norm of the whole gradient is known, so nothing can be clipped by it",
        hint="--clip 0 never clips",
    )
    _refuse(
        options.on_nonfinite == "skip",
        f"{option} has updated units by the time a gradient is found not to be finite, so no step can be skipped",
        hint="leave out --on-nonfinite skip",
    )
    _refuse(
        (options.dtype or plan.dtype) == "float16",
        f"{option} cannot leave out the steps in which a scaled float16 gradient overflows",
        hint="use bfloat16 or float32",
    )


def _check_torch_engine(plan: Plan, options: TrainOptions) -> None:
    engine = options.engine
    _refuse(
        plan.num_frozen_parameters > 0,
        f"frozen parameters are kept apart by --engine cephalo, {engine} would not spare their memory",
    )
    for option, value in (("--weights", options.weights), ("--export", options.export)):
        _refuse(value is not None, f"{option} is for --engine cephalo, {engine} starts from drawn weights")
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
