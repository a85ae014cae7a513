"""The cluster artifact: which devices there are, where they sit, and what connects them."""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cephalo_cli.artifacts.base import DType, Envelope, PositiveFloat, PositiveInt, Seconds, Value

__all__ = ["Cluster", "DeviceType", "Link", "Node", "RankPlace"]

Backend = Literal["cpu", "cuda", "rocm", "mps", "xpu", "hpu"]
"""What runs the tensors; ``rocm`` devices appear to torch as ``cuda`` but use RCCL instead of NCCL."""


class Link(Value):
    """A connection between devices."""

    bandwidth_bytes_per_s: PositiveFloat
    """Bytes a second in one direction."""
    latency_s: Seconds
    """Seconds before the first byte arrives."""


class DeviceType(Value):
    """A kind of accelerator. Either a catalog device (whose facts may be overridden here) or a custom one."""

    catalog: str | None = None
    """Id of a catalog device, such as ``l4`` or ``a100-80gb``."""
    description: str | None = None
    """What people call it."""
    backend: Backend | None = None
    """What runs tensors on it."""
    memory_bytes: PositiveInt | None = None
    """Capacity of one device."""
    memory_bandwidth_bytes_per_s: PositiveFloat | None = None
    """Peak rate of its memory."""
    peak_flops: dict[DType, PositiveFloat] | None = None
    """Peak floating-point operations a second of dense matrix products, by dtype."""
    host_link: Link | None = None
    """Connection between device and host memory."""
    emulated_speed: Annotated[float, Field(gt=0.0, le=1024.0)] | None = None
    """CPU cores (or a fraction of one) that an emulated device may use; cpu backend only."""
    price_per_hour: Annotated[float, Field(ge=0.0)] | None = None
    """What one device costs for an hour, in any one currency."""

    @model_validator(mode="after")
    def _says_enough(self) -> Self:
        if self.catalog is None and self.memory_bytes is None:
            raise ValueError("a device type needs either 'catalog' or 'memory_bytes'")
        if self.emulated_speed is not None and self.backend != "cpu":
            raise ValueError('\'emulated_speed\' is only for "backend": "cpu"')
        return self


class Node(Value):
    """A host and its devices."""

    name: Annotated[str, Field(min_length=1)]
    """Unique name of the host."""
    devices: Annotated[tuple[str, ...], Field(min_length=1)]
    """Device type of each device, in the order of local ranks."""
    link: Link | None = None
    """Connection between the devices of this host; may be left out for one device or an ideal network."""


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """Where a rank runs."""

    rank: int
    local_rank: int
    node: str
    device: str


class Cluster(Envelope):
    """Devices, hosts and links. Ranks are numbered in the order nodes, then devices."""

    kind: Literal["cluster"] = "cluster"
    """Always ``cluster``."""
    name: Annotated[str, Field(min_length=1)]
    """What the cluster is called."""
    device_types: Annotated[dict[str, DeviceType], Field(min_length=1)]
    """Device types by the name used in ``nodes``."""
    nodes: Annotated[tuple[Node, ...], Field(min_length=1)]
    """The hosts."""
    network: Link | Literal["ideal"]
    """Connection between hosts, per host and direction, or ``ideal``: collectives take no time."""

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        names = [node.name for node in self.nodes]
        if len(set(names)) != len(names):
            raise ValueError("two nodes have the same name")
        for index, node in enumerate(self.nodes):
            for device in node.devices:
                if device not in self.device_types:
                    known = ", ".join(sorted(self.device_types))
                    raise ValueError(f"nodes[{index}] uses device type {device!r}, which device_types lacks ({known})")
            if node.link is None and len(node.devices) > 1 and self.network != "ideal":
                raise ValueError(f"nodes[{index}].link is needed: the node has more than one device")
        return self

    @property
    def ranks(self) -> tuple[RankPlace, ...]:
        """Every rank's place, in rank order."""
        places = [(node.name, local, device) for node in self.nodes for local, device in enumerate(node.devices)]
        return tuple(
            RankPlace(rank=rank, local_rank=local, node=node, device=device)
            for rank, (node, local, device) in enumerate(places)
        )
