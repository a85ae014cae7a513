"""How well predictions come true on emulated clusters of this machine. Prints predicted and measured, shape by shape.

    python -m tests.benchmarks.emulated_shapes [SHAPE ...] [--repeats 3] [--steps 12] [--max-seconds 60] [--keep FOLDER]

Every shape goes through the command line as a user's would: profile once, plan, simulate, then train ``--repeats``
times. "off" is the predicted step over the measured one, less 1; "wait off" is how far a rank's predicted wait is off,
as a part of the measured step; the spread is that of the repeats' median steps, and of a rank's waits in parts of the
step. Run it on a machine that does nothing else, and that has at least as many cores as the speeds of a shape
add up to.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

STEP_LIMIT, WAIT_LIMIT = 0.10, 0.15
MODEL = Path(__file__).parents[2] / "examples" / "models" / "gpt-10m.json"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """An emulated cluster and what is trained on it."""

    speeds: tuple[float, ...]
    memory_mib: tuple[int, ...]
    seq_len: int
    batch_size: int
    about: str


# No device is so large that it could hold the whole state, which would need no gathers.
SHAPES = {
    "two-compute": Shape(speeds=(0.8, 0.4), memory_mib=(448, 1024), seq_len=128, batch_size=24, about="compute-bound"),
    "four-compute": Shape(
        speeds=(0.7, 0.5, 0.3, 0.2), memory_mib=(448, 1024, 512, 448), seq_len=128, batch_size=32, about="compute-bound"
    ),
    "two-network": Shape(
        speeds=(0.8, 0.4), memory_mib=(480, 480), seq_len=16, batch_size=4, about="communication-bound"
    ),
    "three-network": Shape(
        speeds=(0.8, 0.5, 0.3), memory_mib=(480, 480, 480), seq_len=32, batch_size=6, about="communication-bound"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A shape's reports."""

    plan: dict[str, Any]
    simulated: dict[str, Any]
    measured: list[dict[str, Any]]
    others_cores: float
    """Cores that other programs kept busy during the most disturbed training."""

    @property
    def step_s(self) -> float:
        """Median over the repeats of the measured step."""
        return float(median(each["step_s"] for each in self.measured))

    @property
    def step_off(self) -> float:
        """Predicted over measured, less 1."""
        return float(self.simulated["step_s"]) / self.step_s - 1

    def wait_s(self, rank: int) -> float:
        """Median over the repeats of a rank's measured wait."""
        return float(median(each["ranks"][rank]["wait_s"] for each in self.measured))

    def wait_off(self, rank: int) -> float:
        """Predicted wait less measured wait, as a part of the measured step."""
        return (float(self.simulated["ranks"][rank]["wait_s"]) - self.wait_s(rank)) / self.step_s

    def wait_spread(self, rank: int) -> float:
        """Largest less smallest measured wait, as a part of the measured step."""
        waits = [each["ranks"][rank]["wait_s"] for each in self.measured]
        return float(max(waits) - min(waits)) / self.step_s

    @property
    def is_right(self) -> bool:
        """Whether step and waits are within their limits."""
        waits = (abs(self.wait_off(rank)) <= WAIT_LIMIT for rank in range(len(self.simulated["ranks"])))
        return abs(self.step_off) <= STEP_LIMIT and all(waits)


def run(name: str, shape: Shape, folder: Path, options: argparse.Namespace) -> Outcome:
    """Profile, plan, simulate and train one shape."""
    folder.mkdir(parents=True, exist_ok=True)
    types = {
        f"cpu-{speed * 100:.0f}": {"backend": "cpu", "memory_bytes": mib * 2**20, "emulated_speed": speed}
        for speed, mib in zip(shape.speeds, shape.memory_mib, strict=True)
    }
    link = {"bandwidth_bytes_per_s": 1e9, "latency_s": 1e-4}
    node = {"name": "here", "devices": list(types), "link": link}
    content = {"kind": "cluster", "name": name, "device_types": types, "nodes": [node], "network": link}
    (folder / "cluster.json").write_text(json.dumps(content))
    paths = {part: str(folder / f"{part}.json") for part in ("cluster", "profile", "plan", "simulated")}
    length, most = str(shape.seq_len), str(min(8, shape.batch_size))
    if options.profile is None:
        profile_of = ["--model", str(MODEL), "--seq-len", length, "--max-microbatch", most]
        cephalo("profile", paths["cluster"], *profile_of, "--max-seconds", options.max_seconds, "-o", paths["profile"])
    else:
        paths["profile"] = str(Path(options.profile) / name / "profile.json")
    cephalo("plan", paths["profile"], "--batch-size", str(shape.batch_size), "-o", paths["plan"])
    cephalo("simulate", paths["plan"], "-o", paths["simulated"], "--trace", str(folder / "simulated.trace.json"))
    measured, others = [], 0.0
    for number in range(options.repeats):
        report = str(folder / f"measured-{number}.json")
        trace = str(folder / f"measured-{number}.trace.json")
        data = ["--data", "python-stdlib", "--steps", options.steps]
        others = max(others, cephalo("train", paths["plan"], *data, "-o", report, "--trace", trace))
        measured.append(json.loads(Path(report).read_text()))
    plan, simulated = (json.loads(Path(paths[part]).read_text()) for part in ("plan", "simulated"))
    return Outcome(plan=plan, simulated=simulated, measured=measured, others_cores=others)


def cephalo(*arguments: str) -> float:
    """Run one command line; gives how many cores other programs kept busy meanwhile."""
    start, busy_s, own_s = time.perf_counter(), machine_busy_s(), children_s()
    subprocess.run([sys.executable, "-m", "cephalo_cli", *arguments, "--quiet", "--force"], check=True)
    others_s = machine_busy_s() - busy_s - (children_s() - own_s)
    return max(0.0, others_s / (time.perf_counter() - start))


def machine_busy_s() -> float:
    """CPU seconds all programs of this machine have used, and those its host kept (Linux, proc(5))."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def children_s() -> float:
    """CPU seconds of the commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def show(name: str, shape: Shape, outcome: Outcome) -> None:
    """Print one shape."""
    steps = [each["step_s"] for each in outcome.measured]
    spread = (max(steps) - min(steps)) / outcome.step_s
    verdict = "" if outcome.is_right else "  TOO FAR OFF"
    print(
        f"\n{name}: {len(shape.speeds)} ranks, {shape.about}, batch {shape.batch_size}, length {shape.seq_len}, "
        f"{outcome.plan['schedule']}\n"
        f"  step: plan {outcome.plan['expected']['step_s'] * 1e3:.0f} ms, simulated "
        f"{outcome.simulated['step_s'] * 1e3:.0f} ms, measured {outcome.step_s * 1e3:.0f} ms "
        f"(spread {spread:.1%}), off {outcome.step_off:+.1%}{verdict}\n"
        f"  other programs kept up to {outcome.others_cores:.2f} cores busy during training\n"
        "  rank  samples  share   compute    measured       wait    measured  wait off  spread"
    )
    for rank, simulated in enumerate(outcome.simulated["ranks"]):
        compute_s = median(each["ranks"][rank]["compute_s"] for each in outcome.measured)
        print(
            f"  {rank:4}  {simulated['num_samples']:7}  {simulated['state_share']:5.2f}  "
            f"{simulated['compute_s'] * 1e3:6.0f} ms  {compute_s * 1e3:7.0f} ms  {simulated['wait_s'] * 1e3:6.0f} ms  "
            f"{outcome.wait_s(rank) * 1e3:7.0f} ms  {outcome.wait_off(rank):+8.1%}  {outcome.wait_spread(rank):6.1%}"
        )


def main(arguments: Sequence[str]) -> int:
    """Print the table; 1 when a prediction is too far off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"of {', '.join(SHAPES)}; all when absent")
    parser.add_argument("--repeats", type=int, default=3, help="trainings of one plan")
    parser.add_argument("--steps", default="12", help="steps of one training")
    parser.add_argument("--max-seconds", default="60", help="budget of the profile")
    parser.add_argument("--keep", metavar="FOLDER", help="where to leave the files")
    parser.add_argument("--profile", metavar="FOLDER", help="do not profile again: an earlier --keep FOLDER")
    options = parser.parse_args(arguments)
    outcomes = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.shapes or SHAPES:
            outcome = run(name, SHAPES[name], Path(options.keep or temporary) / name, options)
            show(name, SHAPES[name], outcome)
            outcomes.append(outcome)
    print(f"\n{sum(outcome.is_right for outcome in outcomes)} of {len(outcomes)} shapes predicted within limits")
    return int(not all(outcome.is_right for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
