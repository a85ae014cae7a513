"""Seconds of compute and of host copies, per rank and per kind of stage."""

from collections.abc import Sequence
from dataclasses import dataclass

from cephalo_cli.artifacts.plan import ScheduleName
from cephalo_cli.artifacts.profile import Basis, DeviceProfile, UnitKind
from cephalo_cli.costmodel.network import handled_fraction, placed_fraction
from cephalo_cli.costmodel.tables import interpolate
from cephalo_cli.schedule import Phase
from cephalo_cli.units import boundary_bytes

__all__ = ["RankChoice", "copy_s", "moving_s_per_byte", "optimizer_s", "stage_s"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankChoice:
    """What a plan decides for one rank."""

    device: str
    """Device type."""
    microbatch_sizes: tuple[int, ...]
    """Samples of each microbatch; may be empty."""
    state_share: float
    """Fraction of the state it stores."""
    recompute: bool
    """Whether blocks are recomputed."""
    offload: bool
    """Whether boundaries live in host memory."""
    recompute_blocks: int | None = None
    """How many blocks, counted from the first, are recomputed; None: all where ``recompute``."""

    def num_recomputed(self, num_blocks: int) -> int:
        """How many of a model's blocks are recomputed."""
        if not self.recompute:
            return 0
        return num_blocks if self.recompute_blocks is None else self.recompute_blocks


def stage_s(device: DeviceProfile, kind: UnitKind, phase: Phase, sizes: Sequence[int], *, recompute: bool) -> float:
    """Seconds one rank computes in one stage: ``sum_j F(s_j)``, ``sum_j B(s_j) + recompute * F(s_j)``, or both.

    Args:
        device: The rank's curves; a kind without curves costs nothing.
        kind: Kind of the stage's unit.
        phase: forward, backward, or forward-backward (the head).
        sizes: Samples of the microbatches that run in the stage.
        recompute: Whether the rank recomputes blocks.
    """
    unit = device.units.get(kind)
    if unit is None:
        return 0.0
    total = 0.0
    for size in sizes:
        if phase != "backward" or (recompute and kind == "block"):
            total += interpolate(unit.microbatch, unit.forward_s, size)
        if phase != "forward":
            total += interpolate(unit.microbatch, unit.backward_s, size)
    return total


def copy_s(
    basis: Basis, device: DeviceProfile, kind: UnitKind, phase: Phase, sizes: Sequence[int], *, offload: bool
) -> float:
    """Seconds of the busier copy direction in one stage when boundaries live in host memory.

    forward: input in, output out. head: input in, its gradient out. backward of a block: input and output gradient in,
    input gradient out. The embedding has no input boundary.
    """
    if not offload or device.host_copy is None or not sizes:
        return 0.0
    moved = boundary_bytes(basis.model, basis.seq_len, basis.dtype, sum(sizes))
    has_input = kind != "embedding"
    num_in = (1 if has_input else 0) + (1 if phase == "backward" else 0)
    num_out = 1 if phase == "forward" or has_input else 0
    latency = device.host_copy.latency_s * len(sizes)
    to_device = num_in * (latency + moved / device.host_copy.to_device_bytes_per_s)
    to_host = num_out * (latency + moved / device.host_copy.to_host_bytes_per_s)
    return max(to_device, to_host)


def moving_s_per_byte(basis: Basis, choice: RankChoice, num_ranks: int, schedule: ScheduleName) -> float:
    """Seconds of the compute lane that a collective takes for each byte of its unit (cpu devices).

    An all-reduce of replicated state is a reduce-scatter and a gather over equal parts, whatever the share; it has
    nothing to put in its place.
    """
    if basis.network == "ideal":
        return 0.0
    algorithm = basis.network.algorithm
    handled = handled_fraction(algorithm, num_ranks, choice.state_share)
    if schedule == "replicated":
        equal = 1 / num_ranks
        handled = 2 * (handled_fraction(algorithm, num_ranks, equal) - placed_fraction(algorithm, num_ranks, equal))
    return basis.devices[choice.device].collective_compute_s_per_byte * handled


def optimizer_s(basis: Basis, choice: RankChoice) -> float:
    """Seconds of the optimizer step on the rank's shards."""
    trained = basis.num_parameters - basis.num_frozen_parameters
    return basis.devices[choice.device].optimizer_s_per_parameter * choice.state_share * trained
