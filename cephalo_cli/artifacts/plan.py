"""The plan artifact: who computes how much, who stores how much, and what to expect."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cephalo_cli.artifacts.base import DType, NonNegativeInt, NumBytes, PositiveInt, Seconds, Series, Share, Value
from cephalo_cli.artifacts.faults import MisfitError, shown
from cephalo_cli.artifacts.profile import Basis

__all__ = [
    "Alternative",
    "ExpectedRank",
    "ExpectedStep",
    "FsdpOptions",
    "Memory",
    "OptimizerKind",
    "Plan",
    "PlanSettings",
    "RankPlan",
    "SolverProof",
    "Strategy",
]

Strategy = Literal["cephalo", "fsdp", "compute-balanced", "memory-balanced", "whale", "poplar"]
ScheduleName = Literal["layer-major", "microbatch-major", "replicated"]
Switch = Literal["auto", "on", "off"]
Recompute = Literal["auto", "on", "off", "blocks"]
OptimizerKind = Literal["adamw", "sgd", "sgd with momentum"]


class Memory(Value):
    """Bytes of one rank by term."""

    state_bytes: NumBytes
    """Shards of parameters, gradients and optimizer state."""
    buffers_bytes: NumBytes
    """Unsharded parameters and gradients of the units in flight."""
    working_bytes: NumBytes
    """Live tensors inside one unit for the largest microbatch."""
    saved_bytes: NumBytes
    """Boundary activations of all units and microbatches; without recompute all that autograd keeps."""
    reserve_bytes: NumBytes
    """Runtime context and fragmentation."""
    total_bytes: NumBytes
    """The sum of the terms."""
    limit_bytes: NumBytes
    """What the rank may use: memory fraction times capacity."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        total = self.state_bytes + self.buffers_bytes + self.working_bytes + self.saved_bytes + self.reserve_bytes
        if total != self.total_bytes:
            raise MisfitError(f"found {self.total_bytes}, expected {total}, the sum of the terms", at=("total_bytes",))
        return self


class ExpectedRank(Value):
    """Seconds of compute we expect of a rank in one step."""

    forward_s: Seconds
    """Forward of all units and microbatches."""
    backward_s: Seconds
    """Backward of all units and microbatches, recomputed forwards included."""
    optimizer_s: Seconds
    """Optimizer step on the local shard."""


class RankPlan(Value):
    """One rank's part."""

    rank: NonNegativeInt
    """Number of the rank."""
    node: str
    """The node it runs on."""
    device: str
    """Its device type."""
    microbatch_sizes: Series[PositiveInt]
    """Samples of each microbatch of one step; may be empty."""
    state_share: Share
    """Fraction of every unit's parameters, gradients and optimizer state stored here."""
    recompute: bool
    """Whether the backward phase runs blocks' forwards again."""
    recompute_blocks: NonNegativeInt | None = None
    """How many blocks, counted from the first, are run again; absent: all where ``recompute``, none otherwise."""
    offload: bool
    """Whether boundary activations live in host memory between forward and backward; needs all blocks run again."""
    memory: Memory
    """Expected peak by term."""
    expected: ExpectedRank
    """Expected compute."""

    @model_validator(mode="after")
    def _recomputes_as_it_says(self) -> Self:
        if self.recompute_blocks is not None and self.recompute != (self.recompute_blocks > 0):
            raise MisfitError(
                f"found {self.recompute_blocks}, but recompute is {shown(self.recompute)}", at=("recompute_blocks",)
            )
        return self

    def num_recomputed(self, num_layers: int) -> int:
        """How many of a model's blocks, counted from the first, are run again."""
        if self.recompute_blocks is not None:
            return self.recompute_blocks
        return num_layers if self.recompute else 0


class ExpectedStep(Value):
    """What we expect of a step."""

    step_s: Seconds
    """Seconds of one optimizer step."""
    samples_per_s: Annotated[float, Field(ge=0.0)]
    """Throughput in samples."""
    tokens_per_s: Annotated[float, Field(ge=0.0)]
    """Throughput in tokens: samples times the positions of one."""
    bound: str
    """What the step waits for most, in words."""


class SolverProof(Value):
    """How good the plan is under its own cost model."""

    status: Literal["optimal", "time-limit", "heuristic"]
    """optimal: proven; time-limit: the best found in the time or effort allowed; heuristic: a strategy that does not
    search for the optimum."""
    lower_bound_s: Seconds
    """No plan of this strategy's search space is faster than this."""
    gap: Annotated[float, Field(ge=0.0)]
    """``(step_s - lower_bound_s) / step_s``; 0 when proven."""
    bound_schedule: ScheduleName | None = None
    """The order of work of the plans that may be as fast as the bound, where it is another than this plan's."""


class Alternative(Value):
    """Another strategy under the same cost model."""

    strategy: Strategy
    """Its name."""
    feasible: bool
    """Whether every rank fits."""
    reason: str | None = None
    """Why it is not feasible."""
    step_s: Seconds | None = None
    """Expected seconds of one step, also where memory is short; absent where there is nothing to time."""
    samples_per_s: Annotated[float, Field(ge=0.0)] | None = None
    """Expected throughput."""
    peak_memory_fraction: Annotated[float, Field(ge=0.0)] | None = None
    """Largest total over the ranks, divided by the rank's limit."""


class FsdpOptions(Value):
    """How a microbatch-major step differs from ours: full sharding, one reduction a step, in the accumulation dtype."""

    keeps_gathered: bool = False
    """Whether a unit stays whole from its forward to its backward (only gradients and optimizer state are sharded)."""
    reduces_every_microbatch: bool = False
    """Whether gradients are reduced after every microbatch: more traffic, but no whole gradients wait for the last."""
    reduce_dtype: DType | None = None
    """Dtype of whole gradients and of their reduction; the accumulation dtype when absent."""


class PlanSettings(Value):
    """The options the plan was made with."""

    memory_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9
    """Fraction of each device's capacity a plan may use."""
    reserve_bytes: NumBytes | None = None
    """Reserve for every rank; each device type's own when absent."""
    recompute: Recompute = "auto"
    """Whether ranks recompute: auto, each decides for all of its blocks; blocks, each decides how many."""
    offload: Switch = "auto"
    """Whether ranks offload."""
    microbatch_size: PositiveInt | None = None
    """The only microbatch size allowed (a last, smaller one excepted)."""
    optimizer: OptimizerKind | None = None
    """Whose moments have room: two numbers a trained parameter for AdamW, one for SGD with momentum, none for SGD
    without; AdamW's when absent."""
    keep_unsharded: NonNegativeInt | Literal["auto"] | None = None
    """How many blocks stay unsharded between their phases, or auto: the planner's choice; none when absent."""
    optimizer_in_backward: bool | None = None
    """Whether a unit is updated as soon as its gradient is reduced, so that no rank holds the gradients of its whole
    shard; all are updated at the end when absent."""


class Plan(Basis):
    """Who computes how much, who stores how much, and what to expect."""

    kind: Literal["plan"] = "plan"
    """Always ``plan``."""
    strategy: Strategy
    """How the plan was made."""
    schedule: ScheduleName
    """The order of work in a step."""
    fsdp: FsdpOptions | None = None
    """Variants of the microbatch-major order that others train with, for simulation; ours when absent."""
    keep_unsharded: NonNegativeInt | None = None
    """How many blocks stay unsharded from forward to backward on all ranks, which saves their second gather: those
    before the last one, counted backwards (the last one always stays). None when absent; only for layer-major."""
    global_batch_size: PositiveInt
    """Samples of one step over all ranks."""
    settings: PlanSettings
    """Memory limits and switches that every rank's part respects."""
    ranks: Annotated[Series[RankPlan], Field(min_length=1)]
    """Each rank's part, in rank order."""
    expected: ExpectedStep
    """Time and throughput of a step under the cost model."""
    solver: SolverProof
    """How good the plan is."""
    alternatives: Series[Alternative] = ()
    """Other strategies under the same cost model."""

    @model_validator(mode="after")
    def _varies_only_fsdp(self) -> Self:
        if self.fsdp is not None and self.schedule != "microbatch-major":
            raise MisfitError(f"is only for schedule 'microbatch-major', found {shown(self.schedule)}", at=("fsdp",))
        return self

    @model_validator(mode="after")
    def _treats_blocks_it_has(self) -> Self:
        layers = self.model.num_layers
        if self.keep_unsharded is not None:
            if self.schedule != "layer-major":
                raise MisfitError(
                    f"is only for schedule 'layer-major', found {shown(self.schedule)}", at=("keep_unsharded",)
                )
            if self.keep_unsharded >= layers:
                raise MisfitError(
                    f"found {self.keep_unsharded}, expected less than the {layers} blocks", at=("keep_unsharded",)
                )
        for rank in self.ranks:
            where = ("ranks", rank.rank, "recompute_blocks")
            if rank.num_recomputed(layers) > layers:
                raise MisfitError(f"found {rank.recompute_blocks}, but the model has {layers} blocks", at=where)
            if rank.offload and rank.recompute_blocks not in (None, layers):
                raise MisfitError(f"found {rank.recompute_blocks}, but offload needs all blocks run again", at=where)
        return self

    @property
    def num_kept_unsharded(self) -> int:
        """How many blocks stay unsharded from forward to backward, beside the last one."""
        return self.keep_unsharded or 0

    @model_validator(mode="after")
    def _splits_the_whole(self) -> Self:
        places = self.cluster.ranks
        if len(places) != len(self.ranks):
            raise MisfitError(
                f"found {len(self.ranks)} ranks, expected {len(places)}, one a device of the cluster", at=("ranks",)
            )
        for place, rank in zip(places, self.ranks, strict=True):
            if (rank.rank, rank.node, rank.device) != (place.rank, place.node, place.device):
                raise MisfitError(
                    f"found rank {rank.rank} on {shown(rank.node)}, {shown(rank.device)}, "
                    f"expected rank {place.rank} on {shown(place.node)}, {shown(place.device)}",
                    at=("ranks", place.rank),
                )
        samples = sum(sum(rank.microbatch_sizes) for rank in self.ranks)
        if samples != self.global_batch_size:
            raise MisfitError(
                f"found {self.global_batch_size}, expected {samples}, the sum of all microbatch sizes",
                at=("global_batch_size",),
            )
        shares = math.fsum(rank.state_share for rank in self.ranks)
        expected = float(len(self.ranks)) if self.schedule == "replicated" else 1.0
        if abs(shares - expected) > 1e-9 * expected:
            raise MisfitError(f"found state shares that sum to {shares:.12g}, expected {expected:g}", at=("ranks",))
        return self
