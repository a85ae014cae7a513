"""How much of the devices' peaks a step uses, and whether a profile claims more than there is."""

from collections.abc import Iterator

from cephalo_cli.artifacts.plan import Plan
from cephalo_cli.artifacts.profile import UnitKind, UnitProfile
from cephalo_cli.costmodel.flops import forward_flops
from cephalo_cli.costmodel.tables import interpolate
from cephalo_cli.errors import ArtifactError
from cephalo_cli.quantities import format_percent
from cephalo_cli.units import model_units

__all__ = ["check_speeds", "flops_utilization"]

ROUNDING = 1e-6


def flops_utilization(plan: Plan, step_s: float) -> tuple[float, float] | None:
    """Model and hardware FLOPs utilisation of a step.

    Both divide by what all ranks could do at their peaks in the step. The model's operations are those of forward and
    backward of the global batch; the hardware's include recomputed forwards. Units that a profile has no curves for
    cost nothing, so they count nothing.

    Returns:
        Two fractions; None where a peak or the model's operations are not known, the step takes no time, or jitter
        outran a peak.
    """
    peaks = [_peak(plan, rank.device) for rank in plan.ranks]
    known = [peak for peak in peaks if peak is not None]
    if len(known) < len(peaks) or step_s == 0:
        return None
    units = model_units(plan.model)
    one_sample = {unit.kind: forward_flops(plan.model, unit.kind, plan.seq_len) for unit in units}
    backward = 2.0 - plan.num_frozen_parameters / plan.num_parameters
    model = again = 0.0
    for rank in plan.ranks:
        samples = sum(rank.microbatch_sizes)
        timed = [unit.kind for unit in units if unit.kind in plan.devices[rank.device].units]
        model += (1 + backward) * samples * sum(one_sample[kind] for kind in timed)
        if "block" in timed:
            again += samples * rank.num_recomputed(plan.model.num_layers) * one_sample["block"]
    could = sum(known) * step_s
    fractions = model / could, (model + again) / could
    return None if fractions[1] > 1 or model == 0 else fractions


def check_speeds(plan: Plan, *, where: str) -> None:
    """Refuse curves that are faster than the device's peak; so no utilisation exceeds 100 %.

    Args:
        plan: Curves and peaks, and the microbatch sizes that are asked of the curves. Devices without a peak are not
            checked.
        where: The file, for the message.

    Raises:
        ArtifactError: A unit's forward or backward runs above the peak; the message names it.
    """
    factors = {"forward": 1.0, "backward": 1.0 if plan.num_frozen_parameters else 2.0}
    for name, device in plan.devices.items():
        peak = _peak(plan, name)
        if peak is None:
            continue
        used = {size for rank in plan.ranks if rank.device == name for size in rank.microbatch_sizes}
        for kind, unit in device.units.items():
            for phase, size, took in _points(unit, used):
                needs = factors[phase] * forward_flops(plan.model, kind, plan.seq_len) * size / peak
                if needs > took * (1 + ROUNDING):
                    _refuse(plan, where=f"{where}: {_path(name, kind, unit, phase, size)}", needs=needs, took=took)


def _points(unit: UnitProfile, used: set[int]) -> Iterator[tuple[str, int, float]]:
    """Phase, size and seconds of the measured points, then of the sizes that lie beyond them."""
    sizes = [*unit.microbatch, *sorted(used - set(unit.microbatch))]
    for phase, seconds in (("forward", unit.forward_s), ("backward", unit.backward_s)):
        for size in sizes:
            yield phase, size, interpolate(unit.microbatch, seconds, size)


def _path(name: str, kind: UnitKind, unit: UnitProfile, phase: str, size: int) -> str:
    point = f"[{unit.microbatch.index(size)}]" if size in unit.microbatch else ""
    return f"devices.{name}.units.{kind}.{phase}_s{point}, microbatch {size}"


def _refuse(plan: Plan, *, where: str, needs: float, took: float) -> None:
    speed = "takes no time" if took == 0 else f"runs at {format_percent(needs / took)} of its device's peak"
    raise ArtifactError(
        speed, where=where, hint=f"check the seconds, and peak_flops.{plan.dtype} of the cluster's device type"
    )


def _peak(plan: Plan, device: str) -> float | None:
    return (plan.cluster.device_types[device].peak_flops or {}).get(plan.dtype)
