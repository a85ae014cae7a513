"""Fit the catalog's coefficients on published block latencies, and measure how well they do on what they have not seen.

    python tests/benchmarks/fit_estimates.py ../shared/data/measured_block_latency.csv

writes ``cephalo_cli/catalog/coefficients.json``. The fit is a hierarchy, each level pulled towards the one above: all
devices, one architecture, one device; float32 and float16 apart. Errors are relative and count like a Huber loss, so
that a few odd series do not bend the rest; every series (model, device, length) weighs the same.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2]))

from cephalo_cli import catalog
from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import DeviceType
from cephalo_cli.catalog.data import device_records
from cephalo_cli.profiler import calibrate
from cephalo_cli.profiler.attention import published_attention
from cephalo_cli.profiler.roofline import Work, unit_work
from cephalo_cli.profiler.table import LatencyRow, read_latency_table

Array = NDArray[np.float64]
NAMES = calibrate.COEFFICIENTS
START = dict(zip(NAMES, (1.4, 1.4, 1.2, 3.0, 8.0, 1.5, 3e-5, 0.05), strict=True))
"""Where all fits start, and what the uppermost level is pulled towards."""
PULL_UPPER, PULL_DEVICE = 0.06, 0.012
DTYPES: tuple[DType, ...] = ("float32", "float16")


@dataclass(frozen=True)
class Table:
    """Measurements as arrays; one row is one microbatch size."""

    models: NDArray[np.str_]
    devices: NDArray[np.str_]
    dtypes: NDArray[np.str_]
    architectures: NDArray[np.str_]
    series: tuple[tuple[str, str, int, str], ...]
    microbatch: NDArray[np.int64]
    work: dict[str, Array]
    peak_flops: Array
    bandwidth: Array
    seconds: Array
    """Rows x (forward, backward)."""


def read(path: Path) -> Table:
    """Read the published table; repeated rows count as their median."""
    rows, _ = read_latency_table(path)
    groups: dict[tuple[str, str, int, str, int], list[LatencyRow]] = {}
    for row in rows:
        groups.setdefault((row.model, row.device, row.seq_len, row.dtype, row.microbatch), []).append(row)
    facts = {device: catalog.device(device) for device in {key[1] for key in groups}}
    works = [_work(group[0], facts[group[0].device]) for group in groups.values()]
    keys = list(groups)
    return Table(
        models=np.array([key[0] for key in keys]),
        devices=np.array([key[1] for key in keys]),
        dtypes=np.array([key[3] for key in keys]),
        architectures=np.array([device_records()[str(facts[key[1]].catalog)].architecture for key in keys]),
        series=tuple(key[:4] for key in keys),
        microbatch=np.array([key[4] for key in keys]),
        work=calibrate.stacked(works),
        peak_flops=np.array([(facts[key[1]].peak_flops or {})[cast("DType", key[3])] for key in keys]),
        bandwidth=np.array([facts[key[1]].memory_bandwidth_bytes_per_s for key in keys]),
        seconds=np.array(
            [[median(r.forward_s for r in group), median(r.backward_s for r in group)] for group in groups.values()]
        ),
    )


def _work(row: LatencyRow, device: DeviceType) -> Work:
    model = catalog.model(row.model)
    return unit_work(
        model,
        kind="block",
        tokens=model.tokens_per_sample(row.seq_len),
        dtype=row.dtype,
        microbatch=row.microbatch,
        attention=published_attention(model, device),
    )


def predict(table: Table, rows: NDArray[np.bool_], logarithms: Array) -> Array:
    """Seconds of forward and backward for some rows."""
    work = {name: column[rows] for name, column in table.work.items()}
    return calibrate.predict(work, (table.peak_flops[rows], table.bandwidth[rows]), logarithms)


def fit(table: Table, rows: NDArray[np.bool_], towards: Array, pull: float) -> Array:
    """Fit logarithms of coefficients on some rows, pulled towards others; every series weighs the same."""
    if not rows.any():
        return towards
    series = [table.series[index] for index in np.flatnonzero(rows)]
    counts = Counter(series)
    weights = np.array([1 / len(counts) / counts[name] for name in series])
    work = {name: column[rows] for name, column in table.work.items()}
    rates = table.peak_flops[rows], table.bandwidth[rows]
    return calibrate.fit(work, rates, table.seconds[rows], weights, towards=towards, pull=pull)


def everywhere(table: Table, rows: NDArray[np.bool_]) -> Array:
    """Fit the uppermost level."""
    return fit(table, rows, np.log(np.array(list(START.values()))), PULL_UPPER)


def architecture(table: Table, rows: NDArray[np.bool_], name: str) -> Array:
    """Fit one architecture."""
    return fit(table, rows & (table.architectures == name), everywhere(table, rows), PULL_UPPER)


def device(table: Table, rows: NDArray[np.bool_], name: str) -> Array:
    """Fit one device type."""
    above = architecture(table, rows, str(table.architectures[table.devices == name][0]))
    return fit(table, rows & (table.devices == name), above, PULL_DEVICE)


def leave_out(
    table: Table, what: NDArray[np.str_], estimate: Callable[[Table, NDArray[np.bool_], str], Array]
) -> Array:
    """Relative errors (rows x forward, backward) of rows predicted by a fit that has seen nothing like them.

    Args:
        table: The measurements.
        what: For each row the model, device or architecture that is hidden together with it.
        estimate: Fits what predicts a device's rows: `device` when a model is left out, `architecture` by its name
            when a device is.
    """
    errors = np.zeros_like(table.seconds)
    for dtype in DTYPES:
        of_dtype = table.dtypes == dtype
        for name in sorted(set(what[of_dtype])):
            hidden = of_dtype & (what == name)
            for one in sorted(set(table.devices[hidden])):
                rows = hidden & (table.devices == one)
                logarithms = estimate(table, of_dtype & ~hidden, one)
                errors[rows] = predict(table, rows, logarithms) / table.seconds[rows] - 1
    return errors


def leave_model_out(table: Table) -> Array:
    """Errors on a model no device has shown."""
    return leave_out(table, table.models, device)


def leave_device_out(table: Table) -> Array:
    """Errors on a device of which only the datasheet and relatives are known."""
    return leave_out(table, table.devices, _by_architecture)


def leave_architecture_out(table: Table) -> Array:
    """Errors on a device of which only the datasheet is known."""
    return leave_out(table, table.architectures, lambda seen, rows, _: everywhere(seen, rows))


def calibrated_on_one_model(table: Table) -> Array:
    """Errors on a device of which only the datasheet, relatives and one short series of llama_7b are known."""

    def estimate(seen: Table, rows: NDArray[np.bool_], name: str) -> Array:
        dtype = str(seen.dtypes[rows][0])
        own = (seen.devices == name) & (seen.dtypes == dtype) & (seen.models == "llama_7b")
        lengths = np.array([series[2] for series in seen.series])
        shortest = own & (lengths == lengths[own].min())
        return fit(seen, shortest, _by_architecture(seen, rows, name), calibrate.PULL)

    errors = leave_out(table, table.devices, estimate)
    errors[table.models == "llama_7b"] = np.nan
    return errors


def _by_architecture(table: Table, rows: NDArray[np.bool_], name: str) -> Array:
    return architecture(table, rows, str(table.architectures[table.devices == name][0]))


def document(table: Table) -> dict[str, Any]:
    """Fit everything there is for the catalog, each entry with the error of what was left out."""
    errors = {
        "devices": leave_model_out(table),
        "architectures": leave_device_out(table),
        "everywhere": leave_architecture_out(table),
    }
    levels: dict[str, Any] = {"everywhere": {}, "architectures": {}, "devices": {}}
    for dtype in DTYPES:
        rows = table.dtypes == dtype
        levels["everywhere"][dtype] = _entry(everywhere(table, rows), errors["everywhere"][rows])
        for name in sorted(set(table.architectures[rows])):
            of_name = errors["architectures"][rows & (table.architectures == name)]
            levels["architectures"].setdefault(name, {})[dtype] = _entry(architecture(table, rows, name), of_name)
        for name in sorted(set(table.devices[rows])):
            of_name = errors["devices"][rows & (table.devices == name)]
            levels["devices"].setdefault(name, {})[dtype] = _entry(device(table, rows, name), of_name)
    source = (
        "github.com/benson-guo/cephalo data/model_latencies.json (MIT), fitted by tests/benchmarks/fit_estimates.py"
    )
    return {"source": source, **levels}


def _entry(logarithms: Array, errors: Array) -> dict[str, float]:
    rounded = {name: float(f"{value:.4g}") for name, value in zip(NAMES, np.exp(logarithms), strict=True)}
    return {**rounded, "expected_error": float(f"{np.median(np.abs(errors)):.3g}")}


def write(content: dict[str, Any], path: Path) -> None:
    """Write the catalog's file, one line for each set of coefficients."""
    lines = ["{", f'  "source": {json.dumps(content["source"])},']
    lines += ['  "everywhere": {', *_lines(content["everywhere"], "    "), "  },"]
    for level, end in (("architectures", ","), ("devices", "")):
        lines.append(f'  "{level}": {{')
        names = list(content[level])
        for name in names:
            comma = "," if name != names[-1] else ""
            lines += [f'    "{name}": {{', *_lines(content[level][name], "      "), f"    }}{comma}"]
        lines.append(f"  }}{end}")
    path.write_text("\n".join([*lines, "}"]) + "\n", encoding="utf-8")


def _lines(entries: dict[str, Any], indent: str) -> list[str]:
    return [
        f"{indent}{json.dumps(dtype)}: {json.dumps(entry)}{',' if dtype != list(entries)[-1] else ''}"
        for dtype, entry in entries.items()
    ]


if __name__ == "__main__":
    target = Path(__file__).parents[2] / "cephalo_cli" / "catalog" / "coefficients.json"
    write(document(read(Path(sys.argv[1]))), target)
