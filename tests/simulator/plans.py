"""Small plans made by hand, for the tests and benchmarks of whatever reads plans."""

from collections.abc import Mapping, Sequence
from typing import Literal

from cephalo_cli.artifacts import Cluster, Model, Plan
from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import DeviceType, Link, Node
from cephalo_cli.artifacts.plan import (
    ExpectedRank,
    ExpectedStep,
    PlanSettings,
    RankPlan,
    ScheduleName,
    SolverProof,
    Strategy,
)
from cephalo_cli.artifacts.profile import Basis, CollectiveFit, DeviceProfile, HostCopy, NetworkProfile, UnitProfile
from cephalo_cli.costmodel import RankChoice, rank_memory, step_estimate
from cephalo_cli.schedule import step_stages
from cephalo_cli.units import model_units, num_parameters

SPEEDS = {"fast": 1.0, "middle": 2.0, "slow": 4.0}
"""Seconds of compute relative to the fast device."""


def small_model(num_layers: int = 4, *, tied: bool = False) -> Model:
    return Model(
        name="tiny",
        family="gpt",
        num_layers=num_layers,
        hidden_size=64,
        num_heads=4,
        ffn_size=256,
        vocab_size=256,
        max_seq_len=128,
        tie_embeddings=tied,
    )


def curves(slowness: float, *, saved: bool = True) -> dict[Literal["embedding", "block", "head"], UnitProfile]:
    def unit(forward: float, backward: float, working: int) -> UnitProfile:
        sizes = (1, 2, 4, 8)
        return UnitProfile(
            microbatch=sizes,
            forward_s=tuple(slowness * (forward * size + 1e-4) for size in sizes),
            backward_s=tuple(slowness * (backward * size + 1e-4) for size in sizes),
            working_bytes=tuple(working * size for size in sizes),
            saved_bytes=tuple(working * size // 2 for size in sizes) if saved else None,
        )

    return {
        "embedding": unit(1e-4, 2e-4, 40_000),
        "block": unit(1e-3, 2e-3, 1_000_000),
        "head": unit(5e-4, 1e-3, 2_000_000),
    }


def make_basis(
    devices: Sequence[str],
    *,
    num_layers: int = 4,
    tied: bool = False,
    network: NetworkProfile | Literal["ideal"] | None = None,
    algorithm: Literal["direct", "ring"] = "direct",
    bandwidth: float = 1e9,
    moving: float = 0.0,
    host_rate: float | None = None,
    dtype: DType = "float32",
    memory_bytes: int = 2**30,
    peak_flops: float | None = None,
) -> Basis:
    model = small_model(num_layers, tied=tied)
    link = Link(bandwidth_bytes_per_s=bandwidth, latency_s=1e-5)
    fit = CollectiveFit(latency_s=1e-5, bandwidth_bytes_per_s=bandwidth)
    half = (len(devices) + 1) // 2
    nodes = [Node(name="node-a", devices=tuple(devices[:half]), link=link)]
    if devices[half:]:
        nodes.append(Node(name="node-b", devices=tuple(devices[half:]), link=link))
    copies = HostCopy(to_device_bytes_per_s=host_rate, to_host_bytes_per_s=host_rate) if host_rate else None
    return Basis(
        kind="profile",
        cluster=Cluster(
            name="by-hand",
            device_types={
                name: DeviceType(
                    backend="cpu",
                    memory_bytes=memory_bytes,
                    peak_flops=None if peak_flops is None else {dtype: peak_flops / SPEEDS[name]},
                )
                for name in sorted(set(devices))
            },
            nodes=tuple(nodes),
            network=link,
        ),
        model=model,
        seq_len=128,
        dtype=dtype,
        num_parameters=num_parameters(model),
        devices={
            name: DeviceProfile(
                method="measured",
                units=curves(SPEEDS[name]),
                optimizer_s_per_parameter=1e-8 * SPEEDS[name],
                collective_compute_s_per_byte=moving,
                host_copy=copies,
                reserve_bytes=1_000_000,
            )
            for name in sorted(set(devices))
        },
        network=network
        if network is not None
        else NetworkProfile(method="measured", algorithm=algorithm, all_gather=fit, reduce_scatter=fit),
    )


def make_plan(
    devices: Sequence[str],
    sizes: Sequence[Sequence[int]],
    shares: Sequence[float] | None = None,
    *,
    basis: Basis | None = None,
    recompute: bool | Sequence[bool] = True,
    offload: bool | Sequence[bool] = False,
    recompute_blocks: Sequence[int | None] | None = None,
    keep_unsharded: int = 0,
    schedule: ScheduleName = "layer-major",
    strategy: Strategy = "cephalo",
    settings: PlanSettings | None = None,
    **more: object,
) -> Plan:
    """Build a valid plan; ``more`` goes to `make_basis`."""
    number = len(devices)
    basis = basis or make_basis(devices, **more)  # type: ignore[arg-type]  # the names are make_basis' own
    settings = settings or PlanSettings()
    whole = [1.0] * number if schedule == "replicated" else [1 / number] * number
    shares = shares or whole
    on = [recompute] * number if isinstance(recompute, bool) else recompute
    out = [offload] * number if isinstance(offload, bool) else offload
    counts = recompute_blocks or [None] * number
    choices = [
        RankChoice(
            device=device,
            microbatch_sizes=tuple(mine),
            state_share=share,
            recompute=again if count is None else count > 0,
            offload=away,
            recompute_blocks=count,
        )
        for device, mine, share, again, away, count in zip(devices, sizes, shares, on, out, counts, strict=True)
    ]
    num_rounds = max(len(mine) for mine in sizes)
    step = step_stages(schedule, model_units(basis.model), num_rounds, keep_unsharded=keep_unsharded)
    estimate = step_estimate(basis, choices, step)
    samples = sum(sum(mine) for mine in sizes)
    samples_per_s = samples / estimate.step_s if estimate.step_s else 0.0
    ranks = [
        RankPlan(
            rank=place.rank,
            node=place.node,
            device=choice.device,
            microbatch_sizes=choice.microbatch_sizes,
            state_share=choice.state_share,
            recompute=choice.recompute,
            offload=choice.offload,
            recompute_blocks=choice.recompute_blocks,
            memory=rank_memory(basis, settings, choice, step=step, num_ranks=number),
            expected=ExpectedRank(
                forward_s=seconds.forward_s, backward_s=seconds.backward_s, optimizer_s=seconds.optimizer_s
            ),
        )
        for place, choice, seconds in zip(basis.cluster.ranks, choices, estimate.ranks, strict=True)
    ]
    content: Mapping[str, object] = {name: getattr(basis, name) for name in Basis.model_fields}
    return Plan(
        **{**content, "kind": "plan"},  # type: ignore[arg-type]  # the fields of a basis
        strategy=strategy,
        schedule=schedule,
        keep_unsharded=keep_unsharded or None,
        global_batch_size=samples,
        settings=settings,
        ranks=tuple(ranks),
        expected=ExpectedStep(
            step_s=estimate.step_s,
            samples_per_s=samples_per_s,
            tokens_per_s=samples_per_s * basis.seq_len,
            bound=estimate.bound,
        ),
        solver=SolverProof(status="heuristic", lower_bound_s=0.0, gap=1.0),
    )
