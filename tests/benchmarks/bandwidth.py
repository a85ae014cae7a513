"""Layered accumulation against microbatch-major FSDP where the network is slow. Prints a table.

Run from the project's root, as root: ``python -m tests.benchmarks.bandwidth``. Two hosts, which are network namespaces
of this machine with links held to a bandwidth by ``tc``, have one core each. They profile, and train 8 microbatches a
step with ``--engine cephalo`` and with ``--engine fsdp2``, which gathers every unit twice a microbatch: 17 transfers of
a unit in a step, the reduction included, where the layered order needs at most 3. "units" counts what left the hosts'
network cards in a step, headers included, in transfers of the whole model: with n hosts each is n - 1 times its bytes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.examples.hosts import Host, joined_hosts

NUM_MICROBATCHES = 8
NUM_STEPS = {"cephalo": (2, 6), "fsdp2": (2, 4)}
"""A short and a long run: their difference is free of what start-up moves."""


def cluster() -> dict[str, Any]:
    """Two hosts of one core each."""
    return {
        "kind": "cluster",
        "schema_version": "1.0",
        "name": "two-hosts",
        "device_types": {"core": {"backend": "cpu", "memory_bytes": 4 * 2**30, "emulated_speed": 1.0}},
        "nodes": [{"name": name, "devices": ["core"]} for name in ("left", "right")],
        "network": "ideal",
    }


def on_hosts(hosts: Sequence[Host], *arguments: str) -> None:
    """Run one ``cephalo`` command as one rank a host.

    Raises:
        RuntimeError: A rank failed.
    """
    started = []
    for rank, host in enumerate(hosts):
        meeting = {"RANK": rank, "WORLD_SIZE": len(hosts), "MASTER_ADDR": hosts[0].address, "MASTER_PORT": 29500}
        started.append(
            subprocess.Popen(
                host.command(
                    *(f"{name}={value}" for name, value in meeting.items()),
                    *(sys.executable, "-m", "cephalo_cli", *arguments, "--quiet", "--force"),
                ),
                env={**os.environ, "PYTHONPATH": str(Path.cwd())},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    talk = [process.communicate()[1] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"cephalo {' '.join(arguments)} failed:\n" + "\n".join(talk))


def race(hosts: Sequence[Host], folder: Path, engine: str, model_bytes: int) -> tuple[list[float], float]:
    """Seconds of the steps after the first, and transfers of the whole model in a step."""
    sent = []
    for num_steps in NUM_STEPS[engine]:
        before = sum(host.sent_bytes() for host in hosts)
        report = folder / f"{engine}.json"
        options = ("--engine", engine, "--data", "python-stdlib", "--steps", str(num_steps), "-o", str(report))
        on_hosts(hosts, "train", str(folder / "plan.json"), *options)
        sent.append(sum(host.sent_bytes() for host in hosts) - before)
    short, long = NUM_STEPS[engine]
    steps = [step["step_s"] for step in json.loads(report.read_text())["steps"][1:]]
    return steps, (sent[1] - sent[0]) / (long - short) / model_bytes / (len(hosts) - 1)


def measure(bits_per_s: float, model: str, seq_len: int) -> None:
    """Profile, plan and race at one bandwidth."""
    with tempfile.TemporaryDirectory() as name, joined_hosts(2, bits_per_s) as hosts:
        folder = Path(name)
        (folder / "cluster.json").write_text(json.dumps(cluster()))
        profile, plan = str(folder / "profile.json"), str(folder / "plan.json")
        sizes = ("--seq-len", str(seq_len), "--max-microbatch", "2", "--max-seconds", "15")
        on_hosts(hosts, "profile", str(folder / "cluster.json"), "--model", model, *sizes, "-o", profile)
        batch = ("--batch-size", str(NUM_MICROBATCHES * len(hosts)), "--microbatch-size", "1", "--recompute", "off")
        words = (sys.executable, "-m", "cephalo_cli", "plan", profile, *batch, "-o", plan, "--quiet")
        subprocess.run(words, check=True)
        planned = json.loads((folder / "plan.json").read_text())
        counts = "+".join(str(len(rank["microbatch_sizes"])) for rank in planned["ranks"])
        model_bytes = 4 * planned["num_parameters"]
        seconds = {}
        for engine in NUM_STEPS:
            steps, units = race(hosts, folder, engine, model_bytes)
            seconds[engine] = statistics.median(steps)
            print(
                f"{bits_per_s / 1e6:6.0f} Mbit/s  {engine:8}{counts:>14}{units:10.2f}{seconds[engine]:12.2f} s"
                f"{min(steps):10.2f} to {max(steps):.2f} s",
                flush=True,
            )
        predicted = planned["expected"]["step_s"]
        error = predicted / seconds["cephalo"] - 1
        print(
            f"       cephalo is {seconds['fsdp2'] / seconds['cephalo']:.2f} times as fast; "
            f"predicted {predicted:.2f} s, {error:+.1%}",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit-per-s", type=float, nargs="+", default=[200, 1000])
    parser.add_argument("--model", default="examples/models/gpt-10m.json")
    parser.add_argument("--seq-len", type=int, default=128)
    arguments = parser.parse_args()
    print("      network  engine    microbatches     units      a step     spread")
    for mbit_per_s in arguments.mbit_per_s:
        measure(mbit_per_s * 1e6, arguments.model, arguments.seq_len)


if __name__ == "__main__":
    main()
