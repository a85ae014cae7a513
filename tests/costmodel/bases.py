"""A profile small enough to price by hand: every number below is meant to be multiplied on paper.

The model has these parameters: embedding E = 10 x 4 + 6 x 4 = 64, block B = 4 x 4 + 4 x (16 + 4) + (32 + 8) + (32 + 4)
= 172, head H = 8 and, when not tied, 10 x 4 = 40 more. A boundary of one sample is 6 x 4 = 24 elements.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cephalo_cli.artifacts import Cluster, Model, Profile
from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import DeviceType, Node
from cephalo_cli.artifacts.plan import ScheduleName
from cephalo_cli.artifacts.profile import CollectiveFit, DeviceProfile, HostCopy, NetworkProfile, UnitProfile
from cephalo_cli.costmodel import RankChoice, StepEstimate, step_estimate
from cephalo_cli.schedule import step_stages
from cephalo_cli.units import model_units, num_parameters

E, B, H = 64, 172, 48
TIED_H = 8

FORWARD = {"embedding": 1.0, "block": 4.0, "head": 3.0}
BACKWARD = {"embedding": 2.0, "block": 7.0, "head": 5.0}
"""Seconds per sample on device ``x``; every microbatch costs half a second more in each direction."""
SLOWNESS = {"x": 1.0, "y": 3.0}


def forward(device: str, kind: str, sizes: Sequence[int]) -> float:
    """Seconds of all microbatches, by hand."""
    return SLOWNESS[device] * sum(FORWARD[kind] * size + 0.5 for size in sizes)


def backward(device: str, kind: str, sizes: Sequence[int]) -> float:
    """Seconds of all microbatches, by hand."""
    return SLOWNESS[device] * sum(BACKWARD[kind] * size + 0.5 for size in sizes)


def basis(
    num_ranks: int = 2,
    *,
    num_layers: int = 2,
    tied: bool = False,
    dtype: DType = "float32",
    bandwidth: float = 1000.0,
    latency: float = 0.0,
    algorithm: Literal["direct", "ring"] = "direct",
    is_ideal: bool = False,
    frozen: int = 0,
    **device: Any,
) -> Profile:
    """A profile of ranks on devices x, y, x, y, ...; ``device`` goes to both device profiles."""
    model = Model(
        name="by-hand",
        family="gpt",
        num_layers=num_layers,
        hidden_size=4,
        num_heads=1,
        ffn_size=8,
        vocab_size=10,
        max_seq_len=6,
        tie_embeddings=tied,
    )
    gather = CollectiveFit(latency_s=latency, bandwidth_bytes_per_s=bandwidth)
    reduce = CollectiveFit(latency_s=2 * latency, bandwidth_bytes_per_s=bandwidth / 2)
    network = NetworkProfile(method="measured", algorithm=algorithm, all_gather=gather, reduce_scatter=reduce)
    names = ("x", "y")[:num_ranks]
    return Profile(
        cluster=Cluster(
            name="by-hand",
            device_types={name: DeviceType(backend="cuda", memory_bytes=100_001) for name in names},
            nodes=(Node(name="n", devices=tuple("xy"[rank % 2] for rank in range(num_ranks))),),
            network="ideal",
        ),
        model=model,
        seq_len=6,
        dtype=dtype,
        num_parameters=num_parameters(model),
        num_frozen_parameters=frozen,
        devices={name: _device(name, device) for name in names},
        network="ideal" if is_ideal else network,
    )


def choice(device: str, sizes: Sequence[int], share: float, **switches: bool) -> RankChoice:
    """What one rank does; recompute is on unless said otherwise."""
    return RankChoice(
        device=device,
        microbatch_sizes=tuple(sizes),
        state_share=share,
        recompute=switches.get("recompute", True),
        offload=switches.get("offload", False),
    )


def estimate(profile: Profile, choices: list[RankChoice], name: ScheduleName = "layer-major") -> StepEstimate:
    """Price a step under a schedule."""
    rounds = max(len(mine.microbatch_sizes) for mine in choices)
    return step_estimate(profile, choices, step_stages(name, model_units(profile.model), rounds))


def host_copy() -> HostCopy:
    """96 bytes a second to the device, 48 to the host: one and two seconds a boundary of one float32 sample."""
    return HostCopy(to_device_bytes_per_s=96.0, to_host_bytes_per_s=48.0, latency_s=0.25)


def _device(name: str, more: Mapping[str, Any]) -> DeviceProfile:
    points = (1, 2, 4)
    saved = {"embedding": 10, "block": 100, "head": 60}

    def unit(kind: str) -> UnitProfile:
        return UnitProfile(
            microbatch=points,
            forward_s=tuple(forward(name, kind, [size]) for size in points),
            backward_s=tuple(backward(name, kind, [size]) for size in points),
            working_bytes=tuple(4 * saved[kind] * size for size in points),
            saved_bytes=tuple(saved[kind] * size for size in points),
        )

    plain = {"method": "measured", "optimizer_s_per_parameter": 0.01 * SLOWNESS[name], "reserve_bytes": 1000}
    units = {"embedding": unit("embedding"), "block": unit("block"), "head": unit("head")}
    return DeviceProfile(**{**plain, "units": units, **more})
