"""The report artifact: what a step did, simulated or measured, in one schema so that the two can be compared."""

from typing import Annotated, Literal

from pydantic import Field

from cephalo_cli.artifacts.base import (
    DType,
    Envelope,
    NonNegativeInt,
    NumBytes,
    PositiveInt,
    Seconds,
    Series,
    Share,
    Value,
)
from cephalo_cli.artifacts.plan import Memory, ScheduleName, Strategy

__all__ = ["RankReport", "Report", "StepReport"]


class RankReport(Value):
    """One rank during a typical step."""

    rank: NonNegativeInt
    """Number of the rank."""
    node: str
    """The node it ran on."""
    device: str
    """Its device type."""
    num_samples: NonNegativeInt
    """Samples it computed in a step."""
    state_share: Share
    """Fraction of the state it stored."""
    compute_s: Seconds
    """Seconds of compute in a step (forward, backward, optimizer)."""
    wait_s: Seconds
    """Seconds of a step in which it computed nothing."""
    forward_s: Seconds | None = None
    """Forward part of ``compute_s``."""
    backward_s: Seconds | None = None
    """Backward part of ``compute_s``, recomputed forwards included."""
    optimizer_s: Seconds | None = None
    """Optimizer part of ``compute_s``."""
    exposed_gather_s: Seconds | None = None
    """Part of ``wait_s`` spent waiting for gathered parameters."""
    exposed_reduce_s: Seconds | None = None
    """Part of ``wait_s`` spent waiting for reduced gradients."""
    exposed_copy_s: Seconds | None = None
    """Part of ``wait_s`` spent waiting for copies to or from host memory."""
    late_s: Seconds | None = None
    """Part of the waits for gathers and reductions in which other ranks had not arrived yet (simulated)."""
    gathered_bytes: NumBytes | None = None
    """Bytes it received in gathers in a step."""
    reduced_bytes: NumBytes | None = None
    """Bytes it received in reductions in a step."""
    peak_memory_bytes: NumBytes
    """Largest memory in use."""
    compile_speedup: Annotated[float, Field(gt=0.0)] | None = None
    """Forward and backward of an uncompiled step over those of a compiled one (measured with ``--compile``)."""
    peak_memory_at: str | None = None
    """Where in the step the peak was, such as ``backward block.3``."""
    memory: Memory | None = None
    """The peak by term (simulated)."""


class StepReport(Value):
    """One training step."""

    step: PositiveInt
    """Number of the step, from 1."""
    loss: float | None = None
    """Mean loss over the step's valid tokens; absent when it had none or was not finite."""
    grad_norm: float | None = None
    """Global norm of the gradient before clipping; absent when it was not finite."""
    skipped: bool = False
    """Whether the update was left out, because the loss or the gradient was not finite."""
    learning_rate: Annotated[float, Field(ge=0.0)] | None = None
    """Learning rate of the step's update."""
    tokens: NonNegativeInt
    """Targets that count in the step: what its loss is the mean of."""
    step_s: Seconds
    """Seconds of the step."""
    tokens_per_s: Annotated[float, Field(ge=0.0)] | None = None
    """Throughput in tokens: the step's samples times the positions of one, whether they are targets or not."""
    model_flops_utilization: Share | None = None
    """Operations that forward and backward need, divided by what all ranks could do at their peaks; absent where a
    peak is not known."""
    predicted_step_s: Seconds | None = None
    """What the plan expected of the step."""
    peak_memory_bytes: NumBytes | None = None
    """Most memory any rank has used so far."""
    slowest_rank: NonNegativeInt | None = None
    """The rank that computed longest."""
    slowest_compute_s: Seconds | None = None
    """Seconds it computed."""
    validation_loss: float | None = None
    """Mean loss over the validation data after the step; absent where it was not measured, or not finite."""


class Report(Envelope):
    """What a step did."""

    kind: Literal["report"] = "report"
    """Always ``report``."""
    source: Literal["simulated", "measured"]
    """Where the numbers come from."""
    changes: Series[str] = ()
    """What was made different from the plan: changed values, slow ranks, jitter (simulated)."""
    engine: Literal["cephalo", "fsdp2", "ddp"] = "cephalo"
    """What ran the step."""
    strategy: Strategy
    """Strategy of the plan."""
    schedule: ScheduleName
    """The order of work in a step."""
    cluster_name: str
    """Name of the cluster."""
    model_name: str
    """Name of the model."""
    dtype: DType
    """Compute dtype."""
    seq_len: PositiveInt
    """Tokens of one sample."""
    global_batch_size: PositiveInt
    """Samples of one step."""
    step_s: Seconds
    """Seconds of one step: the median after the first, warm-up step; with ``--compile`` after the third."""
    samples_per_s: Annotated[float, Field(ge=0.0)]
    """Throughput in samples."""
    tokens_per_s: Annotated[float, Field(ge=0.0)]
    """Throughput in tokens: samples times the positions of one, simulated and measured alike."""
    model_flops_utilization: Share | None = None
    """Operations that forward and backward need, divided by what all ranks could do at their peaks in a step."""
    hardware_flops_utilization: Share | None = None
    """The same with recomputed forwards counted."""
    predicted_step_s: Seconds | None = None
    """What the plan expected (its closed form)."""
    bottleneck: str | None = None
    """One sentence: what the step waits for."""
    difference: str | None = None
    """Why the step differs from the plan's closed form, where it does by more than 2 % (simulated)."""
    ranks: Annotated[Series[RankReport], Field(min_length=1)]
    """Each rank, in rank order."""
    steps: Series[StepReport] = ()
    """Each training step (measured)."""
    numerics: Annotated[dict[str, str], Field(default_factory=dict)]
    """Dtypes in force: compute, master, gradient, reduction, optimizer (measured)."""
    collectives: str | None = None
    """How bytes travelled between ranks: algorithm and backend (measured, engine cephalo)."""
    emulation: Literal["cgroup", "cooperative"] | None = None
    """How emulated devices were held to their speed."""
