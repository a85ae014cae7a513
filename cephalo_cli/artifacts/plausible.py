"""Numbers of a cluster file whose unit was plainly forgotten, and texts that carry a unit where a number belongs."""

from collections.abc import Iterator, Mapping

from cephalo_cli.artifacts.cluster import Cluster, Link
from cephalo_cli.artifacts.faults import FieldPath, field_path, shown
from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.quantities import SMALLEST_BYTES_PER_S, SMALLEST_MEMORY_BYTES, parse_memory, parse_rate

__all__ = ["plain_number", "refuse_forgotten_units"]

SMALLEST_FLOPS = 1e6
"""Below it a number is no peak of a device, but one of TFLOP/s or GFLOP/s."""
LEAST: Mapping[str, tuple[float, str, str, float]] = {
    "memory_bytes": (SMALLEST_MEMORY_BYTES, "bytes", "GiB", 2.0**30),
    "bandwidth_bytes_per_s": (SMALLEST_BYTES_PER_S, "bytes a second", "GB/s", 1e9),
    "peak_flops": (SMALLEST_FLOPS, "operations a second", "TFLOP/s", 1e12),
}
"""By the kind of number: the least it can be, its unit, and the unit that was probably in mind, with its factor."""


def refuse_forgotten_units(cluster: Cluster, where: str) -> None:
    """Refuse a memory below a mebibyte, a bandwidth below a kilobyte a second, a peak below a million operations.

    Raises:
        ArtifactError: There is one.
    """
    for kind, path, value in _sizes(cluster):
        least, unit, meant, factor = LEAST[kind]
        if value is not None and value < least:
            raise ArtifactError(
                f"found {shown(value)}, expected {unit}, at least {least:.0f}",
                where=f"{where}: {field_path(path)}",
                hint=f"{value:g} {meant} are {value * factor:.0f}",
            )


def plain_number(path: FieldPath, text: str) -> str | None:
    """Say which number a text with a unit stands for, such as ``48GB/s`` where bytes a second belong."""
    name = str(path[-1]) if path else ""
    try:
        if name.endswith("_bytes_per_s"):
            return f"bytes a second, without a unit: {parse_rate(text):.0f}"
        if name.endswith("_bytes"):
            return f"bytes, without a unit: {parse_memory(text)}"
    except UsageError:
        return None
    return None


def _sizes(cluster: Cluster) -> Iterator[tuple[str, FieldPath, float | None]]:
    """Every size of a cluster with its kind and its path."""
    bandwidth = "bandwidth_bytes_per_s"
    links: list[tuple[FieldPath, Link | None]] = []
    for name, device in cluster.device_types.items():
        at: FieldPath = ("device_types", name)
        yield "memory_bytes", (*at, "memory_bytes"), device.memory_bytes
        yield bandwidth, (*at, "memory_bandwidth_bytes_per_s"), device.memory_bandwidth_bytes_per_s
        for dtype, peak in (device.peak_flops or {}).items():
            yield "peak_flops", (*at, "peak_flops", dtype), peak
        links.append(((*at, "host_link"), device.host_link))
    links += [(("nodes", number, "link"), node.link) for number, node in enumerate(cluster.nodes)]
    links.append((("network",), None if cluster.network == "ideal" else cluster.network))
    for place, link in links:
        yield bandwidth, (*place, bandwidth), None if link is None else link.bandwidth_bytes_per_s
