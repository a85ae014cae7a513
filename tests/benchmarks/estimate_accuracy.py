"""How well estimated times do against published measurements of one transformer block.

    python tests/benchmarks/estimate_accuracy.py [../shared/data/measured_block_latency.csv]

prints relative errors of forward and backward by device, dtype and model: with the model left out of the fit on all
devices, with the device left out, with its whole architecture left out, with the device left out but one series of
one model measured on it (errors on the other models); and how far the catalog's own coefficients
are from the measurements they were fitted on.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2]))

from cephalo_cli.artifacts.cluster import DeviceType
from cephalo_cli.catalog.coefficients import coefficients
from tests.benchmarks import fit_estimates as fits

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "measured_block_latency.csv"
TARGETS = {"model left out": (0.05, 0.20), "device left out": (0.15, None)}


def fitted(table: fits.Table) -> fits.Array:
    """Errors of the catalog's coefficients on what they were fitted on."""
    errors = np.zeros_like(table.seconds)
    for dtype in fits.DTYPES:
        for name in sorted(set(table.devices)):
            rows = (table.dtypes == dtype) & (table.devices == name)
            if rows.any():
                values = coefficients(DeviceType(catalog=str(name)), dtype)
                logarithms = np.log(np.array([getattr(values, field) for field in fits.NAMES]))
                errors[rows] = fits.predict(table, rows, logarithms) / table.seconds[rows] - 1
    return errors


def summary(errors: fits.Array) -> str:
    """Median and 90th percentile of absolute errors, and the median error with its sign."""
    errors = errors[~np.isnan(errors)]
    if not errors.size:
        return "-"
    size = np.abs(errors)
    return f"{np.median(size):7.1%} {np.quantile(size, 0.9):7.1%} {np.median(errors):+7.1%}"


def print_by(title: str, keys: NDArray[np.str_], columns: dict[str, fits.Array]) -> None:
    """Print one row for each key: number of points, then a summary of errors for each way of leaving out."""
    print(f"\n{title:38}{'points':>7}  " + "".join(f"{name:>25}" for name in columns))
    for key in sorted(set(keys)):
        rows = keys == key
        print(f"{key:38}{2 * rows.sum():7}  " + "".join(f"{summary(errors[rows]):>25}" for errors in columns.values()))


def main(path: Path) -> int:
    """Print the tables; the exit code says whether the targets are met."""
    if not path.exists():
        print(f"{path} is not here: nothing to compare with")
        return 0
    table = fits.read(path)
    columns = {
        "fitted": fitted(table),
        "model left out": fits.leave_model_out(table),
        "device left out": fits.leave_device_out(table),
        "architecture left out": fits.leave_architecture_out(table),
        "one model measured": fits.calibrated_on_one_series(table),
    }
    print("Relative errors of forward and backward: median of absolute values, 90th percentile, median with its sign.")
    joined = [np.char.add(np.char.add(table.dtypes, "  "), other) for other in (table.devices, table.models)]
    print_by("by device", joined[0], columns)
    print_by("by model", joined[1], columns)
    cell = np.char.add(np.char.add(joined[0], "  "), table.models)
    print_by("by device and model", cell, {name: columns[name] for name in ("model left out", "device left out")})
    print_by("all", np.full(table.dtypes.shape, "all"), columns)
    met = True
    for name, (middle, most) in TARGETS.items():
        size = np.abs(columns[name])
        reached = np.median(size) <= middle and (most is None or np.quantile(size, 0.9) <= most)
        met = met and bool(reached)
        wanted = f"median at most {middle:.0%}" + ("" if most is None else f", nine tenths within {most:.0%}")
        print(f"{name}: {wanted}: {'met' if reached else 'NOT met'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA))
