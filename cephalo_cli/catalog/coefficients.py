"""How far device types stay from their datasheets: coefficients fitted on published measurements.

The fit and its errors: ``tests/benchmarks/fit_estimates.py``; the formula they enter: `profiler.roofline`.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources

from cephalo_cli.artifacts.base import DType, Share, Value
from cephalo_cli.artifacts.cluster import DeviceType
from cephalo_cli.catalog.data import device_records

__all__ = ["Coefficients", "coefficients"]


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
    sustained: float
    """Exponent with which long calls lose to the card's limits of power and heat."""
    expected_error: Share
    """Median relative error on measurements that were left out of the fit."""


class _Document(Value):
    """The file."""

    source: str
    """The measurements."""
    everywhere: dict[DType, Coefficients]
    """For architectures without measurements."""
    architectures: dict[str, dict[DType, Coefficients]]
    """For device types without measurements."""
    devices: dict[str, dict[DType, Coefficients]]
    """For device types with measurements."""


def coefficients(device: DeviceType, dtype: DType) -> Coefficients:
    """Return the coefficients of a device type: its own, else its architecture's, else those of all measured ones.

    bfloat16 runs as float16 does; float64 as float32, at its own peak rate.
    """
    document = _document()
    kind: DType = {"bfloat16": "float16", "float64": "float32"}.get(dtype, dtype)  # type: ignore[assignment]
    record = device_records().get(device.catalog or "")
    choices: list[Mapping[DType, Coefficients]] = [document.devices.get(device.catalog or "", {})]
    if record is not None:
        choices.append(document.architectures.get(record.architecture, {}))
    return next((choice[kind] for choice in choices if kind in choice), document.everywhere[kind])


@cache
def _document() -> _Document:
    text = resources.files("cephalo_cli.catalog").joinpath("coefficients.json").read_text(encoding="utf-8")
    return _Document.model_validate_json(json.dumps(json.loads(text)))
