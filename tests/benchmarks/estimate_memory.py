"""How counted memory compares with published peaks of one microbatch while training with recompute.

    python tests/benchmarks/estimate_memory.py [../shared/data/measured_working_memory.csv]

The published bytes are activations plus gathered parameters and gradients of another program, so beside the unit's
working memory they are compared with this program's buffers (two units' parameters and gradients) added, and with the
reserve of an estimate on top.
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
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.costmodel.memory import buffers_bytes
from cephalo_cli.errors import ArtifactError
from cephalo_cli.profiler.attention import attention_of
from cephalo_cli.profiler.estimate import RESERVE_BYTES
from cephalo_cli.profiler.memory import memory_curve
from cephalo_cli.profiler.table import MemoryRow, read_memory_table
from cephalo_cli.schedule import step_stages
from cephalo_cli.units import model_units

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "measured_working_memory.csv"
SEQ_LEN = 512


def counted_bytes(model: Model, dtype: DType, sizes: Sequence[int]) -> list[int]:
    """Bytes of buffers and of the largest unit, by microbatch size."""
    attention = attention_of(model, catalog.device("a6000"))
    curves = [
        memory_curve(model, seq_len=SEQ_LEN, dtype=dtype, kind=kind, microbatches=sizes, attention=attention)
        for kind in get_args(UnitKind)
    ]
    buffers = buffers_bytes(step_stages("layer-major", model_units(model)), num_ranks=4, dtype=dtype)
    return [buffers + max(unit.working_bytes for unit in units) for units in zip(*curves, strict=True)]


def main(path: Path) -> None:
    """Print the errors of every series and of all."""
    if not path.exists():
        print(f"{path} is not here: nothing to compare with")
        return
    rows, _ = read_memory_table(path)
    series: dict[tuple[str, str, DType], list[MemoryRow]] = {}
    for row in rows:
        series.setdefault((row.cluster, row.model, row.dtype), []).append(row)
    errors: list[float] = []
    reserved: list[float] = []
    for (cluster, name, dtype), group in series.items():
        try:
            model = catalog.model(name)
        except ArtifactError:
            print(f"{cluster:12} {name:12} {dtype:9} has no published shape")
            continue
        counted = counted_bytes(model, dtype, [row.microbatch for row in group])
        these = [found / row.working_bytes - 1 for found, row in zip(counted, group, strict=True)]
        reserved += [(found + RESERVE_BYTES) / row.working_bytes - 1 for found, row in zip(counted, group, strict=True)]
        errors += these
        print(f"{cluster:12} {name:12} {dtype:9} " + " ".join(f"{error:+5.0%}" for error in these))
    below = sum(error < -0.1 for error in reserved)
    print(f"{len(errors)} points: median absolute error {median(map(abs, errors)):.1%}, lowest {min(errors):+.0%}")
    print(f"with the reserve of 1 GiB: lowest {min(reserved):+.0%}, more than 10 % below at {below} points")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
