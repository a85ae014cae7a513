"""The profile artifact: what the hardware does with one model's units."""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cephalo_cli.artifacts.base import (
    DType,
    Envelope,
    NonNegativeInt,
    NumBytes,
    PositiveFloat,
    PositiveInt,
    Seconds,
    Series,
    Share,
    Value,
)
from cephalo_cli.artifacts.cluster import Cluster
from cephalo_cli.artifacts.faults import MisfitError
from cephalo_cli.artifacts.model import Model

__all__ = [
    "Basis",
    "CollectiveFit",
    "CollectivePoint",
    "DeviceProfile",
    "HostCopy",
    "Identity",
    "NetworkProfile",
    "Profile",
    "UnitKind",
    "UnitProfile",
]

UnitKind = Literal["embedding", "block", "head"]
Method = Literal["measured", "imported", "estimated"]


class UnitProfile(Value):
    """Curves of one unit against microbatch size; every list is as long as ``microbatch``."""

    microbatch: Annotated[Series[PositiveInt], Field(min_length=1)]
    """Microbatch sizes, increasing."""
    forward_s: Series[Seconds]
    """Seconds of the forward pass (head: loss included)."""
    backward_s: Series[Seconds]
    """Seconds of the backward pass, without the recomputed forward."""
    working_bytes: Series[NumBytes]
    """Largest sum of live tensors inside the unit during forward and backward, parameters left out; where it was
    measured, what the allocator held for them."""
    saved_bytes: Series[NumBytes] | None = None
    """What autograd keeps between forward and backward without recompute; absent where it is not known."""
    forward_spread: Series[Annotated[float, Field(ge=0.0)]] | None = None
    """Interquartile range of the repeats divided by their median, forward."""
    backward_spread: Series[Annotated[float, Field(ge=0.0)]] | None = None
    """Interquartile range of the repeats divided by their median, backward."""
    measured_peak_bytes: Series[NumBytes] | None = None
    """Peak the device's own allocator reported, where it keeps count."""
    flags: Series[str] = ()
    """What looked odd: a noisy series, a series that decreases, a sweep that ended in out-of-memory."""

    @model_validator(mode="after")
    def _lists_match(self) -> Self:
        for index, (earlier, later) in enumerate(pairwise(self.microbatch), start=1):
            if later <= earlier:
                raise MisfitError(f"found {later}, expected more than {earlier}", at=("microbatch", index))
        for name in (
            "forward_s",
            "backward_s",
            "working_bytes",
            "saved_bytes",
            "forward_spread",
            "backward_spread",
            "measured_peak_bytes",
        ):
            series = getattr(self, name)
            if series is not None and len(series) != len(self.microbatch):
                raise MisfitError(
                    f"found {len(series)} values, expected {len(self.microbatch)}, one a microbatch size", at=(name,)
                )
        return self


class HostCopy(Value):
    """Copies between device and host memory."""

    to_device_bytes_per_s: PositiveFloat
    """Rate of copies from pinned host memory to the device."""
    to_host_bytes_per_s: PositiveFloat
    """Rate of copies from the device to pinned host memory."""
    pageable_to_device_bytes_per_s: PositiveFloat | None = None
    """The same from pageable host memory."""
    pageable_to_host_bytes_per_s: PositiveFloat | None = None
    """The same to pageable host memory."""
    latency_s: Seconds = 0.0
    """Seconds a copy of nothing takes."""


class Identity(Value):
    """Which device was measured, so that training can tell whether it runs on the same one."""

    name: str
    """The device's own name."""
    memory_bytes: NumBytes
    """The memory it reports."""
    uuid: str | None = None
    """UUID or PCI id, where the backend tells."""
    driver: str | None = None
    """Version of the driver, where the system tells."""
    backend_version: str | None = None
    """Version of CUDA, ROCm or what else torch was built for."""
    clock_hz: PositiveFloat | None = None
    """Highest clock of the device, where the backend tells."""
    torch: str
    """torch's version."""
    num_threads: PositiveInt | None = None
    """Intra-operation threads (cpu)."""
    keeps_to_one_cpu: Literal[True] | None = None
    """True where all threads of the rank kept to one CPU of the host (emulated devices that fit on its CPUs)."""


class DeviceProfile(Value):
    """What one device type does."""

    method: Method
    """How the numbers were obtained."""
    units: Annotated[dict[UnitKind, UnitProfile], Field(min_length=1)]
    """Curves by unit kind; a kind that is absent costs nothing (imported tables)."""
    optimizer_s_per_parameter: Seconds = 0.0
    """Seconds of the optimizer step for one parameter of the local shard."""
    collective_compute_s_per_byte: Seconds = 0.0
    """Seconds of compute that sending or receiving one byte in a collective costs (cpu: the same cores copy)."""
    collective_issue_part: Share | None = None
    """Part of that which comes before a collective starts, while nothing is computed; none when absent."""
    collective_stall_part: Share | None = None
    """Part of that which falls into times when nothing is computed although the collective runs; the rest slows
    compute. None when absent."""
    collective_alone_part: Share | None = None
    """Part of `collective_compute_s_per_byte` that a rank without samples spends: it moves bytes for less than a busy
    one. The closed form charges all of it, the simulator this part; all of it when absent."""
    host_copy: HostCopy | None = None
    """Copies to and from host memory; absent where they are the same memory or not known."""
    reserve_bytes: NumBytes = 0
    """Runtime context and fragmentation."""
    emulation: Literal["cgroup", "cooperative"] | None = None
    """How an emulated device was held to its speed and memory."""
    identity: Identity | None = None
    """The device that was measured."""
    expected_error: Annotated[float, Field(ge=0.0)] | None = None
    """Expected relative error of estimated times."""
    expected_memory_error: Annotated[float, Field(ge=0.0)] | None = None
    """Expected relative error of estimated working memory; absent where nothing is known."""
    expected_optimizer_error: Annotated[float, Field(ge=0.0)] | None = None
    """Expected relative error of the estimated optimizer; absent where nothing is known."""


class CollectivePoint(Value):
    """One measured collective."""

    unit_bytes: PositiveInt
    """Bytes of the whole unit."""
    shares: Series[Share]
    """Share of each rank."""
    seconds: Seconds
    """Median time from the last rank's start to the last rank's end."""


class CollectiveFit(Value):
    """Time of a collective: ``latency_s + busiest rank's bytes / bandwidth_bytes_per_s``."""

    latency_s: Seconds
    """Seconds of a collective over nothing."""
    bandwidth_bytes_per_s: PositiveFloat
    """Bytes a second through the busiest rank."""
    bandwidth_is_bound: Literal[True] | None = None
    """True where size made less difference than noise: the bandwidth is at least this, and was not resolved."""
    residual: Annotated[float, Field(ge=0.0)] | None = None
    """Median relative distance between the fit and the measured points."""
    points: Series[CollectivePoint] = ()
    """What was measured."""


class NetworkProfile(Value):
    """How collectives over unequal shards behave on the cluster."""

    method: Method
    """How the numbers were obtained."""
    algorithm: Literal["direct", "ring"]
    """direct: every rank sends its shard to every other; ring: shards travel round the ring in small pieces."""
    all_gather: CollectiveFit
    """Unsharding a unit."""
    reduce_scatter: CollectiveFit
    """Reducing a unit's gradient to its shards."""
    small_sum_s: Seconds | None = None
    """Seconds of adding up a few numbers over all ranks, which a step does twice: tokens, and loss and gradient norm.
    Nothing is assumed when absent."""
    expected_error: Annotated[float, Field(ge=0.0)] | None = None
    """Expected relative error of estimated collectives; absent where nothing is known."""


class Basis(Envelope):
    """What every prediction rests on; a profile is this alone, a plan carries it along."""

    cluster: Cluster
    """The cluster, catalog facts filled in."""
    model: Model
    """The model."""
    seq_len: PositiveInt
    """Tokens of one sample (for vit: patches and the class token). Times are of samples that are one document each:
    packed ones are hidden from one another by a mask, for which a profile knows no time."""
    dtype: DType
    """Compute dtype."""
    num_parameters: PositiveInt
    """Parameters of the whole model."""
    num_frozen_parameters: NonNegativeInt = 0
    """How many of them are not trained."""
    devices: Annotated[dict[str, DeviceProfile], Field(min_length=1)]
    """What each device type of the cluster does."""
    network: NetworkProfile | Literal["ideal"]
    """How collectives behave; ``ideal``: they take no time."""

    @model_validator(mode="after")
    def _covers_cluster(self) -> Self:
        used = {place.device for place in self.cluster.ranks}
        for missing in sorted(used - set(self.devices)):
            raise MisfitError("is missing, and the cluster uses this device type", at=("devices", missing))
        for unknown in sorted(set(self.devices) - set(self.cluster.device_types)):
            raise MisfitError("is not a device type of the cluster", at=("devices", unknown))
        return self


class Profile(Basis):
    """What the hardware does with one model's units."""

    kind: Literal["profile"] = "profile"
    """Always ``profile``."""
