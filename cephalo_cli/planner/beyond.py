"""Which points a plan uses that its profile does not have: beyond a curve's end, time and memory are extrapolated."""

from cephalo_cli.artifacts.plan import Plan

__all__ = ["missing_points"]


def missing_points(plan: Plan) -> str | None:
    """Name in one line the microbatch sizes of a plan that lie beyond a device's curves; None where all lie within."""
    used: dict[str, set[int]] = {}
    for rank in plan.ranks:
        used.setdefault(rank.device, set()).update(rank.microbatch_sizes)
    beyond = []
    for device, sizes in used.items():
        end = min(unit.microbatch[-1] for unit in plan.devices[device].units.values())
        missing = sorted(size for size in sizes if size > end)
        if missing:
            beyond.append(f"{device} at microbatch {', '.join(map(str, missing))} (its points end at {end})")
    if not beyond:
        return None
    largest = max(size for sizes in used.values() for size in sizes)
    is_table = any(plan.devices[device].method == "imported" for device in used)
    source = "rows of the table" if is_table else f"cephalo profile --max-microbatch {largest}"
    return (
        f"extrapolated, for the profile has no such points: {'; '.join(beyond)}"
        f" ({source} would add them, where memory and time allow)"
    )
