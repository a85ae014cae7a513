"""Refuses numbers that no hardware has, before they overflow somewhere in the search.

Sums over every unit, sample and rank of what stays within these bounds are far from the limits of floats and of the
byte counts in a plan.
"""

from collections.abc import Iterator

from cephalo_cli.artifacts.faults import FieldPath, field_path
from cephalo_cli.artifacts.profile import Basis
from cephalo_cli.errors import ArtifactError

__all__ = ["refuse_absurd"]

MOST_SECONDS = 1e15
LEAST_SECONDS = 1e-30
MOST_BYTES = 2**50
MOST_CAPACITY_BYTES = 2**60
MOST_PARAMETERS = 2**56
LEAST_RATE = 1.0
MOST_RATE = 1e30

_Number = tuple[FieldPath, float]


def refuse_absurd(basis: Basis) -> None:
    """Refuse a profile with a number that is finite and still means nothing.

    Raises:
        ArtifactError: Names the field, what was found and what was expected.
    """
    for at, seconds in _seconds(basis):
        if seconds > MOST_SECONDS or 0.0 < seconds < LEAST_SECONDS:
            _fail(at, f"found {seconds:g} s, expected 0 or {LEAST_SECONDS:g} to {MOST_SECONDS:g} s")
    for at, num_bytes in _bytes(basis):
        if num_bytes > MOST_BYTES:
            _fail(at, f"found {num_bytes} bytes, expected at most {MOST_BYTES} (1 PiB)")
    for at, rate in _rates(basis):
        if not LEAST_RATE <= rate <= MOST_RATE:
            _fail(at, f"found {rate:g} a second, expected {LEAST_RATE:g} to {MOST_RATE:g}")
    for name in basis.devices:
        capacity = basis.cluster.device_types[name].memory_bytes or 0
        if capacity > MOST_CAPACITY_BYTES:
            at = ("cluster", "device_types", name, "memory_bytes")
            _fail(at, f"found {capacity} bytes, expected at most {MOST_CAPACITY_BYTES} (1 EiB)")
    if basis.num_parameters > MOST_PARAMETERS:
        _fail(("num_parameters",), f"found {basis.num_parameters}, expected at most {MOST_PARAMETERS}")


def _fail(at: FieldPath, message: str) -> None:
    raise ArtifactError(message, where=field_path(at), hint="measure or estimate the profile again")


def _seconds(basis: Basis) -> Iterator[_Number]:
    for name, device in basis.devices.items():
        at = ("devices", name)
        yield (*at, "optimizer_s_per_parameter"), device.optimizer_s_per_parameter
        yield (*at, "collective_compute_s_per_byte"), device.collective_compute_s_per_byte
        if device.host_copy is not None:
            yield (*at, "host_copy", "latency_s"), device.host_copy.latency_s
        for kind, unit in device.units.items():
            for field, series in (("forward_s", unit.forward_s), ("backward_s", unit.backward_s)):
                for index, seconds in enumerate(series):
                    yield (*at, "units", kind, field, index), seconds
    if basis.network != "ideal":
        yield ("network", "all_gather", "latency_s"), basis.network.all_gather.latency_s
        yield ("network", "reduce_scatter", "latency_s"), basis.network.reduce_scatter.latency_s


def _bytes(basis: Basis) -> Iterator[_Number]:
    for name, device in basis.devices.items():
        at = ("devices", name)
        yield (*at, "reserve_bytes"), device.reserve_bytes
        for kind, unit in device.units.items():
            for field, series in (("working_bytes", unit.working_bytes), ("saved_bytes", unit.saved_bytes or ())):
                for index, num_bytes in enumerate(series):
                    yield (*at, "units", kind, field, index), num_bytes


def _rates(basis: Basis) -> Iterator[_Number]:
    for name, device in basis.devices.items():
        copy = device.host_copy
        if copy is not None:
            at = ("devices", name, "host_copy")
            yield (*at, "to_device_bytes_per_s"), copy.to_device_bytes_per_s
            yield (*at, "to_host_bytes_per_s"), copy.to_host_bytes_per_s
        for dtype, flops in (basis.cluster.device_types[name].peak_flops or {}).items():
            yield ("cluster", "device_types", name, "peak_flops", dtype), flops
    if basis.network != "ideal":
        for field, fit in (("all_gather", basis.network.all_gather), ("reduce_scatter", basis.network.reduce_scatter)):
            yield ("network", field, "bandwidth_bytes_per_s"), fit.bandwidth_bytes_per_s
