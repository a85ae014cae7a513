"""Fit the catalog's bfloat16 coefficients on the throughput of published training runs, one set a GPU type.

    python -m tests.benchmarks.fit_throughput [--leave-out]

writes ``cephalo_cli/catalog/coefficients_bfloat16.json``; with ``--leave-out`` it instead prints how well sets do that
have not seen a model, or a sequence length. Runs cannot tell forward from backward, so both share one efficiency of
products. Each set is pulled towards the type's coefficients for float16, which come from the times of single blocks.
Errors are relative and count like a Huber loss. fp8 runs are not fitted.

The step is priced by the cost model's closed form, which the simulator reproduces to 0.1 % on these plans.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from cephalo_cli import catalog
from cephalo_cli.artifacts.profile import DeviceProfile, Profile, UnitKind, UnitProfile
from cephalo_cli.catalog.coefficients import Coefficients, coefficients
from cephalo_cli.catalog.data import device_records
from cephalo_cli.costmodel import step_estimate
from cephalo_cli.profiler.roofline import Work, unit_seconds, unit_work
from tests.benchmarks.published_runs import DTYPE, GPUS, Run, read

Array = NDArray[np.float64]
FREE = ("products", "passes", "gradients", "fused_attention", "collectives")
TARGET = Path(__file__).parents[2] / "cephalo_cli" / "catalog" / "coefficients_bfloat16.json"
HUBER, PULL = 0.03, 0.004
SUSTAINED = 1e-3
"""Close to none: in a run of hours a card is as warm as it gets, whatever one call takes."""


@dataclass(frozen=True)
class Case:
    """A run, made ready to be priced often."""

    run: Run
    profile: Profile
    works: dict[UnitKind, Work]

    def tokens_per_s(self, fit: Coefficients) -> float:
        """Tokens a second of one GPU; rounds after the second take as long as the second."""
        run = self.run
        profile = self.profile.model_copy(update={"devices": {GPUS[run.gpu]: self._device(fit)}})
        first = step_estimate(profile, run.choices(1), run.step(1)).step_s
        again = step_estimate(profile, run.choices(2), run.step(2)).step_s - first if run.rounds > 1 else 0.0
        return run.microbatch * run.rounds * run.seq_len / (first + (run.rounds - 1) * again)

    def _device(self, fit: Coefficients) -> DeviceProfile:
        name = GPUS[self.run.gpu]
        facts, old = self.profile.cluster.device_types[name], self.profile.devices[name]
        peak, bandwidth = (facts.peak_flops or {})[DTYPE], facts.memory_bandwidth_bytes_per_s or 0.0
        units = {}
        for kind, work in self.works.items():
            forward_s, backward_s = unit_seconds(work, peak, bandwidth, fit)
            units[kind] = UnitProfile.model_construct(
                microbatch=(self.run.microbatch,),
                forward_s=(forward_s,),
                backward_s=(backward_s,),
                working_bytes=(0,),
                saved_bytes=None,
            )
        return old.model_copy(update={"units": units, "collective_compute_s_per_byte": fit.collectives / bandwidth})


def case(run: Run) -> Case:
    """Estimate a run's profile and count its units' work."""
    works = {
        kind: unit_work(
            run.model, kind=kind, tokens=run.seq_len, dtype=DTYPE, microbatch=run.microbatch, attention="fused"
        )
        for kind in get_args(UnitKind)
    }
    return Case(run, run.profile, works)


def start(gpu: str) -> Array:
    """Logarithms of the free coefficients before any run was seen."""
    before = coefficients(catalog.device(GPUS[gpu]), "float16")
    products = (before.forward_products + 2 * before.backward_products) / 3
    values: Array = np.array([products, *(getattr(before, name) for name in FREE[1:])])
    logarithms: Array = np.log(values)
    return logarithms


def filled(gpu: str, logarithms: Array, expected_error: float = 0.0) -> Coefficients:
    """All coefficients of a type."""
    values = dict(zip(FREE, map(float, np.exp(logarithms)), strict=True))
    products = values.pop("products")
    changes = {
        **values,
        "forward_products": products,
        "backward_products": products,
        "sustained": SUSTAINED,
        "expected_error": expected_error,
        "calibrated_error": None,
    }
    return coefficients(catalog.device(GPUS[gpu]), "float16").model_copy(update=changes)


def fit(cases: Sequence[Case], gpu: str, begin: Array | None = None) -> Array:
    """Fit one type's free coefficients on its runs."""
    towards = start(gpu)
    seen = [each for each in cases if each.run.precision != "amp_fp8"]

    def residuals(logarithms: Array) -> Array:
        values = filled(gpu, logarithms)
        error = np.log(np.array([each.tokens_per_s(values) / each.run.tokens_per_s for each in seen]))
        damped = np.sign(error) * HUBER * np.sqrt(2 * (np.sqrt(1 + (error / HUBER) ** 2) - 1))
        found: Array = np.concatenate([damped / np.sqrt(len(seen)), PULL * (logarithms - towards)])
        return found

    found: Array = least_squares(residuals, towards if begin is None else begin, xtol=1e-4, ftol=1e-5).x
    return found


def errors(cases: Sequence[Case], values: Coefficients) -> list[float]:
    """Relative errors of tokens a second."""
    return [each.tokens_per_s(values) / each.run.tokens_per_s - 1 for each in cases]


def leave_out(cases: Sequence[Case], gpu: str, key: Callable[[Run], Any]) -> list[float]:
    """Errors on runs whose key the fit has not seen."""
    found = []
    whole = fit(cases, gpu)
    for value in sorted({key(each.run) for each in cases}):
        seen = [each for each in cases if key(each.run) != value]
        hidden = [each for each in cases if key(each.run) == value]
        found += errors(hidden, filled(gpu, fit(seen, gpu, whole)))
    return found


def summary(found: Sequence[float]) -> str:
    """Number, median and 90th percentile of absolute errors, and the median with its sign."""
    size = np.abs(found)
    return f"{len(found):4} {np.median(size):7.1%} {quantiles(size, n=10)[-1]:7.1%} {np.median(found):+7.1%}"


def main(arguments: Sequence[str]) -> None:
    """Fit and write, or leave out and print."""
    cases = {gpu: [case(run) for run in read() if run.gpu == gpu] for gpu in GPUS}
    if "--leave-out" in arguments:
        for what, key in (("model", lambda run: run.model_name), ("sequence length", lambda run: run.seq_len)):
            by_gpu = {gpu: leave_out(cases[gpu], gpu, key) for gpu in GPUS}
            for gpu, found in by_gpu.items():
                print(f"{what + ' left out':24} {gpu:10} {summary(found)}")
            print(f"{what + ' left out':24} {'all':10} {summary([one for found in by_gpu.values() for one in found])}")
        return
    devices: dict[str, Coefficients] = {}
    by_architecture: dict[str, list[Coefficients]] = {}
    for gpu, ready in cases.items():
        logarithms = fit(ready, gpu)
        found = errors(ready, filled(gpu, logarithms))
        print(f"{gpu:10} {summary(found)}")
        held_out = float(np.median(np.abs(leave_out(ready, gpu, lambda run: run.model_name))))
        devices[GPUS[gpu]] = filled(gpu, logarithms, held_out)
        by_architecture.setdefault(device_records()[GPUS[gpu]].architecture, []).append(devices[GPUS[gpu]])
    architectures = {name: _middle(sets) for name, sets in by_architecture.items()}
    write(devices, architectures)


def _middle(sets: Sequence[Coefficients]) -> Coefficients:
    """Geometric means, for a type of the same architecture without runs of its own."""
    names = [name for name in Coefficients.model_fields if name not in ("expected_error", "calibrated_error")]
    means = {name: float(np.exp(np.mean([np.log(getattr(each, name)) for each in sets]))) for name in names}
    return Coefficients(**means, expected_error=2 * max(each.expected_error for each in sets))


def write(devices: dict[str, Coefficients], architectures: dict[str, Coefficients]) -> None:
    """Write the catalog's file, one line for each set."""
    source = (
        "github.com/mosaicml/llm-foundry scripts/train/benchmarking/README.md (Apache-2.0), "
        "fitted by tests/benchmarks/fit_throughput.py"
    )
    lines = ["{", f'  "source": {json.dumps(source)},']
    for level, sets, end in (("architectures", architectures, ","), ("devices", devices, "")):
        entries = [f'    "{name}": {{"{DTYPE}": {_entry(values)}}}' for name, values in sorted(sets.items())]
        lines += [f'  "{level}": {{', ",\n".join(entries), f"  }}{end}"]
    TARGET.write_text("\n".join([*lines, "}"]) + "\n", encoding="utf-8")


def _entry(values: Coefficients) -> str:
    return json.dumps({name: float(f"{value:.4g}") for name, value in values.model_dump(exclude_none=True).items()})


if __name__ == "__main__":
    main(sys.argv[1:])
