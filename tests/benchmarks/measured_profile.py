"""How well a measured profile repeats, and predicts a bare step. Prints two tables for a model on this machine's CPU.

    python -m tests.benchmarks.measured_profile [--model examples/models/gpt-10m.json] [--seq-len 128]
        [--max-microbatch 8] [--batch-sizes 4,16] [--max-seconds 25] [--keep FOLDER]

One plain CPU device is profiled twice; "off" is the second median over the first, less 1. Then one rank trains, as
``cephalo train`` does, and "off" is the sum of the profile's times over the measured step, less 1. Run it on a machine
that does nothing else.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.emulated_shapes import MODEL, cephalo

REPEAT_LIMIT, STEP_LIMIT = 0.10, 0.10
MEMORY_BYTES = 8 * 2**30


def compare(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Print the medians of two profiles side by side; gives the largest distance."""
    print("unit       microbatch   forward     again      off   backward     again      off")
    worst = 0.0
    for kind, unit in first["devices"]["cpu"]["units"].items():
        again = second["devices"]["cpu"]["units"][kind]
        for index, size in enumerate(unit["microbatch"][: len(again["microbatch"])]):
            line = f"{kind:9}  {size:10}"
            for series in ("forward_s", "backward_s"):
                one, other = unit[series][index], again[series][index]
                worst = max(worst, abs(other / one - 1))
                line += f"  {one * 1e3:8.3f}  {other * 1e3:8.3f}  {other / one - 1:+7.1%}"
            print(line)
    return worst


def bare_step(profile: str, batch_size: str, folder: Path) -> float:
    """Plan and train one batch size, print prediction and measurement; gives how far off the prediction is."""
    plan, report = str(folder / f"plan-{batch_size}.json"), str(folder / f"report-{batch_size}.json")
    cephalo("plan", profile, "--batch-size", batch_size, "-o", plan)
    others = cephalo("train", plan, "--data", "python-stdlib", "--steps", "10", "-o", report)
    planned, measured = (json.loads(Path(path).read_text()) for path in (plan, report))
    off = float(planned["expected"]["step_s"] / measured["step_s"] - 1)
    rank, found = planned["ranks"][0], measured["ranks"][0]
    parts = "  ".join(
        f"{name} {rank['expected'][f'{name}_s'] * 1e3:.0f}/{found[f'{name}_s'] * 1e3:.0f}"
        for name in ("forward", "backward", "optimizer")
    )
    sizes = ",".join(map(str, rank["microbatch_sizes"]))
    print(
        f"batch {batch_size} as [{sizes}]: predicted {planned['expected']['step_s'] * 1e3:.0f} ms, measured "
        f"{measured['step_s'] * 1e3:.0f} ms, off {off:+.1%}  (ms predicted/measured: {parts}; "
        f"other programs {others:.2f} cores)"
    )
    return off


def main(arguments: Sequence[str]) -> int:
    """Print the tables; 1 when something is too far off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--seq-len", default="128")
    parser.add_argument("--max-microbatch", default="8")
    parser.add_argument("--batch-sizes", default="4,16", help="with commas")
    parser.add_argument("--max-seconds", default="25", help="budget of each profile")
    parser.add_argument("--keep", metavar="FOLDER", help="where to leave the files")
    options = parser.parse_args(arguments)
    content = {
        "kind": "cluster",
        "name": "one",
        "device_types": {"cpu": {"backend": "cpu", "memory_bytes": MEMORY_BYTES}},
        "nodes": [{"name": "here", "devices": ["cpu"]}],
        "network": "ideal",
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        cluster = folder / "cluster.json"
        cluster.write_text(json.dumps(content))
        profiles = [str(folder / f"profile-{number}.json") for number in (1, 2)]
        wanted = ["--model", options.model, "--seq-len", options.seq_len, "--max-microbatch", options.max_microbatch]
        for profile in profiles:
            others = cephalo("profile", str(cluster), *wanted, "--max-seconds", options.max_seconds, "-o", profile)
            print(f"profiled, while other programs kept {others:.2f} cores busy")
        worst = compare(*(json.loads(Path(profile).read_text()) for profile in profiles))
        offs = [bare_step(profiles[0], size, folder) for size in options.batch_sizes.split(",")]
    print(f"two profiles differ by at most {worst:.1%}; a bare step is off by at most {max(map(abs, offs)):.1%}")
    return int(worst > REPEAT_LIMIT or max(map(abs, offs)) > STEP_LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
