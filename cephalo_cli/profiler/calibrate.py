"""Coefficients of a card corrected by a short measurement of one model on it.

One series cannot tell eight coefficients apart: what it says of one it takes from another, and other models pay. So two
factors are fitted in the formula of `profiler.roofline`: one for what follows the peak rate (products, fused
attention), one for what follows the memory's (passes, gradients, scores). The mean of their logarithms is pulled
towards 0 and their difference too: the catalog's coefficients give way as far as the series says plainly. Errors are
relative and count like a Huber loss.
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

__all__ = ["COEFFICIENTS", "calibrated", "fit", "fit_factors", "predict", "spread_out", "stacked"]

Array = NDArray[np.float64]
COEFFICIENTS = tuple(
    name for name in Coefficients.model_fields if name not in ("collectives", "expected_error", "calibrated_error")
)
"""Those that one unit's times can tell."""
RATES = (
    ("forward_products", "backward_products", "fused_attention"),
    ("passes", "gradients", "scores"),
)
"""Coefficients that the two factors multiply."""
HUBER = 0.03
"""Error at which more of it begins to count linearly."""
PULL_BOTH, PULL_APART, NEAR = 0.4, 0.2, 0.1
"""How hard mean and difference of the logarithms are pulled, and up to which size in proportion to it: a card that is
plainly another is followed. Chosen by other models' errors (``fit_estimates.calibrated_on_one_series``)."""


def calibrated(device: DeviceType, name: str, dtype: DType, measured: Profile | None) -> Coefficients:
    """Return a device type's coefficients, corrected by a profile measured on it if there is one.

    Args:
        device: The device type, catalog facts filled in.
        name: Its name in the cluster.
        dtype: The dtype to estimate; a profile in another dtype corrects by the same factors, and the expected error
            stays what it was: nobody knows how well that does.
        measured: A measured or imported profile; it is used when it has this device type, by name or by catalog id.
    """
    fitted = coefficients(device, dtype)
    found = _same_device(device, name, measured) if measured is not None else None
    if measured is None or found is None:
        return fitted
    points = _points(device, found, measured)
    if points is None:
        return fitted
    work, rates, seconds = points
    weights = np.full(len(seconds), 1 / len(seconds))
    factors = fit_factors(work, rates, seconds, weights, logarithms(coefficients(device, measured.dtype)))
    changed = {
        name: getattr(fitted, name) * factor
        for name, factor in zip(COEFFICIENTS, map(float, np.exp(spread_out(factors))), strict=True)
    }
    same_dtype = dtype == measured.dtype and fitted.calibrated_error is not None
    error = fitted.calibrated_error if same_dtype else fitted.expected_error
    return fitted.model_copy(update={**changed, "expected_error": error})


def logarithms(fitted: Coefficients) -> Array:
    """Return the logarithms of what `fit` and `predict` work with."""
    values: Array = np.log(np.array([getattr(fitted, name) for name in COEFFICIENTS]))
    return values


def spread_out(factors: Array) -> Array:
    """Turn the logarithms of the two factors into one for each coefficient."""
    return np.array([factors[0] * (name in RATES[0]) + factors[1] * (name in RATES[1]) for name in COEFFICIENTS])


def fit_factors(
    work: Mapping[str, Array], rates: tuple[Any, Any], seconds: Array, weights: Array, before: Array
) -> Array:
    """Fit the logarithms of the two factors. Arguments as of `fit`; ``before`` are the logarithms to correct."""

    def residuals(factors: Array) -> Array:
        error = np.log(predict(work, rates, before + spread_out(factors)) / seconds)
        apart = factors[0] - factors[1]
        pulls = np.array([PULL_BOTH * _huber(factors.mean(), NEAR), PULL_APART * _huber(apart, NEAR)])
        return np.concatenate([_damped(error, weights), pulls])

    return cast("Array", least_squares(residuals, np.zeros(2)).x)


def _damped(error: Array, weights: Array) -> Array:
    """Turn errors (points x 2) into residuals whose squares add up to a Huber loss."""
    residuals: Array = (_huber(error, HUBER) * np.sqrt(weights / 2)[:, None]).ravel()
    return residuals


def _huber(error: Array, linear_from: float) -> Array:
    """Turn errors into residuals whose halved squares grow like squares near 0 and linearly from about a size on."""
    near: Array = np.sign(error) * linear_from * np.sqrt(2 * (np.sqrt(1 + (error / linear_from) ** 2) - 1))
    return near


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

    def residuals(logarithms: Array) -> Array:
        error = np.log(predict(work, rates, logarithms) / seconds)
        return np.concatenate([_damped(error, weights), pull * (logarithms - towards)])

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


def _points(
    device: DeviceType, name: str, measured: Profile
) -> tuple[dict[str, Array], tuple[float, float], Array] | None:
    """Collect what a device type was measured at: work, rates, and seconds; None where its rates are not known."""
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
        return None
    speed = _speed(measured.cluster.device_types[name])
    return stacked(works), (peak * speed, bandwidth * speed), np.array(seconds)
