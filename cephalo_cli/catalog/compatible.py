"""What devices must have in common to train together: a library for collectives, and the compute dtype."""

from collections.abc import Mapping
from typing import get_args

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import Cluster, DeviceType
from cephalo_cli.errors import UsageError

__all__ = ["expect_compatible", "expect_dtype", "expect_one_library"]


def expect_compatible(cluster: Cluster, dtype: DType) -> None:
    """Refuse a cluster whose devices cannot train together.

    Raises:
        UsageError: As `expect_one_library` and `expect_dtype`.
    """
    types = {place.device: cluster.device_types[place.device] for place in cluster.ranks}
    expect_one_library(types)
    expect_dtype(types, dtype)


def expect_one_library(types: Mapping[str, DeviceType]) -> None:
    """Refuse devices whose communication libraries cannot meet: each backend has a library of its own.

    Device types without a backend may be any. Source: ROCm/rccl issue 1220, where NCCL and RCCL in one group fail late,
    with truncated messages.

    Raises:
        UsageError: Two device types have different backends.
    """
    backends = {device.backend: name for name, device in types.items() if device.backend is not None}
    if len(backends) > 1:
        (first, one), (second, other) = list(backends.items())[:2]
        raise UsageError(
            f"{one!r} ({first}) and {other!r} ({second}) cannot be in one group of collectives",
            where="device_types",
            hint="make a cluster for each backend's devices",
        )


def expect_dtype(types: Mapping[str, DeviceType], dtype: DType) -> None:
    """Refuse a dtype that a device cannot run, and name those that all can.

    Raises:
        UsageError: A device type's peaks are known, and the dtype is not among them.
    """
    known = {name: device.peak_flops for name, device in types.items() if device.peak_flops is not None}
    for name, peaks in known.items():
        if dtype not in peaks:
            common = [other for other in get_args(DType) if all(other in each for each in known.values())]
            hint = f"all devices of the cluster run {' and '.join(common)}" if common else None
            raise UsageError(
                f"{name!r} cannot run {dtype}; it runs {', '.join(sorted(peaks))}", where="--dtype", hint=hint
            )
