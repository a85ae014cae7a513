"""How long planning takes, by ranks, device types and batch: time, peak memory and gap, as a table or as JSON.

    python tests/benchmarks/planner.py [--json] [--max-ranks N]

Curves follow a roofline with a fixed overhead a microbatch and a few percent of reproducible noise, for embedding,
block and head; the network is a ring; memory is short enough that the smallest devices cannot take an even share.
"""

import argparse
import json
import random
import resource
import time
from dataclasses import asdict, dataclass

from cephalo_cli.artifacts.cluster import Cluster, DeviceType, Link, Node
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.profile import (
    CollectiveFit,
    DeviceProfile,
    HostCopy,
    NetworkProfile,
    Profile,
    UnitKind,
    UnitProfile,
)
from cephalo_cli.planner import make_plan
from cephalo_cli.units import model_units, num_parameters

TYPES = (
    ("a100", 312e12, 80),
    ("a6000", 155e12, 48),
    ("l4", 121e12, 24),
    ("v100", 112e12, 16),
    ("t4", 65e12, 16),
    ("p40", 12e12, 24),
)
"""Name, peak rate, GiB of memory."""

SIZES = ((8, 4, 128), (16, 4, 256), (64, 3, 1024), (64, 6, 1024), (256, 6, 2048), (1024, 6, 8192), (10_000, 1, 80_000))
"""Ranks, device types, batch."""

WIDER = ((4, 2, 32), (8, 4, 128), (64, 3, 1024))
"""Those planned again with the larger search."""


@dataclass(frozen=True)
class Measured:
    """One line of the table."""

    ranks: int
    types: int
    batch: int
    search: str
    """usual, or wider: also how many blocks recompute on each rank, and how many stay unsharded."""
    seconds: float
    """Of one call of `make_plan`, other strategies and checking included."""
    peak_mib: float
    """Largest resident memory of the process so far."""
    status: str
    gap: float


def profile_of(num_ranks: int, num_types: int) -> Profile:
    """A mixed cluster with equal parts of the first device types."""
    rng = random.Random(7)  # noqa: S311 - reproducible noise, not a secret
    model = Model(
        name="gpt",
        family="gpt",
        num_layers=32,
        hidden_size=4096,
        num_heads=32,
        ffn_size=16384,
        vocab_size=50257,
        max_seq_len=2048,
        tie_embeddings=True,
    )
    seq_len, hidden = 1024, model.hidden_size
    sizes = {unit.kind: unit.num_parameters for unit in model_units(model)}
    sizes["head"] += model.hidden_size * 50257
    points = tuple(range(1, 17))
    devices, types = {}, {}
    for name, peak, memory in TYPES[:num_types]:
        units: dict[UnitKind, UnitProfile] = {}
        for kind in ("embedding", "block", "head"):
            flops = 2 * sizes[kind] * seq_len * (0.01 if kind == "embedding" else 1.0)
            noise = [1 + 0.03 * rng.random() for _ in range(2 * len(points))]
            forward = [2e-4 + size * flops / (0.45 * peak) * noise[size - 1] for size in points]
            live = {"embedding": 8, "block": 60, "head": 16 * 50257 / hidden}[kind] * seq_len * hidden
            units[kind] = UnitProfile(
                microbatch=points,
                forward_s=tuple(forward),
                backward_s=tuple(2 * seconds * noise[-index] for index, seconds in enumerate(forward, 1)),
                working_bytes=tuple(round(live * size) for size in points),
                saved_bytes=tuple(round(0.6 * live * size) for size in points),
            )
        devices[name] = DeviceProfile(
            method="estimated",
            units=units,
            optimizer_s_per_parameter=40 / (peak / 312e12 * 2e12),
            host_copy=HostCopy(to_device_bytes_per_s=20e9, to_host_bytes_per_s=20e9, latency_s=1e-5),
            reserve_bytes=2**30,
        )
        types[name] = DeviceType(backend="cuda", memory_bytes=memory * 2**30, peak_flops={"bfloat16": peak})
    link = Link(bandwidth_bytes_per_s=25e9, latency_s=5e-6)
    members = [TYPES[index * num_types // num_ranks][0] for index in range(num_ranks)]
    nodes = tuple(
        Node(name=f"node{start // 8}", devices=tuple(members[start : start + 8]), link=link)
        for start in range(0, num_ranks, 8)
    )
    fit = CollectiveFit(latency_s=5e-5, bandwidth_bytes_per_s=25e9)
    return Profile(
        cluster=Cluster(name="bench", device_types=types, nodes=nodes, network=link),
        model=model,
        seq_len=seq_len,
        dtype="bfloat16",
        num_parameters=num_parameters(model),
        devices=devices,
        network=NetworkProfile(method="estimated", algorithm="ring", all_gather=fit, reduce_scatter=fit),
    )


def measure(num_ranks: int, num_types: int, batch: int, *, wider: bool = False) -> Measured:
    """Plan once."""
    profile = profile_of(num_ranks, num_types)
    settings = PlanSettings(recompute="blocks", keep_unsharded="auto") if wider else PlanSettings()
    start = time.perf_counter()
    plan = make_plan(profile, batch, settings=settings)
    seconds = time.perf_counter() - start
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    search = "wider" if wider else "usual"
    return Measured(num_ranks, num_types, batch, search, seconds, peak_mib, plan.solver.status, plan.solver.gap)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--max-ranks", type=int, default=10_000, help="leave out larger clusters")
    arguments = parser.parse_args()
    measure(2, 2, 4)
    found = [measure(*size) for size in SIZES if size[0] <= arguments.max_ranks]
    found += [measure(*size, wider=True) for size in WIDER if size[0] <= arguments.max_ranks]
    if arguments.json:
        print(json.dumps([asdict(line) for line in found], indent=2))
        return
    print(
        f"{'ranks':>6} {'types':>6} {'batch':>6} {'search':>6} {'seconds':>9} {'peak MiB':>9} {'status':>10} {'gap':>8}"
    )
    for line in found:
        print(
            f"{line.ranks:6} {line.types:6} {line.batch:6} {line.search:>6} {line.seconds:9.3f} {line.peak_mib:9.0f}"
            f" {line.status:>10} {line.gap:8.1e}"
        )


if __name__ == "__main__":
    main()
