"""What one microbatch costs, by size: the additive vectors from which every option is built."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from cephalo_cli.artifacts.profile import DeviceProfile, UnitKind
from cephalo_cli.costmodel.compute import stage_s
from cephalo_cli.costmodel.memory import working_bytes
from cephalo_cli.costmodel.tables import interpolate
from cephalo_cli.planner.arrays import Floats, Ints, Mask
from cephalo_cli.planner.groups import DeviceGroup, Mode
from cephalo_cli.planner.problem import Problem
from cephalo_cli.units import boundary_bytes

__all__ = [
    "KEPT",
    "KEPT_A_BLOCK",
    "MICROBATCHES",
    "SizeCosts",
    "family_costs",
    "kind_seconds",
    "least_sample_s",
    "size_costs",
]

NEGLIGIBLE_BYTES = 8.0
"""Difference of bytes a sample that does not decide between multisets: rounding of what was measured."""

KEPT_A_BLOCK, KEPT, MICROBATCHES = -3, -2, -1
"""Columns of additive costs behind the seconds by kind: bytes that one more block keeps (in a family of modes, else 0),
bytes kept beside boundaries, and 1 for the microbatch."""

BESIDE_KINDS = 3
"""How many these are."""


@dataclass(frozen=True, kw_only=True)
class SizeCosts:
    """Costs of one microbatch by size, for one device group and mode; index 0 is size 0."""

    additive: Floats
    """Shape (sizes + 1, kinds + 3): seconds by kind, then `KEPT_A_BLOCK`, `KEPT` and `MICROBATCHES`."""
    matters: Mask
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
    def num_kinds(self) -> int:
        """Number of kinds of stages."""
        return int(self.additive.shape[1]) - BESIDE_KINDS

    @property
    def seconds(self) -> Floats:
        """Seconds of one stage by kind, shape (sizes + 1, kinds)."""
        return self.additive[:, : self.num_kinds]

    @property
    def max_size(self) -> int:
        """Largest size that fits beside no state at all."""
        return len(self.beside_bytes) - 1

    def copy_s(self, samples: Ints, microbatches: Floats) -> Floats:
        """Seconds of the busier copy direction by kind, shape (options, kinds)."""
        into = np.outer(samples, self.in_s) + np.outer(microbatches, self.in_latency_s)
        out = np.outer(samples, self.out_s) + np.outer(microbatches, self.out_latency_s)
        return np.maximum(into, out)


def size_costs(problem: Problem, group: DeviceGroup, mode: Mode, max_size: int, *, trim: bool = True) -> SizeCosts:
    """Tabulate microbatches of 1 to ``max_size`` samples; with ``trim`` up to the last that fits by itself."""
    key = ("size_costs", group.name, mode, max_size, trim)
    return problem.tabulated(key, lambda: _size_costs(problem, group, mode, max_size, trim=trim))


def family_costs(problem: Problem, group: DeviceGroup, family: tuple[int, ...], max_size: int) -> SizeCosts:
    """Costs from which those of every mode of a family follow: seconds of its first one, bytes of its last one.

    A mode that recomputes c blocks fewer than the last one keeps c times what one more block keeps, and needs c
    boundaries less; one that recomputes c blocks more than the first one takes c block forwards longer.
    """
    first, last = group.modes[family[0]], group.modes[family[-1]]
    costs = size_costs(problem, group, last, max_size)
    if len(family) == 1:
        return costs
    quickest, block = size_costs(problem, group, first, max_size), group.device.units.get("block")
    additive = quickest.additive.copy()
    additive[:, KEPT] = costs.additive[:, KEPT]
    if block is not None and block.saved_bytes is not None:
        additive[1:, KEPT_A_BLOCK] = [
            interpolate(block.microbatch, block.saved_bytes, size) for size in range(1, len(additive))
        ]
    matters = quickest.matters | costs.matters
    matters[KEPT_A_BLOCK] = _decides(additive[:, KEPT_A_BLOCK])
    return replace(costs, additive=additive, matters=matters)


def _decides(kept_bytes: Floats) -> bool:
    """Whether bytes kept by size can tell multisets of one sum apart."""
    per_sample = kept_bytes[1:] / np.arange(1, len(kept_bytes))
    return bool(len(per_sample) and kept_bytes.any() and np.ptp(per_sample) > NEGLIGIBLE_BYTES)


def _size_costs(problem: Problem, group: DeviceGroup, mode: Mode, max_size: int, *, trim: bool) -> SizeCosts:
    device = group.device
    beside = _beside(problem, group, mode, max_size)
    fits = np.flatnonzero(beside <= group.limit_bytes)
    largest = max_size if not trim else int(fits[-1]) if len(fits) else 0
    keepers = [(unit, 1) for kind, unit in device.units.items() if kind == "embedding"]
    num_blocks = problem.basis.model.num_layers
    num_again = mode.choice(group.name, (), 0.0).num_recomputed(num_blocks)
    if num_again < num_blocks:
        keepers += [(unit, num_blocks - num_again) for kind, unit in device.units.items() if kind == "block"]
    rows = [[0.0] * (len(problem.kinds) + BESIDE_KINDS)]
    for size in range(1, largest + 1):
        seconds = kind_seconds(problem, device, (size,), num_again)
        kept = sum(
            times * interpolate(unit.microbatch, unit.saved_bytes, size)
            for unit, times in keepers
            if unit.saved_bytes is not None
        )
        rows.append([*seconds, 0.0, kept, 1.0])
    additive = np.array(rows)
    copies = _copies(problem, group, mode)
    matters = np.asarray(additive.any(axis=0))
    matters[KEPT] = _decides(additive[:, KEPT])
    matters[MICROBATCHES] = bool(copies[2].any() or copies[3].any())
    num_saved = 0 if mode.offload else num_again + 1
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
    imported = group.device.method == "imported"

    def buffers() -> tuple[int, int]:
        mine = Mode(recompute=True, offload=mode.offload)
        none, one = (problem.memory(mine.choice(group.name, sizes, 0.0)).buffers_bytes for sizes in ((), (1,)))
        return none, one - none

    def working() -> Floats:
        sizes = [(size,) if size else () for size in range(max_size + 1)]
        all_again = mode.recomputes_all
        return np.array([working_bytes(group.device, each, recompute=all_again) for each in sizes], dtype=np.float64)

    none, more = problem.tabulated(("buffers", imported, mode.offload), buffers)
    live = problem.tabulated(("working", group.name, mode.recomputes_all, max_size), working)
    return np.asarray(group.reserve_bytes + none + more * np.arange(max_size + 1, dtype=np.float64) + live)


def _copies(problem: Problem, group: DeviceGroup, mode: Mode) -> tuple[Floats, Floats, Floats, Floats]:
    """Copies in and out by kind: seconds a sample, then latency a microbatch, as `costmodel.compute.copy_s` counts."""
    host = group.device.host_copy
    zeros = np.zeros(len(problem.kinds))
    if not mode.offload or host is None:
        return zeros, zeros, zeros, zeros
    boundary = boundary_bytes(problem.basis.model, problem.basis.seq_len, problem.basis.dtype, 1)
    num_in = np.array([(kind.unit != "embedding") + (kind.phase == "backward") for kind in problem.kinds], dtype=float)
    num_out = np.array([kind.phase == "forward" or kind.unit != "embedding" for kind in problem.kinds], dtype=float)
    return (
        num_in * boundary / host.to_device_bytes_per_s,
        num_out * boundary / host.to_host_bytes_per_s,
        num_in * host.latency_s,
        num_out * host.latency_s,
    )


def kind_seconds(problem: Problem, device: DeviceProfile, sizes: tuple[int, ...], num_recomputed: int) -> list[float]:
    """Seconds of one stage of every kind for a rank that recomputes so many blocks, the average in every part."""
    block = [stage_s(device, "block", phase, sizes, recompute=False) for phase in ("forward", "backward")]
    found = []
    for kind in problem.kinds:
        if kind.unit != "block":
            found.append(stage_s(device, kind.unit, kind.phase, sizes, recompute=False))
        elif kind.phase == "forward":
            found.append(block[0])
        else:
            found.append(_again_s(device, sizes, kind.part_again(num_recomputed), block))
    return found


def _again_s(device: DeviceProfile, sizes: tuple[int, ...], part: float, block: list[float]) -> float:
    if part == 1.0:  # summed as the cost model does
        return stage_s(device, "block", "backward", sizes, recompute=True)
    return block[1] + part * block[0]


def least_sample_s(problem: Problem, group: DeviceGroup) -> Floats:
    """Least seconds a sample by kind, over modes and microbatch sizes.

    A linear piece divided by the size only rises or only falls, so the least is at a measured point or at an end; a sum
    of curves is bounded by the sum of their leasts.
    """
    points = {1, problem.batch_size}
    for unit in group.device.units.values():
        points |= {size for size in unit.microbatch if size <= problem.batch_size}

    def least(unit: UnitKind, phase: Literal["forward", "backward"]) -> float:
        return min(stage_s(group.device, unit, phase, (size,), recompute=False) / size for size in points)

    found = []
    for kind in problem.kinds:
        forward, backward = (least(kind.unit, phase) for phase in ("forward", "backward"))
        again = forward if kind.unit == "block" and all(mode.recompute for mode in group.modes) else 0.0
        by_phase = {"forward": forward, "backward": backward + again, "forward-backward": forward + backward}
        found.append(by_phase[kind.phase])
    return np.array(found)
