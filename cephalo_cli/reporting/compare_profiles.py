"""Profiles side by side: the same units on the same device types, and the same collectives."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cephalo_cli.artifacts import Profile
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.reporting.sheet import Column, Part, Sheet, Value

__all__ = ["Drift", "drifts", "profile_sheets"]

PHASES = ("forward_s", "backward_s")
KINDS: tuple[UnitKind, ...] = ("embedding", "block", "head")


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How one phase of one unit differs between two profiles."""

    what: str
    """Phase, unit, device type and microbatch size, in words."""
    old_s: float
    new_s: float

    @property
    def change(self) -> float:
        """Relative change."""
        return self.new_s / self.old_s - 1


def drifts(old: Profile, new: Profile) -> Iterator[Drift]:
    """Compare what two profiles both know, at the largest microbatch size that both have."""
    for phase in PHASES:
        for row in _curve_rows(phase, (old, new), ("old", "new")):
            before, after = row["old"], row["new"]
            if isinstance(before, float) and isinstance(after, float) and before > 0:
                what = f"{phase.removesuffix('_s')} of {row['unit']} on {row['device']}, {row['microbatch']} samples"
                yield Drift(what=what, old_s=before, new_s=after)


def profile_sheets(profiles: Sequence[Profile], names: Sequence[str]) -> list[Part]:
    """Compare at least two profiles where they know the same unit of the same device type at the same size."""
    parts: list[Part] = []
    for phase in PHASES:
        title = f"{phase.removesuffix('_s').capitalize()} of one microbatch, at the largest size all have"
        parts.append(_curves(phase, title, profiles, names))
    networks = [profile.network for profile in profiles]
    rows: list[Mapping[str, Value]] = []
    for collective in ("all_gather", "reduce_scatter"):
        for quantity, kind in (("latency_s", "latency"), ("bandwidth_bytes_per_s", "bandwidth")):
            row: dict[str, Value] = {"collective": collective.replace("_", "-"), "quantity": kind}
            for name, network in zip(names, networks, strict=True):
                row[name] = None if network == "ideal" else getattr(getattr(network, collective), quantity)
            rows.append(row)
    for kind, number_kind in (("latency", "seconds"), ("bandwidth", "link")):
        parts.append(
            Sheet(
                name=f"network_{kind}",
                title=f"Collectives: {kind}",
                columns=(
                    Column(key="collective", title="collective"),
                    *(
                        Column(key=name, title=name, kind="seconds" if number_kind == "seconds" else "link")
                        for name in names
                    ),
                ),
                rows=tuple(row for row in rows if row["quantity"] == kind),
            )
        )
    return parts


def _curve_rows(phase: str, profiles: Sequence[Profile], names: Sequence[str]) -> list[Mapping[str, Value]]:
    rows: list[Mapping[str, Value]] = []
    devices = [name for name in profiles[0].devices if all(name in profile.devices for profile in profiles)]
    for device in devices:
        for kind in KINDS:
            units = [profile.devices[device].units.get(kind) for profile in profiles]
            known = [unit for unit in units if unit is not None]
            common = set.intersection(*(set(unit.microbatch) for unit in known)) if known else set()
            if len(known) < len(units) or not common:
                continue
            size = max(common)
            row: dict[str, Value] = {"device": device, "unit": kind, "microbatch": size}
            values = [getattr(unit, phase)[unit.microbatch.index(size)] for unit in known]
            row |= dict(zip(names, values, strict=True))
            if len(values) == 2:
                row["change"] = (values[1] - values[0]) / values[0] if values[0] else None
            rows.append(row)
    return rows


def _curves(phase: str, title: str, profiles: Sequence[Profile], names: Sequence[str]) -> Sheet:
    rows = _curve_rows(phase, profiles, names)
    columns = [
        Column(key="device", title="device"),
        Column(key="unit", title="unit"),
        Column(key="microbatch", title="size", kind="count"),
        *(Column(key=name, title=name, kind="seconds") for name in names),
    ]
    if len(profiles) == 2:
        columns.append(Column(key="change", title="change", kind="change"))
    notes = () if rows else ("These profiles share no device type, unit and microbatch size.",)
    return Sheet(name=phase, title=title, columns=tuple(columns), rows=tuple(rows), notes=notes)
