"""A race: one model, one stream of batches, Cephalo against FSDP2 and DistributedDataParallel, in turns.

    python tests/benchmarks/race.py alone|equal|unequal|memory|whole [--rounds N] [--steps N] [--only NAME,...]

alone    world size 1 beside a plain PyTorch loop, on one core
equal    two ranks of a core each; FSDP2 and DDP have the even split, which is the plan's too. Two plain loops that run
         beside one another, with nothing to say to each other, show what the host's shared memory leaves to anybody
unequal  four ranks of 0.8, 0.5, 0.3 and 0.2 of a core; FSDP2 and DDP have the even split
memory   the same four, the fastest with little memory, which the kernel enforces: the even split dies of it
whole    the same four, none with enough memory for the model alone

Ranks are held to their part of a core, and to their memory, by control groups that come before other programs. The
model is a GPT of 25 million parameters, the text Python's own, recompute off but in ``memory`` and ``whole``, where
the planner chooses for Cephalo and FSDP2 also gets its most frugal setting. Contestants take turns, one run of all of
them a round; a run's first step warms up. ``--folder`` keeps profile, plan and every run, so a long race can be run in
pieces: the table is of all runs that are there. Ratios of throughputs are taken within a round.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from cephalo_cli.artifacts import Cluster, Model, Plan, Profile, store
from cephalo_cli.artifacts.cluster import DeviceType, Node
from cephalo_cli.artifacts.plan import PlanSettings, Switch
from cephalo_cli.errors import CephaloError
from cephalo_cli.executor import TrainOptions, run_training
from cephalo_cli.planner import make_plan
from cephalo_cli.profiler import profile_cluster
from cephalo_cli.runtime.launch import run_ranks
from tests.benchmarks.race_table import Run, table

DATA = "python-stdlib"
SEQ_LEN = 256
MODEL = Model(
    name="gpt-25m",
    family="gpt",
    num_layers=8,
    hidden_size=512,
    num_heads=8,
    ffn_size=2048,
    vocab_size=256,
    max_seq_len=SEQ_LEN,
)
AMPLE_BYTES = 6 * 2**30
SCARCE_BYTES = 464 * 2**20
"""Of the fastest rank in ``memory``."""
SMALL_BYTES = 560 * 2**20
"""Of every rank in ``whole``."""
SPEEDS = (0.8, 0.5, 0.3, 0.2)


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """Somebody who runs."""

    name: str
    plan: Plan
    options: dict[str, Any] = field(default_factory=dict)
    """Training options."""
    loops_on: Cluster | None = None
    """Where plain PyTorch loops run, one on each rank and each for itself, if it is these."""


def cluster_of(name: str, devices: Sequence[tuple[str, float, int]]) -> Cluster:
    """A cluster on this host: name, part of a core and memory of every device."""
    return Cluster(
        name=name,
        device_types={
            device: DeviceType(backend="cpu", memory_bytes=memory_bytes, emulated_speed=speed)
            for device, speed, memory_bytes in devices
        },
        nodes=(Node(name="here", devices=tuple(device for device, _, _ in devices)),),
        network="ideal",
    )


def clusters() -> dict[str, Cluster]:
    """The cluster of every part that has one of its own."""
    types = [(f"cpu-{round(100 * speed)}", speed, AMPLE_BYTES) for speed in SPEEDS]
    core = ("core", 1.0, AMPLE_BYTES)
    pair = cluster_of("equal", [core])
    return {
        "alone": cluster_of("alone", [core]),
        "equal": pair.model_copy(update={"nodes": (Node(name="here", devices=("core", "core")),)}),
        "unequal": cluster_of("unequal", types),
    }


def contestants(part: str, profile: Profile, batch_size: int) -> Iterator[Contestant]:
    """Who runs in a part."""

    def plan(of: Profile, size: int, recompute: Switch = "off") -> Plan:
        return make_plan(of, size, settings=PlanSettings(recompute=recompute))

    def single(device: str, size: int) -> Plan:
        return plan(_only(profile, device), size)

    if part == "alone":
        alone = single("core", batch_size)
        yield Contestant(name="plain", plan=alone, loops_on=alone.cluster)
        yield Contestant(name="cephalo", plan=alone)
        yield Contestant(name="fsdp2", plan=alone, options={"engine": "fsdp2"})
        return
    even = {"even_split": True}
    if part == "memory":
        scarce = plan(_with_memory(profile, SCARCE_BYTES, types=("cpu-80",)), batch_size, "auto")
        yield Contestant(name="cephalo", plan=scarce)
        yield Contestant(name="cephalo ample memory", plan=plan(profile, batch_size, "auto"))
        frugal = even | {"engine": "fsdp2", "recompute": True, "microbatch_size": 1}
        yield Contestant(name="fsdp2 recomputing", plan=scarce, options=frugal)
        yield Contestant(name="fsdp2", plan=scarce, options=even | {"engine": "fsdp2"})
        return
    if part == "whole":
        small = _with_memory(profile, SMALL_BYTES)
        yield Contestant(name="cephalo", plan=plan(small, batch_size, "auto"))
        alone = plan(_only(profile, "cpu-80"), 1, "on")
        yield Contestant(
            name="one rank alone", plan=alone.model_copy(update={"cluster": _only(small, "cpu-80").cluster})
        )
        return
    together = plan(profile, batch_size)
    yield Contestant(name="cephalo", plan=together)
    yield Contestant(name="fsdp2", plan=together, options=even | {"engine": "fsdp2"})
    yield Contestant(name="ddp", plan=together, options=even | {"engine": "ddp"})
    if part == "equal":
        one = single("core", batch_size // 2)
        yield Contestant(name="single core", plan=one)
        yield Contestant(name="two loops at once", plan=one, loops_on=together.cluster)
    else:
        for rank in together.ranks:
            size = max(1, sum(rank.microbatch_sizes))
            yield Contestant(name=f"single {rank.device}", plan=single(rank.device, size))


def train_plainly(_: Any, arguments: dict[str, Any]) -> list[float]:
    """Train as one would without any of this: one process, one model, one loop. Gives the seconds of every step."""
    import torch
    from torch import nn

    from cephalo_cli.executor.data import Batches
    from cephalo_cli.executor.datasets.opening import open_source
    from cephalo_cli.models import build_unit, initialise_
    from cephalo_cli.units import model_units

    plan = Plan.model_validate_json(json.dumps(arguments["plan"]))
    units = nn.ModuleList()
    for unit in model_units(plan.model):
        units.append(build_unit(plan.model, unit.kind))
        initialise_(units[-1], plan.model, unit.index, 0)
    groups = [
        {"params": [parameter for parameter in units.parameters() if parameter.ndim > 1], "weight_decay": 0.1},
        {"params": [parameter for parameter in units.parameters() if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    source = open_source(TrainOptions(data=DATA, num_steps=1), plan.model, seq_len=plan.seq_len, seed=0)
    batches = Batches(source, [list(plan.ranks[0].microbatch_sizes)], 0)
    seconds, position = [], 0
    for _step in range(arguments["num_steps"]):
        start = time.perf_counter()
        batch = batches.of_rank(0, position)
        num_tokens = sum(microbatch.num_counted for microbatch in batch)
        for microbatch in batch:
            x_BTD = units[0](microbatch)
            for block in units[1:-1]:
                x_BTD = block(x_BTD, microbatch)
            (units[-1](x_BTD, microbatch) / num_tokens).backward()
        nn.utils.clip_grad_norm_(units.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        position = batches.after(position)
        seconds.append(time.perf_counter() - start)
    return seconds


def run(contestant: Contestant, number: int, num_steps: int) -> Run:
    """Run one contestant once."""
    plan = contestant.plan
    num_loops = 1 if contestant.loops_on is None else len(contestant.loops_on.ranks)
    base = Run(name=contestant.name, round=number, num_samples=plan.global_batch_size * num_loops)
    try:
        if contestant.loops_on is not None:
            arguments = {"plan": json.loads(store.dumps(plan)), "num_steps": num_steps}
            seconds = run_ranks("race:train_plainly", arguments, contestant.loops_on)
            return Run(**(asdict(base) | {"steps_s": seconds[1:]}))
        options = TrainOptions(data=DATA, num_steps=num_steps, seed=0, **contestant.options)
        result = run_training(plan, options)
    except CephaloError as error:
        return Run(**(asdict(base) | {"error": error.message}))
    if result is None:
        raise AssertionError("local ranks give a result")
    report = result.report
    found = {
        "steps_s": [step.step_s for step in report.steps[1:]],
        "busy": [rank.compute_s / report.step_s for rank in report.ranks],
        "peaks_bytes": [rank.peak_memory_bytes for rank in report.ranks],
        "limits_bytes": [rank.memory.limit_bytes for rank in plan.ranks],
        "predicted_s": report.predicted_step_s,
    }
    if report.engine == "cephalo":
        found["planned_bytes"] = [rank.memory.total_bytes for rank in plan.ranks]
    return Run(**(asdict(base) | found))


def _only(profile: Profile, device: str) -> Profile:
    """The profile of one device alone."""
    cluster = profile.cluster.model_copy(
        update={
            "device_types": {device: profile.cluster.device_types[device]},
            "nodes": (Node(name="here", devices=(device,)),),
        }
    )
    return profile.model_copy(
        update={"cluster": cluster, "devices": {device: profile.devices[device]}, "network": "ideal"}
    )


def _with_memory(profile: Profile, memory_bytes: int, types: Sequence[str] = ()) -> Profile:
    """The profile of devices with other memory: of all types, or of some."""
    changed = {
        name: device.model_copy(update={"memory_bytes": memory_bytes} if name in types or not types else {})
        for name, device in profile.cluster.device_types.items()
    }
    return profile.model_copy(update={"cluster": profile.cluster.model_copy(update={"device_types": changed})})


def _profile(part: str, folder: Path, max_seconds: float) -> Profile:
    part = "unequal" if part in {"memory", "whole"} else part
    path = folder / f"{part}.profile.json"
    if not path.exists():
        profile = profile_cluster(
            clusters()[part], MODEL, SEQ_LEN, "float32", max_microbatch=8, max_seconds=max_seconds
        )
        if profile is None:
            raise AssertionError("local ranks give a profile")
        store.write(profile, path)
    return store.read(path, Profile)


def _busy_s() -> float:
    """CPU seconds of all programs since the start of the system (proc(5): user, nice and system time)."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return sum(map(int, fields[1:4])) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """CPU seconds of this process and of the ranks it started that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main(say: Callable[[str], None] = print) -> None:
    """Run the race."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("alone", "equal", "unequal", "memory", "whole"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3, help="of a run, the warm-up included")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--only", default="", help="names of contestants, with commas; none runs nobody")
    parser.add_argument("--folder", type=Path, default=Path("runs/race"))
    parser.add_argument("--max-seconds", type=float, default=40.0, help="of profiling")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    profile = _profile(arguments.part, arguments.folder, arguments.max_seconds)
    log = arguments.folder / f"{arguments.part}.jsonl"
    runs = [Run(**json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []
    first = max((entry.round for entry in runs), default=0) + 1
    wanted = arguments.only.split(",") if arguments.only else None
    for number in range(first, first + arguments.rounds):
        for contestant in contestants(arguments.part, profile, arguments.batch_size):
            if wanted is None or contestant.name in wanted:
                busy_s, own_s, start = _busy_s(), _own_s(), time.perf_counter()
                found = run(contestant, number, arguments.steps)
                others_s = max(0.0, _busy_s() - busy_s - (_own_s() - own_s))
                runs.append(replace(found, others_cpus=others_s / (time.perf_counter() - start)))
                with log.open("a") as file:
                    file.write(json.dumps(asdict(runs[-1])) + "\n")
    for line in table(runs):
        say(line)


if __name__ == "__main__":
    main()
