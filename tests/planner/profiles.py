"""Random small profiles with everything that can bind."""

import random
from typing import Literal

from cephalo_cli.artifacts.cluster import Cluster, DeviceType, Link, Node
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import (
    CollectiveFit,
    DeviceProfile,
    HostCopy,
    NetworkProfile,
    Profile,
    UnitKind,
    UnitProfile,
)
from cephalo_cli.units import num_parameters


def small_model(num_layers: int = 3, *, tie: bool = True) -> Model:
    return Model(
        name="tiny",
        family="gpt",
        num_layers=num_layers,
        hidden_size=16,
        num_heads=2,
        ffn_size=64,
        vocab_size=64,
        max_seq_len=16,
        tie_embeddings=tie,
    )


def curve(rng: random.Random, points: list[int], scale: float, bend: float) -> tuple[float, ...]:
    """Seconds that grow with the size, bent and noisy; now and then they decrease."""
    start = rng.uniform(0.1, 1.0) * scale
    return tuple(start + scale * point**bend * rng.uniform(0.6, 1.4) for point in points)


def random_device(
    rng: random.Random,
    *,
    backend: str,
    kinds: list[UnitKind],
    scale: float,
    state_bytes: int,
    keeps: bool,
    moving: float,
) -> DeviceProfile:
    points = sorted(rng.sample(range(1, 9), rng.randint(1, 5)))
    units: dict[UnitKind, UnitProfile] = {}
    for kind in kinds:
        working = [int(state_bytes * rng.uniform(0.005, 0.08) * (1 + 0.3 * point)) for point in points]
        if rng.random() < 0.8:
            working.sort()
        saved = tuple(int(value * rng.uniform(0.1, 0.9)) for value in working)
        size = {"embedding": 0.2, "block": 1.0, "head": 0.7}[kind] * scale
        bend = rng.choice([0.6, 0.8, 1.0, 1.0, 1.2])
        units[kind] = UnitProfile(
            microbatch=tuple(points),
            forward_s=curve(rng, points, size, bend),
            backward_s=curve(rng, points, 2 * size, bend),
            working_bytes=tuple(working),
            saved_bytes=saved if keeps else None,
        )
    copies = backend != "cpu" and rng.random() < 0.5
    return DeviceProfile(
        method="measured" if keeps else "imported",
        units=units,
        optimizer_s_per_parameter=rng.choice([0.0, 1e-7, 3e-7]) * rng.uniform(0.3, 3.0) * scale * 1e3,
        collective_compute_s_per_byte=moving * rng.uniform(0.5, 2.0),
        host_copy=HostCopy(
            to_device_bytes_per_s=rng.uniform(2e5, 2e6),
            to_host_bytes_per_s=rng.uniform(2e5, 2e6),
            latency_s=rng.choice([0.0, 2e-4]),
        )
        if copies
        else None,
        reserve_bytes=rng.choice([0, int(0.02 * state_bytes)]),
    )


def random_profile(seed: int, *, num_ranks: int | None = None, moving: bool | None = None) -> Profile:
    """A random small cluster: a network of each kind, unequal curves, memory from ample to short."""
    rng = random.Random(seed)  # noqa: S311 - test instances, not secrets
    model = small_model(rng.randint(1, 4), tie=rng.random() < 0.5)
    parameters = num_parameters(model)
    state_bytes = 16 * parameters
    ranks = num_ranks or rng.randint(2, 4)
    moves = rng.random() < 0.4 if moving is None else moving
    networks: list[Literal["direct", "ring", "ideal"]] = ["direct", "ring", "ideal", "direct", "ring"]
    network = rng.choice(networks)
    backend: Literal["cpu", "cuda"] = "cpu" if moves else "cuda"
    keeps = rng.random() < 0.7
    kinds: list[UnitKind] = ["embedding", "block", "head"] if rng.random() < 0.7 else ["block"]
    names = [f"type{index}" for index in range(rng.randint(1, ranks))]
    seconds = 1e-3
    per_byte = seconds / state_bytes if moves else 0.0
    devices, types = {}, {}
    for name in names:
        devices[name] = random_device(
            rng,
            backend=backend,
            kinds=kinds,
            scale=seconds * rng.uniform(0.3, 2.0),
            state_bytes=state_bytes,
            keeps=keeps,
            moving=per_byte,
        )
        memory = int(state_bytes * rng.choice([0.25, 0.5, 0.8, 1.5, 4.0]) * rng.uniform(0.8, 1.3))
        types[name] = DeviceType(backend=backend, memory_bytes=memory)
    members = names + [rng.choice(names) for _ in range(ranks - len(names))]
    rng.shuffle(members)
    link = Link(bandwidth_bytes_per_s=1e9, latency_s=1e-6)
    fits = [
        CollectiveFit(
            latency_s=rng.choice([0.0, 1e-4]), bandwidth_bytes_per_s=parameters / seconds * rng.uniform(0.3, 10.0)
        )
        for _ in range(2)
    ]
    return Profile(
        cluster=Cluster(
            name="random",
            device_types=types,
            nodes=(Node(name="node", devices=tuple(members), link=link),),
            network="ideal" if network == "ideal" else link,
        ),
        model=model,
        seq_len=8,
        dtype=rng.choice(["float32", "bfloat16"]),
        num_parameters=parameters,
        num_frozen_parameters=rng.choice([0, 0, parameters // 3]),
        devices=devices,
        network="ideal"
        if network == "ideal"
        else NetworkProfile(method="measured", algorithm=network, all_gather=fits[0], reduce_scatter=fits[1]),
    )


def tight(profile: Profile, seed: int) -> Profile:
    """The same with memory between what recomputing all blocks and what recomputing none needs."""
    rng = random.Random(seed)  # noqa: S311 - test instances, not secrets
    types = {}
    for name, device in profile.cluster.device_types.items():
        kept = profile.model.num_layers * (profile.devices[name].units["block"].saved_bytes or (0,))[-1]
        state = 16 * profile.num_parameters
        memory = int(state * rng.uniform(0.5, 0.9) + kept * rng.uniform(0.2, 1.2) + 30_000)
        types[name] = device.model_copy(update={"memory_bytes": memory})
    return profile.model_copy(update={"cluster": profile.cluster.model_copy(update={"device_types": types})})
