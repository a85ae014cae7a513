"""Plans for tests: valid artifacts from shares and microbatches, with made-up times."""

from collections.abc import Sequence
from typing import Any

from cephalo_cli.artifacts import Cluster, Model, Plan
from cephalo_cli.artifacts.cluster import DeviceType, Node
from cephalo_cli.artifacts.plan import ExpectedRank, ExpectedStep, Memory, PlanSettings, RankPlan, SolverProof
from cephalo_cli.artifacts.profile import DeviceProfile, UnitProfile
from cephalo_cli.units import num_parameters

SEQ_LEN = 12
MEMORY_BYTES = 2 * 2**30


def make_model(family: str = "gpt", **changes: Any) -> Model:
    fields: dict[str, Any] = {
        "name": f"tiny-{family}",
        "family": family,
        "num_layers": 3,
        "hidden_size": 16,
        "num_heads": 4,
        "ffn_size": 24,
        "vocab_size": 260,
        "max_seq_len": 16,
    }
    return Model(**(fields | changes))


def make_plan(
    model: Model,
    microbatches: Sequence[Sequence[int]],
    shares: Sequence[float] | None = None,
    *,
    recompute: bool | Sequence[bool] = True,
    recompute_blocks: Sequence[int | None] | None = None,
    offload: bool = False,
    schedule: str = "layer-major",
    **changes: Any,
) -> Plan:
    num_ranks = len(microbatches)
    if shares is None:
        shares = [1.0 if schedule == "replicated" else 1.0 / num_ranks] * num_ranks
    recomputes = [recompute] * num_ranks if isinstance(recompute, bool) else recompute
    if recompute_blocks is None:
        recompute_blocks = [None] * num_ranks
    else:
        recomputes = [bool(blocks) for blocks in recompute_blocks]
    memory = Memory(
        state_bytes=0,
        buffers_bytes=0,
        working_bytes=0,
        saved_bytes=0,
        reserve_bytes=0,
        total_bytes=0,
        limit_bytes=MEMORY_BYTES,
    )
    curve = UnitProfile(microbatch=(1,), forward_s=(1e-3,), backward_s=(2e-3,), working_bytes=(0,))
    fields: dict[str, Any] = {
        "cluster": Cluster(
            name="here",
            device_types={"core": DeviceType(backend="cpu", memory_bytes=MEMORY_BYTES)},
            nodes=(Node(name="host", devices=("core",) * num_ranks),),
            network="ideal",
        ),
        "model": model,
        "seq_len": SEQ_LEN,
        "dtype": "float64",
        "num_parameters": num_parameters(model),
        "devices": {"core": DeviceProfile(method="estimated", units={"block": curve})},
        "network": "ideal",
        "strategy": "cephalo",
        "schedule": schedule,
        "global_batch_size": sum(map(sum, microbatches)),
        "settings": PlanSettings(),
        "ranks": tuple(
            RankPlan(
                rank=rank,
                node="host",
                device="core",
                microbatch_sizes=tuple(microbatches[rank]),
                state_share=shares[rank],
                recompute=recomputes[rank],
                recompute_blocks=recompute_blocks[rank],
                offload=offload,
                memory=memory,
                expected=ExpectedRank(forward_s=0.0, backward_s=0.0, optimizer_s=0.0),
            )
            for rank in range(num_ranks)
        ),
        "expected": ExpectedStep(step_s=1.0, samples_per_s=1.0, tokens_per_s=1.0, bound="compute"),
        "solver": SolverProof(status="heuristic", lower_bound_s=0.0, gap=0.0),
    }
    return Plan(**(fields | changes))
