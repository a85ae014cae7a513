"""What one microbatch costs, by size: the additive vectors from which every option is built."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.costmodel.compute import RankChoice, stage_s
from cephalo_cli.costmodel.memory import rank_memory, working_bytes
from cephalo_cli.costmodel.tables import interpolate
from cephalo_cli.planner.problem import KINDS, DeviceGroup, Mode, Problem
from cephalo_cli.schedule import Phase
from cephalo_cli.units import boundary_bytes

__all__ = ["SizeCosts", "rates", "size_costs"]

NEGLIGIBLE_BYTES = 8.0
"""Difference of bytes a sample that does not decide between multisets: rounding of what was measured."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SizeCosts:
    """Costs of one microbatch by size, for one device group and mode; index 0 is size 0."""

    additive: Floats
    """Shape (sizes + 1, kinds + 2): seconds by kind, bytes kept beside boundaries, and 1 for the microbatch."""
    matters: npt.NDArray[np.bool_]
    """Which columns a choice between multisets of the same sum depends on."""
    beside_bytes: Floats
    """Bytes beside state and saved where it is the largest microbatch: working, buffers and reserve."""
    boundary_bytes: int
    """Saved boundaries of one sample."""
    in_s: Floats
    """Copies to the device by kind: seconds of a sample, shape (kinds,), and latency in `in_latency_s`."""
    out_s: Floats
    in_latency_s: Floats
    out_latency_s: Floats

    @property
    def max_size(self) -> int:
        """Largest size that fits beside no state at all."""
        return len(self.beside_bytes) - 1

    def copy_s(self, samples: npt.NDArray[np.int64], microbatches: Floats) -> Floats:
        """Seconds of the busier copy direction by kind, shape (options, kinds)."""
        into = np.outer(samples, self.in_s) + np.outer(microbatches, self.in_latency_s)
        out = np.outer(samples, self.out_s) + np.outer(microbatches, self.out_latency_s)
        return np.maximum(into, out)


def size_costs(problem: Problem, group: DeviceGroup, mode: Mode, max_size: int, *, trim: bool = True) -> SizeCosts:
    """Tabulate microbatches of 1 to ``max_size`` samples; with ``trim`` up to the last that fits by itself."""
    key = ("size_costs", group.name, mode, max_size, trim)
    if key not in problem.tables:
        problem.tables[key] = _size_costs(problem, group, mode, max_size, trim=trim)
    found: SizeCosts = problem.tables[key]
    return found


def _size_costs(problem: Problem, group: DeviceGroup, mode: Mode, max_size: int, *, trim: bool) -> SizeCosts:
    device = group.device
    beside = _beside(problem, group, mode, max_size)
    fits = np.flatnonzero(beside <= group.limit_bytes)
    largest = max_size if not trim else int(fits[-1]) if len(fits) else 0
    keepers = [(unit, 1) for kind, unit in device.units.items() if kind == "embedding"]
    num_blocks = problem.basis.model.num_layers
    if not mode.recompute:
        keepers += [(unit, num_blocks) for kind, unit in device.units.items() if kind == "block"]
    rows = [[0.0] * (len(KINDS) + 2)]
    for size in range(1, largest + 1):
        seconds = [stage_s(device, kind, phase, (size,), recompute=mode.recompute) for kind, phase in KINDS]
        kept = sum(
            times * interpolate(unit.microbatch, unit.saved_bytes, size)
            for unit, times in keepers
            if unit.saved_bytes is not None
        )
        rows.append([*seconds, kept, 1.0])
    additive = np.array(rows)
    copies = _copies(problem, group, mode)
    matters = np.asarray(additive.any(axis=0))
    per_sample = additive[1:, -2] / np.arange(1, largest + 1)
    matters[-2] &= bool(np.ptp(per_sample) > NEGLIGIBLE_BYTES) if largest else False
    matters[-1] = bool(copies[2].any() or copies[3].any())
    num_saved = 1 if not mode.recompute else 0 if mode.offload else num_blocks + 1
    return SizeCosts(
        additive=additive,
        matters=matters,
        beside_bytes=beside[: largest + 1],
        boundary_bytes=num_saved * boundary_bytes(problem.basis.model, problem.basis.seq_len, problem.basis.dtype, 1),
        in_s=copies[0],
        out_s=copies[1],
        in_latency_s=copies[2],
        out_latency_s=copies[3],
    )


def _beside(problem: Problem, group: DeviceGroup, mode: Mode, max_size: int) -> Floats:
    """Bytes beside state and saved by largest size; buffers are a constant plus a multiple of the largest size."""
    key = ("buffers", group.device.method == "imported", mode.offload)
    if key not in problem.tables:
        problem.tables[key] = tuple(
            rank_memory(
                problem.basis,
                problem.settings,
                RankChoice(
                    device=group.name, microbatch_sizes=sizes, state_share=0.0, recompute=True, offload=mode.offload
                ),
                step=problem.step,
                num_ranks=problem.num_ranks,
            ).buffers_bytes
            for sizes in ((), (1,))
        )
    none, one = problem.tables[key]
    sizes = np.arange(max_size + 1, dtype=np.float64)
    working = [
        working_bytes(group.device, (size,) if size else (), recompute=mode.recompute) for size in range(max_size + 1)
    ]
    return np.asarray(group.reserve_bytes + none + (one - none) * sizes + np.array(working, dtype=np.float64))


def _copies(problem: Problem, group: DeviceGroup, mode: Mode) -> tuple[Floats, Floats, Floats, Floats]:
    """Copies in and out by kind: seconds a sample, then latency a microbatch, as `costmodel.compute.copy_s` counts."""
    host = group.device.host_copy
    zeros = np.zeros(len(KINDS))
    if not mode.offload or host is None:
        return zeros, zeros, zeros, zeros
    boundary = boundary_bytes(problem.basis.model, problem.basis.seq_len, problem.basis.dtype, 1)
    num_in = np.array([(kind != "embedding") + (phase == "backward") for kind, phase in KINDS], dtype=np.float64)
    num_out = np.array([phase == "forward" or kind != "embedding" for kind, phase in KINDS], dtype=np.float64)
    return (
        num_in * boundary / host.to_device_bytes_per_s,
        num_out * boundary / host.to_host_bytes_per_s,
        num_in * host.latency_s,
        num_out * host.latency_s,
    )


def rates(problem: Problem, group: DeviceGroup) -> Floats:
    """Least seconds a sample by kind, over modes and microbatch sizes.

    A linear piece divided by the size only rises or only falls, so the least is at a measured point or at an end; a sum
    of curves is bounded by the sum of their leasts.
    """
    points = {1, problem.batch_size}
    for unit in group.device.units.values():
        points |= {size for size in unit.microbatch if size <= problem.batch_size}

    def least(kind: UnitKind, phase: Phase, *, recompute: bool) -> float:
        return min(stage_s(group.device, kind, phase, (size,), recompute=recompute) / size for size in points)

    found = []
    for kind, phase in KINDS:
        forward, backward = least(kind, "forward", recompute=False), least(kind, "backward", recompute=False)
        again = forward if kind == "block" and all(mode.recompute for mode in group.modes) else 0.0
        found.append({"forward": forward, "backward": backward + again, "forward-backward": forward + backward}[phase])
    return np.array(found)
