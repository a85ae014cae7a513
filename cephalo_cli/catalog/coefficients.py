"""How far device types stay from their datasheets: coefficients fitted on published measurements.

float32 and float16 are fitted on the times of single blocks (``tests/benchmarks/fit_estimates.py``), bfloat16 on the
throughput of whole training runs (``tests/benchmarks/fit_throughput.py``). The formula they enter: `profiler.roofline`.
"""

import json
from functools import cache
from importlib import resources
from typing import cast

from pydantic import Field

from cephalo_cli.artifacts.base import DType, Share, Value
from cephalo_cli.artifacts.cluster import DeviceType
from cephalo_cli.catalog.data import device_records

__all__ = ["Coefficients", "coefficients"]


CPU = "x86"
"""The catalog's architecture of CPUs, whose coefficients those without a catalog id have too."""


class Coefficients(Value):
    """How one device type computes in one dtype; 1 would be the datasheet's rate."""

    forward_products: float
    """Time of matrix products over their time at the peak rate, forward."""
    backward_products: float
    """The same, backward."""
    passes: float
    """Time of reading and writing activations and matrices over their time at the peak bandwidth."""
    gradients: float
    """Passes of peak bandwidth over a unit's float32 gradients that its backward takes."""
    scores: float
    """Passes of peak bandwidth over the score matrix that plain attention takes forward."""
    fused_attention: float
    """Time of fused attention over its time at the peak rate."""
    launch_s: float
    """Seconds a forward takes whatever its size."""
    collectives: float = 2.0
    """Passes of peak bandwidth that each byte sent or received in a collective takes from computing."""
    sustained: float
    """How fast wide products and long calls lose to the card's limits of power and heat."""
    expected_error: Share
    """Median relative error on measurements that were left out of the fit; of CPUs, which no fit has seen, the largest
    of a block."""
    calibrated_error: Share | None = None
    """The same after a calibration by one series of another model on the card; None where nobody knows."""


class _Document(Value):
    """A file of coefficients."""

    source: str
    """The measurements."""
    calibrated: str | None = None
    """How calibrated errors were obtained."""
    everywhere: dict[DType, Coefficients] = Field(default_factory=dict)
    """For architectures without measurements."""
    architectures: dict[str, dict[DType, Coefficients]]
    """For device types without measurements."""
    devices: dict[str, dict[DType, Coefficients]]
    """For device types with measurements."""


def coefficients(device: DeviceType, dtype: DType) -> Coefficients:
    """Return the coefficients of a device type: its own, else its architecture's, else those of all measured ones.

    Where no bfloat16 run was published, bfloat16 is taken to run as float16 does; float64 runs as float32, at its own
    peak rate.
    """
    blocks, runs = _document("coefficients"), _document("coefficients_bfloat16")
    names = ("devices", device.catalog or ""), ("architectures", _architecture(device))
    kind = _fitted_dtype(dtype)
    for level, name in names:
        for document, key in ((runs, dtype), (blocks, kind)):
            found = getattr(document, level).get(name, {}).get(key)
            if found is not None:
                return cast("Coefficients", found)
    return blocks.everywhere[kind]


def _architecture(device: DeviceType) -> str:
    record = device_records().get(device.catalog or "")
    if record is None:
        return CPU if device.backend == "cpu" else ""
    return record.architecture


def _fitted_dtype(dtype: DType) -> DType:
    """Name the dtype that stands in for one without block times of its own."""
    stand_ins: dict[DType, DType] = {"bfloat16": "float16", "float64": "float32"}
    return stand_ins.get(dtype, dtype)


@cache
def _document(name: str) -> _Document:
    text = resources.files("cephalo_cli.catalog").joinpath(f"{name}.json").read_text(encoding="utf-8")
    return _Document.model_validate_json(json.dumps(json.loads(text)))
