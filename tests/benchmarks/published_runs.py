"""Published training runs of MPT models under PyTorch FSDP, as plans that the simulator can play.

A row becomes what a user would write: a cluster of catalog devices in nodes of 8, a model's shape, an estimated
profile, and a plan with the choices the row states. Nothing here prices anything.

The latencies of the links are NCCL's own (``hwLat`` of ``src/graph/tuning.cc``, version 2.18: ring, simple protocol).
"""

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cephalo_cli import catalog
from cephalo_cli.artifacts import Cluster, Model, Plan, Profile
from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import DeviceType, Link, Node
from cephalo_cli.artifacts.plan import (
    ExpectedRank,
    ExpectedStep,
    FsdpOptions,
    PlanSettings,
    RankPlan,
    SolverProof,
)
from cephalo_cli.artifacts.profile import Basis
from cephalo_cli.catalog.data import device_records
from cephalo_cli.costmodel import RankChoice, rank_memory, step_estimate
from cephalo_cli.profiler import estimate_profile
from cephalo_cli.schedule import StepStages, step_stages
from cephalo_cli.units import model_units

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "published_fsdp_throughput.csv"
GPUS = {"h100_80gb": "h100-sxm", "a100_80gb": "a100-80gb", "a100_40gb": "a100-40gb"}
DTYPE: DType = "bfloat16"
DEVICES_OF_A_NODE = 8
LINK_LATENCY_S = 3.4e-6
NETWORK_LATENCY_S = 14e-6
FP8_SPEEDUP = 2.0
"""8-bit products over 16-bit ones at the peak (NVIDIA H100 datasheet); everything else of an fp8 run is bfloat16."""


@dataclass(frozen=True)
class Run:
    """One row."""

    model_name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    ffn_size: int
    vocab_size: int
    num_parameters: int
    seq_len: int
    num_gpus: int
    gpu: str
    node_bytes_per_s: float
    microbatch: int
    rounds: int
    precision: str
    keeps_gathered: bool
    recompute: bool
    offload: bool
    tokens_per_s: float
    """Measured, on one GPU."""

    @property
    def model(self) -> Model:
        """The model's shape: gpt without biases; MPT's LayerNorms have none either, ours do."""
        return Model(
            name=self.model_name,
            family="gpt",
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            ffn_size=self.ffn_size,
            vocab_size=self.vocab_size,
            max_seq_len=self.seq_len,
            tie_embeddings=True,
            linear_bias=False,
            activation="gelu",
        )

    @property
    def cluster(self) -> Cluster:
        """Nodes of 8 devices with NVLink."""
        name = GPUS[self.gpu]
        device = DeviceType(catalog=name)
        if self.precision == "amp_fp8":
            peak = (catalog.device(name).peak_flops or {})[DTYPE]
            device = DeviceType(catalog=name, peak_flops={DTYPE: FP8_SPEEDUP * peak})
        board = device_records()[name].board_link_bytes_per_s
        link = Link(bandwidth_bytes_per_s=board or 0.0, latency_s=LINK_LATENCY_S)
        num_nodes = -(-self.num_gpus // DEVICES_OF_A_NODE)
        devices = (name,) * min(self.num_gpus, DEVICES_OF_A_NODE)
        return Cluster(
            name=f"{self.num_gpus}x{name}",
            device_types={name: device},
            nodes=tuple(Node(name=f"node{index}", devices=devices, link=link) for index in range(num_nodes)),
            network=Link(bandwidth_bytes_per_s=self.node_bytes_per_s, latency_s=NETWORK_LATENCY_S),
        )

    @cached_property
    def profile(self) -> Profile:
        """The estimate."""
        return estimate_profile(
            self.cluster, self.model, seq_len=self.seq_len, dtype=DTYPE, max_microbatch=self.microbatch
        )

    def step(self, rounds: int | None = None) -> StepStages:
        """The stages of a step: FSDP reduces in bfloat16 after every microbatch."""
        options = FsdpOptions(
            keeps_gathered=self.keeps_gathered, reduces_every_microbatch=True, reduce_dtype="bfloat16"
        )
        return step_stages("microbatch-major", model_units(self.model), rounds or self.rounds, options)

    def choices(self, rounds: int | None = None) -> list[RankChoice]:
        """What every rank does."""
        choice = RankChoice(
            device=GPUS[self.gpu],
            microbatch_sizes=(self.microbatch,) * (rounds or self.rounds),
            state_share=1 / self.num_gpus,
            recompute=self.recompute,
            offload=self.offload,
        )
        return [choice] * self.num_gpus

    def plan(self) -> Plan:
        """The plan with the row's choices, as a file would hold it."""
        profile, step, choices = self.profile, self.step(), self.choices()
        settings = PlanSettings(recompute="on" if self.recompute else "off", microbatch_size=self.microbatch)
        memory = rank_memory(profile, settings, choices[0], step=step, num_ranks=self.num_gpus)
        estimate = step_estimate(profile, choices, step)
        seconds = estimate.ranks[0]
        samples = self.num_gpus * self.microbatch * self.rounds
        part = RankPlan(
            rank=0,
            node="node0",
            device=choices[0].device,
            microbatch_sizes=choices[0].microbatch_sizes,
            state_share=choices[0].state_share,
            recompute=self.recompute,
            offload=self.offload,
            memory=memory,
            expected=ExpectedRank(
                forward_s=seconds.forward_s, backward_s=seconds.backward_s, optimizer_s=seconds.optimizer_s
            ),
        )
        return Plan(
            **{**{name: getattr(profile, name) for name in Basis.model_fields}, "kind": "plan"},
            strategy="fsdp",
            schedule="microbatch-major",
            fsdp=FsdpOptions(
                keeps_gathered=self.keeps_gathered, reduces_every_microbatch=True, reduce_dtype="bfloat16"
            ),
            global_batch_size=samples,
            settings=settings,
            ranks=tuple(
                part.model_copy(update={"rank": place.rank, "node": place.node}) for place in profile.cluster.ranks
            ),
            expected=ExpectedStep(
                step_s=estimate.step_s,
                samples_per_s=samples / estimate.step_s,
                tokens_per_s=samples * self.seq_len / estimate.step_s,
                bound=estimate.bound,
            ),
            solver=SolverProof(status="heuristic", lower_bound_s=0.0, gap=1.0),
        )


def read(path: Path = DATA) -> list[Run]:
    """Read the published table."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_run(row) for row in csv.DictReader(file)]


def _run(row: dict[str, str]) -> Run:
    return Run(
        model_name=row["model"],
        num_layers=int(row["num_layers"]),
        hidden_size=int(row["hidden_size"]),
        num_heads=int(row["num_heads"]),
        ffn_size=int(row["ffn_size"]),
        vocab_size=int(row["vocab_size"]),
        num_parameters=int(row["params"]),
        seq_len=int(row["seq_len"]),
        num_gpus=int(row["num_gpus"]),
        gpu=row["gpu"],
        node_bytes_per_s=float(row["internode_gbit_per_s"]) * 1e9 / 8,
        microbatch=int(row["microbatch"]),
        rounds=int(row["grad_accum"]),
        precision=row["precision"],
        keeps_gathered=row["sharding"] == "SHARD_GRAD_OP",
        recompute=row["recompute"] == "True",
        offload=row["activation_offload"] == "True",
        tokens_per_s=float(row["tokens_per_s_per_gpu"]),
    )
