"""Short phrases that several tables share."""

import re
from collections.abc import Iterator, Mapping, Sequence

from cephalo_cli.artifacts.cluster import Link
from cephalo_cli.artifacts.plan import Memory
from cephalo_cli.artifacts.profile import Basis, DeviceProfile
from cephalo_cli.quantities import format_change, format_count, format_percent, format_rate, format_seconds
from cephalo_cli.reporting.sheet import Column, Fact, Sheet, Value, merged

__all__ = ["basis_facts", "change", "link", "memory_sheet", "microbatches", "throughput", "unit_flags"]


TERMS = (
    "state: weights, gradients and optimizer; buffers: parameters gathered for use; working: tensors of the largest "
    "microbatch; saved: activations kept for backward; reserve: taken by the runtime or kept free."
)
"""What the terms of a rank's memory are."""
_NOISY = re.compile(r"noisy: (?P<phase>\w+) spread (?P<spread>\d+)% at microbatch (?P<size>\d+)")


def microbatches(sizes: Sequence[int]) -> str:
    """Write microbatch sizes in short, such as ``2x3, 1`` for ``[3, 3, 1]``."""
    runs: list[tuple[int, int]] = []
    for size in sizes:
        if runs and runs[-1][1] == size:
            runs[-1] = runs[-1][0] + 1, size
        else:
            runs.append((1, size))
    return ", ".join(str(size) if count == 1 else f"{count}x{size}" for count, size in runs) or "none"


def link(wire: Link) -> str:
    """Write bandwidth and latency of a link."""
    return f"{format_rate(wire.bandwidth_bytes_per_s, 'B')}, {format_seconds(wire.latency_s)}"


def throughput(samples_per_s: float, tokens_per_s: float) -> str:
    """Write both rates."""
    return f"{format_rate(samples_per_s, 'samples')}, {format_rate(tokens_per_s, 'tokens')}"


def change(found: float, expected: float) -> str:
    """Write by how much a number differs from another, with its sign."""
    return format_change(found / expected - 1)


def _counted(basis: Basis) -> str:
    """How many parameters there are, and how many are trained where that is not all."""
    trained = basis.num_parameters - basis.num_frozen_parameters
    rest = f", {format_count(trained)} of them trained" if basis.num_frozen_parameters else ""
    return f"({format_count(basis.num_parameters)} parameters{rest})"


def basis_facts(basis: Basis) -> tuple[Fact, ...]:
    """What a profile and a plan rest on."""
    methods = sorted({device.method for device in basis.devices.values()})
    emulation = sorted({device.emulation for device in basis.devices.values() if device.emulation})
    many = len(basis.cluster.ranks)
    return (
        Fact(
            key="model",
            label="model",
            value=basis.model.name,
            more=_counted(basis),
        ),
        Fact(
            key="cluster",
            label="cluster",
            value=basis.cluster.name,
            more="(1 rank)" if many == 1 else f"({many} ranks)",
        ),
        Fact(key="seq_len", label="sequence", value=basis.seq_len, more="tokens"),
        Fact(key="dtype", label="computed in", value=basis.dtype),
        Fact(
            key="methods",
            label="durations",
            value=[str(method) for method in methods],
            more=f"(emulated: {', '.join(emulation)})" if emulation else _doubt(basis),
        ),
    )


def _doubt(basis: Basis) -> str:
    """Say how far off estimated durations are, from those of the cluster's devices that know it."""
    errors = sorted({round(each.expected_error, 3) for each in basis.devices.values() if each.expected_error})
    if not errors:
        return ""
    first, last = format_percent(errors[0]), format_percent(errors[-1])
    return f"(typically off by {first})" if first == last else f"(typically off by {first} to {last})"


def memory_sheet(ranks: Sequence[tuple[int, Memory]]) -> Sheet:
    """Memory of every rank by term, against what it may use."""
    terms = ("state", "buffers", "working", "saved", "reserve", "total", "limit")
    rows: list[Mapping[str, Value]] = []
    for rank, memory in ranks:
        rows.append({"ranks": [rank], **{f"{term}_bytes": getattr(memory, f"{term}_bytes") for term in terms}})
    rows = merged(rows)
    return Sheet(
        name="memory",
        title="Memory at its fullest",
        columns=(
            Column(key="ranks", title="rank", kind="ranks"),
            *(Column(key=f"{term}_bytes", title=term, kind="bytes") for term in terms),
        ),
        rows=tuple(rows),
        bad=frozenset((number, "total_bytes") for number, row in enumerate(rows) if not _fits(row)),
        notes=(TERMS,),
    )


def _fits(row: Mapping[str, Value]) -> bool:
    total, limit = row["total_bytes"], row["limit_bytes"]
    return not (isinstance(total, int) and isinstance(limit, int) and total > limit)


def unit_flags(devices: Mapping[str, DeviceProfile]) -> Iterator[str]:
    """Say what looked odd, and where; what looked odd in several places is said once."""
    places: dict[str, list[str]] = {}
    spreads: list[tuple[int, str]] = []
    for name, device in devices.items():
        for kind, unit in device.units.items():
            for flag in unit.flags:
                noise = _NOISY.fullmatch(flag)
                if noise is None:
                    places.setdefault(flag, []).append(f"{name} {kind}")
                else:
                    spreads.append(
                        (int(noise["spread"]), f"{noise['phase']} of {name} {kind}, {noise['size']} samples")
                    )
    if spreads:
        most, place = max(spreads)
        curves = "one curve is" if len(spreads) == 1 else f"{len(spreads)} curves are"
        yield f"{curves} noisy: repeated runs spread by up to {most} % ({place})."
    for flag, where in places.items():
        yield f"{', '.join(where)}: {flag}"
