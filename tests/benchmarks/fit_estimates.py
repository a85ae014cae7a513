"""Fit the catalog's coefficients on published block latencies, and measure how well they do on what they have not seen.

    python tests/benchmarks/fit_estimates.py ../shared/data/measured_block_latency.csv

writes ``cephalo_cli/catalog/coefficients.json``. The fit is a hierarchy, each level pulled towards the one above: all
devices, one architecture, one device; float32 and float16 apart. Errors are relative and count like a Huber loss, so
that a few odd series do not bend the rest; every series (model, device, length) weighs the same.
"""

import json
import math
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
from cephalo_cli.artifacts import Profile, store
from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import DeviceType
from cephalo_cli.catalog.coefficients import Coefficients
from cephalo_cli.catalog.data import device_records
from cephalo_cli.profiler import calibrate
from cephalo_cli.profiler.attention import published_attention
from cephalo_cli.profiler.roofline import Work, unit_seconds, unit_work
from cephalo_cli.profiler.table import LatencyRow, read_latency_table

Array = NDArray[np.float64]
NAMES = calibrate.COEFFICIENTS
START = dict(zip(NAMES, (1.4, 1.4, 1.2, 3.0, 8.0, 1.5, 3e-5, 0.05), strict=True))
"""Where all fits start, and what the uppermost level is pulled towards."""
PULL_UPPER, PULL_DEVICE = 0.06, 0.012
CPU_PROFILE = Path(__file__).parents[2] / "profiles" / "laptop-mixed.json"
"""The only measurement of CPUs that comes with the package: one core, at four emulated speeds."""
CALIBRATED = (
    "each series (model, device, length) of the source in turn corrects the coefficients of its device in its dtype; "
    "median relative error of the device's other models"
)
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


def calibrated_on_one_series(table: Table) -> Array:
    """Errors on a device of which only the datasheet, relatives and one series are known.

    Every series of the device is the known one in turn. Returns rows x (forward, backward) x turns; a row of the series
    itself, and turns that a device does not have, are nan.
    """
    return _calibrated(table, lambda seen, one, _: _by_architecture(table, seen & (table.devices != one), one))


def calibrated_known_device(table: Table) -> Array:
    """The same for a device with coefficients of its own, which have not seen the model that errors are of."""
    return _calibrated(table, lambda seen, one, model: device(table, seen & (table.models != model), one))


def calibrated_stranger(table: Table) -> Array:
    """The same for a device of an architecture that nobody measured."""

    def others(seen: NDArray[np.bool_], one: str, _: str) -> Array:
        return everywhere(table, seen & (table.architectures != table.architectures[table.devices == one][0]))

    return _calibrated(table, others)


def _calibrated(table: Table, estimate: Callable[[NDArray[np.bool_], str, str], Array]) -> Array:
    names = np.array(["/".join(map(str, series)) for series in table.series])
    cells = [(dtype, str(one)) for dtype in DTYPES for one in sorted(set(table.devices[table.dtypes == dtype]))]
    turns = max(len(set(names[_rows(table, cell)])) for cell in cells)
    errors = np.full((*table.seconds.shape, turns), np.nan)
    for cell in cells:
        own, of_dtype = _rows(table, cell), table.dtypes == cell[0]
        for model in sorted(set(table.models[own])):
            before, tested = estimate(of_dtype, cell[1], model), own & (table.models == model)
            for turn, series in enumerate(sorted(set(names[own]))):
                known, rows = names == series, tested & (names != series)
                if not rows.any() or (table.models[known] == model).all():
                    continue
                after = before + calibrate.spread_out(_factors(table, known, before))
                errors[rows, :, turn] = predict(table, rows, after) / table.seconds[rows] - 1
    return errors


def _rows(table: Table, cell: tuple[str, str]) -> NDArray[np.bool_]:
    rows: NDArray[np.bool_] = (table.dtypes == cell[0]) & (table.devices == cell[1])
    return rows


def _factors(table: Table, rows: NDArray[np.bool_], before: Array) -> Array:
    work = {name: column[rows] for name, column in table.work.items()}
    weights = np.full(int(rows.sum()), 1 / rows.sum())
    return calibrate.fit_factors(
        work, (table.peak_flops[rows], table.bandwidth[rows]), table.seconds[rows], weights, before
    )


def _by_architecture(table: Table, rows: NDArray[np.bool_], name: str) -> Array:
    return architecture(table, rows, str(table.architectures[table.devices == name][0]))


def document(table: Table) -> dict[str, Any]:
    """Fit everything there is for the catalog, each entry with the errors of what was left out."""
    errors = {
        "devices": (leave_model_out(table), calibrated_known_device(table)),
        "architectures": (leave_device_out(table), calibrated_on_one_series(table)),
        "everywhere": (leave_architecture_out(table), calibrated_stranger(table)),
    }
    levels: dict[str, Any] = {"everywhere": {}, "architectures": {}, "devices": {}}
    for dtype in DTYPES:
        rows = table.dtypes == dtype
        levels["everywhere"][dtype] = _entry(everywhere(table, rows), errors["everywhere"], rows)
        for name in sorted(set(table.architectures[rows])):
            of_name = rows & (table.architectures == name)
            levels["architectures"].setdefault(name, {})[dtype] = _entry(
                architecture(table, rows, name), errors["architectures"], of_name
            )
        for name in sorted(set(table.devices[rows])):
            of_name = rows & (table.devices == name)
            levels["devices"].setdefault(name, {})[dtype] = _entry(
                device(table, rows, name), errors["devices"], of_name
            )
    levels["architectures"]["x86"] = _cpu(levels["everywhere"])
    source = (
        "github.com/benson-guo/cephalo data/model_latencies.json (MIT), fitted by tests/benchmarks/fit_estimates.py"
    )
    return {"source": source, "calibrated": CALIBRATED, **levels}


def _cpu(everywhere: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """What is assumed of CPUs, of which the table has none, with the largest error of a block in `CPU_PROFILE`."""
    measured = store.read(CPU_PROFILE, Profile)
    cpu = catalog.device("cpu")
    values = Coefficients(**everywhere[measured.dtype])
    worst = 0.0
    for name, device_profile in measured.devices.items():
        speed = measured.cluster.device_types[name].emulated_speed or 1.0
        block = device_profile.units["block"]
        for size, forward_s, backward_s in zip(block.microbatch, block.forward_s, block.backward_s, strict=True):
            work = unit_work(
                measured.model,
                kind="block",
                tokens=measured.seq_len,
                dtype=measured.dtype,
                microbatch=size,
                attention="fused",
            )
            peak, bandwidth = (cpu.peak_flops or {})[measured.dtype], cpu.memory_bandwidth_bytes_per_s or 0.0
            seconds = unit_seconds(work, peak * speed, bandwidth * speed, values)
            worst = max(worst, abs(seconds[0] / forward_s - 1), abs(seconds[1] / backward_s - 1))
    rounded = math.ceil(worst * 1000) / 1000
    return {
        dtype: {**{name: entry[name] for name in NAMES}, "expected_error": rounded}
        for dtype, entry in everywhere.items()
    }


def _entry(logarithms: Array, errors: tuple[Array, Array], rows: NDArray[np.bool_]) -> dict[str, float]:
    """Round coefficients, with the median errors of some rows as they are and calibrated."""
    entry = {name: float(f"{value:.4g}") for name, value in zip(NAMES, np.exp(logarithms), strict=True)}
    for key, found in zip(("expected_error", "calibrated_error"), errors, strict=True):
        size = np.abs(found[rows])
        if not np.isnan(size).all():
            entry[key] = float(f"{np.nanmedian(size):.3g}")
    return entry


def write(content: dict[str, Any], path: Path) -> None:
    """Write the catalog's file, one line for each set of coefficients."""
    lines = ["{", *(f'  "{key}": {json.dumps(content[key])},' for key in ("source", "calibrated"))]
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
