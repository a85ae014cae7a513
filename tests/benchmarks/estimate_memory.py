"""How counted memory compares with published peaks of one microbatch while training with recompute.

    python tests/benchmarks/estimate_memory.py [../shared/data/measured_working_memory.csv]

The published bytes are activations plus gathered parameters and gradients of another program, which is replayed: plain
attention where it had it, torch's cross entropy, gradients in the compute dtype; two units' parameters and gradients
are added to the unit's working memory.

A second comparison asks what a plan makes of it. A plan's gradients are float32, a reserve of 1 GiB stands beside them,
and a plan is accepted when all of it takes no more than 0.9 of a card; so it sets aside a ninth more than it counts.

The float16 rows of llama_7b repeat its float32 rows to the byte, so they are no measurement of 16-bit training; they
are counted all the same.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import get_args

sys.path.insert(0, str(Path(__file__).parents[2]))

from cephalo_cli import catalog
from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.plan import FsdpOptions, PlanSettings
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.costmodel.memory import buffers_bytes
from cephalo_cli.errors import ArtifactError
from cephalo_cli.profiler.attention import published_attention
from cephalo_cli.profiler.estimate import RESERVE_BYTES
from cephalo_cli.profiler.memory import memory_curve
from cephalo_cli.profiler.table import MemoryRow, read_memory_table
from cephalo_cli.schedule import step_stages
from cephalo_cli.units import model_units

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "measured_working_memory.csv"
SEQ_LEN = 512
MEDIAN, LOWEST = 0.15, -0.10


def counted_bytes(model: Model, dtype: DType, sizes: Sequence[int]) -> tuple[list[int], list[float]]:
    """Bytes that the published program needs, and bytes that a plan sets aside, by microbatch size."""
    attention = published_attention(model, catalog.device("a6000"))
    curves = [
        memory_curve(
            model, seq_len=SEQ_LEN, dtype=dtype, kind=kind, microbatches=sizes, attention=attention, loss="plain"
        )
        for kind in get_args(UnitKind)
    ]
    units = model_units(model)
    theirs, ours = (
        buffers_bytes(step_stages("layer-major", units, 1, options), num_ranks=4, dtype=dtype)
        for options in (FsdpOptions(reduce_dtype=dtype), None)
    )
    working = [max(unit.working_bytes for unit in at_size) for at_size in zip(*curves, strict=True)]
    fraction = PlanSettings().memory_fraction
    return [theirs + live for live in working], [(ours + live + RESERVE_BYTES) / fraction for live in working]


def errors(path: Path) -> dict[tuple[str, str, DType], tuple[list[float], list[float]]]:
    """Relative errors of every series whose model has a published shape: of the replay, and of what is set aside."""
    rows, _ = read_memory_table(path)
    series: dict[tuple[str, str, DType], list[MemoryRow]] = {}
    for row in rows:
        series.setdefault((row.cluster, row.model, row.dtype), []).append(row)
    found = {}
    for key, group in series.items():
        try:
            model = catalog.model(key[1])
        except ArtifactError:
            continue
        both = counted_bytes(model, key[2], [row.microbatch for row in group])
        replayed, aside = (
            [counted / row.working_bytes - 1 for counted, row in zip(counted_, group, strict=True)] for counted_ in both
        )
        found[key] = replayed, aside
    return found


def main(path: Path) -> int:
    """Print the errors of every series and of all; the exit code says whether the targets are met."""
    if not path.exists():
        print(f"{path} is not here: nothing to compare with")
        return 0
    by_series = errors(path)
    for (cluster, name, dtype), (replayed, aside) in by_series.items():
        shown = " ".join(f"{error:+5.0%}" for error in replayed)
        print(f"{cluster:12} {name:12} {dtype:9} {shown}  set aside from {min(aside):+.0%}")
    all_replayed = [error for replayed, _ in by_series.values() for error in replayed]
    middle = median(map(abs, all_replayed))
    lowest = min(error for _, aside in by_series.values() for error in aside)
    met = middle <= MEDIAN and lowest >= LOWEST
    print(f"{len(all_replayed)} points: median absolute error {middle:.1%} (at most {MEDIAN:.0%}), ", end="")
    print(f"set aside at least {lowest:+.1%} ({LOWEST:+.0%}): {'met' if met else 'NOT met'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA))
