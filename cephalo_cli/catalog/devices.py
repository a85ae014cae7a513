"""Device types by id, and clusters made of them."""

import re

from cephalo_cli.artifacts.cluster import Cluster, DeviceType, Link, Node
from cephalo_cli.catalog.data import DeviceRecord, Pcie, device_records, find, named_device, pcie_rates
from cephalo_cli.errors import ArtifactError, UsageError

__all__ = ["cluster_from_gpus", "device", "device_record", "resolve_cluster"]

PCIE_LATENCY_S = 10e-6
"""Seconds before the first byte of a copy over PCI Express arrives: a copy's launch and the bus's round trip."""
BOARD_LATENCY_S = 5e-6
"""The same over links between the devices of one board."""
NETWORK = Link(bandwidth_bytes_per_s=1.25e9, latency_s=50e-6)
"""Ten-gigabit Ethernet; one node never uses it."""
_TIMES = (
    re.compile(r"(?P<name>.+?)[\s:]*x\s*(?P<count>\d{1,5})", re.IGNORECASE),
    re.compile(r"(?P<name>.+?)\s*:\s*(?P<count>\d{1,5})\s*x", re.IGNORECASE),
    re.compile(r"(?P<count>\d{1,5})\s*[x:]\s*(?P<name>.+)", re.IGNORECASE),
)
"""Other ways to write a count: ``3090x2``, ``3090:x2``, ``3090:2x``, ``2x3090``, ``2:3090``."""
_GROUP = re.compile(r"([^:,]+?)(?::(\d{1,5}))?")


def device(name: str, *, where: str = "catalog") -> DeviceType:
    """Return the facts of a device type, by id or alias.

    Raises:
        ArtifactError: The catalog has no such device.
    """
    key = _find(name, where)
    record = device_records()[key]
    rate = record.host_bytes_per_s or (_pcie_rate(record.pcie) if record.pcie else None)
    return DeviceType(
        catalog=key,
        description=record.description,
        backend=record.backend,
        memory_bytes=record.memory_bytes,
        memory_bandwidth_bytes_per_s=record.memory_bandwidth_bytes_per_s,
        peak_flops=dict(record.peak_flops),
        host_link=Link(bandwidth_bytes_per_s=rate, latency_s=PCIE_LATENCY_S) if rate else None,
    )


def device_record(name: str, *, where: str = "catalog") -> DeviceRecord:
    """Return everything the catalog knows of a device type. Raises as `device`."""
    return device_records()[_find(name, where)]


def resolve_cluster(cluster: Cluster, *, where: str = "cluster") -> Cluster:
    """Fill the catalog's facts into a cluster's device types; what the file says wins.

    Args:
        cluster: The cluster as its file gives it.
        where: The file, for errors.

    Raises:
        ArtifactError: A device type names a catalog device that does not exist.
    """
    types = {
        name: _filled(given, f"{where}: device_types.{name}.catalog") for name, given in cluster.device_types.items()
    }
    return cluster.model_copy(update={"device_types": types})


def cluster_from_gpus(text: str) -> Cluster:
    """Make a cluster of one node from ``l4:2,a6000,p40``.

    Devices are joined by PCI Express as fast as the slowest slot among them; devices of one type whose board has links
    of its own (NVLink, Infinity Fabric) by those.

    Raises:
        UsageError: The text is not a list of ``DEVICE[:COUNT]``.
        ArtifactError: The catalog has no such device.
    """
    devices: list[str] = []
    for part in text.split(","):
        if not part.strip():
            raise UsageError(
                f"a device is missing beside a comma in {text!r}" if text.strip() else "no device is named",
                where="--gpus",
                hint="write it like l4:2,a6000,p40",
            )
        _refuse_times(part.strip())
        match = _GROUP.fullmatch(part.strip())
        if match is None or match[2] == "0" * len(match[2] or "x"):
            raise UsageError(
                f"{part.strip()!r} is not a device with a count", where="--gpus", hint="write it like l4:2,a6000,p40"
            )
        _refuse_other_forms(match[1])
        devices += [_find(match[1], "--gpus")] * int(match[2] or 1)
    types = {name: device(name) for name in dict.fromkeys(devices)}
    return Cluster(
        name="+".join(f"{devices.count(name)}x{name}" for name in types),
        device_types=types,
        nodes=(Node(name="node0", devices=tuple(devices), link=_default_link(devices)),),
        network=NETWORK,
    )


def _refuse_times(text: str) -> None:
    """Refuse ``2x3090`` and ``3090x2``, which many write, with the form that is read."""
    for form in _TIMES:
        match = form.fullmatch(text)
        if match is not None and named_device(text) is None and named_device(match["name"]) is not None:
            hint = f"write {match['name']}:{match['count']}"
            raise UsageError(f"{text!r} is not a device with a count", where="--gpus", hint=hint)


def _refuse_other_forms(text: str) -> None:
    """Refuse a file, and devices that are not separated by commas."""
    if text.endswith(".json"):
        raise UsageError(
            f"{text} is a file, expected names of devices",
            where="--gpus",
            hint=f"cephalo profile {text} --estimate --model MODEL --seq-len N -o PROFILE.json makes a profile",
        )
    names = [name for name in re.split(r"[\s;+/]+", text) if name]
    if len(names) > 1 and named_device(text) is None and all(named_device(name) for name in names):
        raise UsageError(f"{text!r} is not a device with a count", where="--gpus", hint=f"write {','.join(names)}")


def _default_link(devices: list[str]) -> Link:
    records = [device_records()[name] for name in devices]
    board = records[0].board_link_bytes_per_s
    if len(set(devices)) == 1 and board is not None:
        return Link(bandwidth_bytes_per_s=board, latency_s=BOARD_LATENCY_S)
    rates = [_pcie_rate(record.pcie) for record in records if record.pcie is not None]
    slowest = min(rates, default=min(record.memory_bandwidth_bytes_per_s for record in records))
    return Link(bandwidth_bytes_per_s=slowest, latency_s=PCIE_LATENCY_S)


def _filled(given: DeviceType, where: str) -> DeviceType:
    if given.catalog is None:
        return given
    facts = device(given.catalog, where=where)
    said = {name: getattr(given, name) for name in given.model_fields_set - {"catalog"}}
    if given.peak_flops is not None:
        said["peak_flops"] = {**(facts.peak_flops or {}), **given.peak_flops}
    filled = facts.model_copy(update={name: value for name, value in said.items() if value is not None})
    if filled.emulated_speed is not None and filled.backend != "cpu":
        raise ArtifactError("only devices of the cpu backend are emulated", where=where)
    return filled


def _find(name: str, where: str) -> str:
    return named_device(name) or find(name, device_records(), lambda record: record.aliases, what="device", where=where)


def _pcie_rate(pcie: Pcie) -> float:
    return pcie_rates()[pcie.generation] * pcie.lanes / 16
