"""The cluster artifact: which devices there are, where they sit, and what connects them."""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cephalo_cli.artifacts.base import DType, Envelope, PositiveFloat, PositiveInt, Seconds, Series, Value
from cephalo_cli.artifacts.faults import MisfitError, one_of, shown

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
            raise MisfitError("has neither 'catalog' nor 'memory_bytes', expected one of them")
        if self.emulated_speed is not None and self.backend != "cpu":
            raise MisfitError(f"is only for backend 'cpu', found backend {shown(self.backend)}", at=("emulated_speed",))
        return self


class Node(Value):
    """A host and its devices."""

    name: Annotated[str, Field(min_length=1)]
    """Unique name of the host."""
    devices: Annotated[Series[str], Field(min_length=1)]
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
    nodes: Annotated[Series[Node], Field(min_length=1)]
    """The hosts."""
    network: Link | Literal["ideal"]
    """Connection between hosts, per host and direction, or ``ideal``: collectives take no time."""

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        names: set[str] = set()
        for index, node in enumerate(self.nodes):
            at = ("nodes", index)
            if node.name in names:
                raise MisfitError(f"found {shown(node.name)} again, expected a name of its own", at=(*at, "name"))
            names.add(node.name)
            for place, device in enumerate(node.devices):
                if device not in self.device_types:
                    expected = one_of(self.device_types)
                    raise MisfitError(f"found {shown(device)}, expected {expected}", at=(*at, "devices", place))
            if node.link is None and len(node.devices) > 1 and self.network != "ideal":
                raise MisfitError("is missing, and the node has more than one device", at=(*at, "link"))
        return self

    @property
    def ranks(self) -> tuple[RankPlace, ...]:
        """Every rank's place, in rank order."""
        places = [(node.name, local, device) for node in self.nodes for local, device in enumerate(node.devices)]
        return tuple(
            RankPlace(rank=rank, local_rank=local, node=node, device=device)
            for rank, (node, local, device) in enumerate(places)
        )
