"""How the simulator scales: seconds and memory against ranks, units and microbatches. Prints a table.

Run from the project's root: ``python -m tests.benchmarks.simulator``. Every line is a process of its own, so that its
memory is its own; imports and the making of the plan are left out of the seconds. "distinct" ranks all differ, so that
none is played for another. "closed form" is the planner's estimate of the same plan, for scale.
"""

import json
import resource
import subprocess
import sys
import time

CASES = (
    (8, 32, 8, "alike"),
    (64, 80, 8, "alike"),
    (64, 80, 8, "distinct"),
    (256, 96, 8, "distinct"),
    (1024, 96, 8, "alike"),
    (1024, 96, 8, "distinct"),
)
LIMITS = {(64, 80, 8): (1.0, 2.0), (1024, 96, 8): (15.0, 2.0)}
"""Seconds and GiB that may not be exceeded."""


def measure(num_ranks: int, num_units: int, num_microbatches: int, kind: str) -> dict[str, float]:
    """Simulate one made-up plan in this process."""
    from cephalo_cli.simulator import simulate
    from cephalo_cli.simulator.explain import closed_form_s
    from tests.simulator.plans import SPEEDS, make_plan

    distinct = kind == "distinct"
    names = sorted(SPEEDS)
    weights = [1 + rank * distinct for rank in range(num_ranks)]
    plan = make_plan(
        [names[rank * len(names) // num_ranks] for rank in range(num_ranks)],
        [[1 + rank % 3 * distinct] * num_microbatches for rank in range(num_ranks)],
        [weight / sum(weights) for weight in weights],
        num_layers=num_units - 2,
    )
    start = time.perf_counter()
    closed_form_s(plan)
    estimated = time.perf_counter()
    run = simulate(plan)
    simulated = time.perf_counter()
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    num_events = len(run.timeline.events)
    return {
        "closed_s": estimated - start,
        "simulate_s": simulated - estimated,
        "peak_gib": peak_gib,
        "timeline_s": time.perf_counter() - simulated,
        "num_events": num_events,
        "groups": len(run.play.parts),
    }


def main() -> int:
    """Print the table; 1 when a limit is exceeded."""
    print("ranks  units  microbatches  ranks are  played  closed form  simulate  peak memory  time line    events")
    failed = False
    for case in CASES:
        arguments = [sys.executable, "-m", "tests.benchmarks.simulator", *map(str, case)]
        found = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
        seconds, gib = LIMITS.get(case[:3], (float("inf"), float("inf")))
        over = found["simulate_s"] > seconds or found["peak_gib"] > gib
        failed |= over
        print(
            f"{case[0]:5}  {case[1]:5}  {case[2]:12}  {case[3]:>9}  {found['groups']:6}  {found['closed_s']:9.2f} s  "
            f"{found['simulate_s']:6.2f} s  {found['peak_gib']:7.2f} GiB  {found['timeline_s']:7.2f} s  "
            f"{found['num_events']:8}{'  TOO MUCH' if over else ''}"
        )
    return int(failed)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        ranks, units, microbatches = map(int, sys.argv[1:4])
        print(json.dumps(measure(ranks, units, microbatches, sys.argv[4])))
    else:
        sys.exit(main())
