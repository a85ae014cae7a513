"""Coefficients of a card corrected by a short measurement of one model on it.

The measured curves refit the card's coefficients in the formula of `profiler.roofline`, pulled towards what they were:
what one model cannot tell (a dtype's scores, say) stays as it was. Errors are relative and count like a Huber loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import DeviceType
from cephalo_cli.artifacts.profile import Profile, UnitKind
from cephalo_cli.catalog.coefficients import Coefficients, coefficients
from cephalo_cli.profiler.attention import attention_by, kernels_of, published_attention
from cephalo_cli.profiler.roofline import Work, unit_seconds, unit_work

__all__ = ["COEFFICIENTS", "calibrated", "fit", "stacked"]

Array = NDArray[np.float64]
COEFFICIENTS = tuple(name for name in Coefficients.model_fields if name not in ("collectives", "expected_error"))
"""Those that one unit's times can tell."""
HUBER = 0.03
PULL = 0.03
CALIBRATED_ERROR = 0.06
"""Median error on other models of a card that the fit had not seen, after one model was measured on it."""


def calibrated(device: DeviceType, name: str, dtype: DType, measured: Profile | None) -> Coefficients:
    """Return a device type's coefficients, corrected by a profile measured on it if there is one.

    Args:
        device: The device type, catalog facts filled in.
        name: Its name in the cluster.
        dtype: The dtype to estimate; a profile in another dtype corrects by the same factors.
        measured: A measured or imported profile; it is used when it has this device type, by name or by catalog id.
    """
    fitted = coefficients(device, dtype)
    found = _same_device(device, name, measured) if measured is not None else None
    if measured is None or found is None:
        return fitted
    before = coefficients(device, measured.dtype)
    after = _refit(before, device, found, measured)
    factors = {field: getattr(after, field) / getattr(before, field) for field in COEFFICIENTS}
    changed = {field: getattr(fitted, field) * factor for field, factor in factors.items()}
    error = min(fitted.expected_error, CALIBRATED_ERROR)
    return fitted.model_copy(update={**changed, "expected_error": error})


def fit(
    work: Mapping[str, Array], rates: tuple[Any, Any], seconds: Array, weights: Array, *, towards: Array, pull: float
) -> Array:
    """Fit logarithms of coefficients.

    Args:
        work: The fields of `Work`, one value a point.
        rates: Peak operations and bytes a second, one value or one a point.
        seconds: Points x (forward, backward).
        weights: Weight of each point; they add up to 1.
        towards: Logarithms the result is pulled towards, in the order of ``COEFFICIENTS``.
        pull: Error that a coefficient may cost which is off by a factor of e.
    """
    amplitudes = np.sqrt(weights / 2)[:, None]

    def residuals(logarithms: Array) -> Array:
        error = np.log(predict(work, rates, logarithms) / seconds)
        damped = np.sign(error) * HUBER * np.sqrt(2 * (np.sqrt(1 + (error / HUBER) ** 2) - 1))
        return np.concatenate([(damped * amplitudes).ravel(), pull * (logarithms - towards)])

    return cast("Array", least_squares(residuals, towards).x)


def predict(work: Mapping[str, Array], rates: tuple[Any, Any], logarithms: Array) -> Array:
    """Seconds of forward and backward at every point: the formula of `profiler.roofline` on arrays."""
    values = Coefficients.model_construct(**dict(zip(COEFFICIENTS, np.exp(logarithms), strict=True)))
    arrays = Work(**cast("Mapping[str, Any]", work))
    return np.stack(cast("tuple[Array, Array]", unit_seconds(arrays, *rates, values)), axis=1)


def stacked(works: Sequence[Work]) -> dict[str, Array]:
    """Turn the work of many points into one array a field."""
    return {field.name: np.array([getattr(work, field.name) for work in works]) for field in fields(Work)}


def _same_device(device: DeviceType, name: str, measured: Profile) -> str | None:
    """Find the measured device type of the same name, unless it is another card, else of the same catalog id.

    Of several emulated ones, the one of the nearest speed.
    """
    types = measured.cluster.device_types
    ids = {other: types[other].catalog for other in measured.devices}
    if name in ids and (None in (ids[name], device.catalog) or ids[name] == device.catalog):
        return name
    by_id = [other for other, id_ in ids.items() if device.catalog is not None and id_ == device.catalog]
    return min(by_id, key=lambda other: abs(_speed(types[other]) - _speed(device)), default=None)


def _speed(device: DeviceType) -> float:
    """Part of its rates that a device type has: an emulated one is held to it."""
    return device.emulated_speed or 1.0


def _refit(before: Coefficients, device: DeviceType, name: str, measured: Profile) -> Coefficients:
    profile = measured.devices[name]
    if profile.method == "measured":
        attention = attention_by(kernels_of(device), measured.model, measured.dtype, measured.seq_len)
    else:
        attention = published_attention(measured.model, device)
    kinds: tuple[UnitKind, ...] = ("block", "head")
    works, seconds = [], []
    for kind in kinds:
        unit = profile.units.get(kind)
        if unit is None:
            continue
        for size, forward_s, backward_s in zip(unit.microbatch, unit.forward_s, unit.backward_s, strict=True):
            works.append(
                unit_work(
                    measured.model,
                    kind=kind,
                    tokens=measured.seq_len,
                    dtype=measured.dtype,
                    microbatch=size,
                    attention=attention,
                )
            )
            seconds.append((max(forward_s, 1e-9), max(backward_s, 1e-9)))
    peak, bandwidth = (device.peak_flops or {}).get(measured.dtype), device.memory_bandwidth_bytes_per_s
    if not works or peak is None or bandwidth is None:
        return before
    speed = _speed(measured.cluster.device_types[name])
    rates = peak * speed, bandwidth * speed
    towards = np.log(np.array([getattr(before, field) for field in COEFFICIENTS]))
    weights = np.full(len(works), 1 / len(works))
    after = np.exp(fit(stacked(works), rates, np.array(seconds), weights, towards=towards, pull=PULL))
    return before.model_copy(update=dict(zip(COEFFICIENTS, map(float, after), strict=True)))
