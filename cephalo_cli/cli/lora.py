"""``--lora``: adapters beside a model that stays, in one word of the command line."""

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from cephalo_cli.artifacts.faults import nearest
from cephalo_cli.artifacts.model import Lora, Model
from cephalo_cli.errors import CephaloError, UsageError
from cephalo_cli.units import num_frozen_parameters

if TYPE_CHECKING:
    from cephalo_cli.artifacts.plan import PlanSettings
    from cephalo_cli.artifacts.profile import Basis

__all__ = ["fitting_adapters", "with_adapters"]

KEYS = ("rank", "alpha", "targets", "base")
SUGGESTED = "rank=8"
"""What is tried where nothing else fits."""


def with_adapters(model: Model, text: str | None) -> Model:
    """Give a model the adapters that were asked for, if any.

    Args:
        model: The model.
        text: ``key=value`` pairs with commas between them; several targets have a + between them.

    Raises:
        UsageError: The text has another form, the model has adapters or frozen parameters already, or a target names
            nothing.
    """
    if text is None:
        return model
    if model.lora is not None or model.frozen is not None:
        raise UsageError(f"model {model.name} says itself what is trained", where="--lora", hint="leave --lora out")
    values = _pairs(text)
    base = values.pop("base", None)
    fields: dict[str, Any] = dict(values)
    if "targets" in values:
        fields["targets"] = tuple(values["targets"].split("+"))
    for name, kind in (("rank", int), ("alpha", float)):
        if name in values:
            fields[name] = _number(name, values[name], kind)
    try:
        adapted = Model.model_validate({**dict(model), "lora": Lora(**fields), "frozen_dtype": base})
    except ValidationError as error:
        first = error.errors()[0]
        key = {"frozen_dtype": "base"}.get(str(first["loc"][0]), str(first["loc"][0])) if first["loc"] else "lora"
        found = f"is {values.get(key, base)!r}" if key in (*values, "base") else "is missing"
        expected = first["msg"].removeprefix("Input should be ")
        raise UsageError(
            f"{key} {found}" + ("" if found == "is missing" else f", expected {expected}"), where="--lora"
        ) from error
    num_frozen_parameters(adapted)
    return adapted


def fitting_adapters(basis: "Basis", settings: "PlanSettings", batch_size: int) -> str | None:
    """Find adapters with which some plan fits, the model kept in float32 or else in the compute dtype.

    Args:
        basis: What was found to fit in no plan.
        settings: What plans are to be like.
        batch_size: Samples of a step.

    Returns:
        A text for ``--lora``; None where none helps, and where durations are measured, as theirs would have to be.
    """
    from cephalo_cli.planner.repair import fits
    from cephalo_cli.profiler import estimate_profile

    if basis.model.lora is not None or any(device.method != "estimated" for device in basis.devices.values()):
        return None
    length = None if basis.model.family == "vit" else basis.seq_len
    for text in (SUGGESTED, f"{SUGGESTED},base={basis.dtype}"):
        try:
            shape = with_adapters(basis.model, text)
            again = estimate_profile(basis.cluster, shape, seq_len=length, dtype=basis.dtype)
        except CephaloError:  # a model that takes no adapters
            return None
        if fits(again, settings, batch_size):
            return text
    return None


def _pairs(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in text.split(","):
        key, equals, value = pair.partition("=")
        if not equals or not value:
            raise UsageError(f"found {pair!r}, expected key=value", where="--lora", hint="such as rank=8,alpha=16")
        if key not in KEYS:
            raise UsageError(
                f"found {key!r}, expected one of {', '.join(KEYS)}", where="--lora", hint=nearest(key, KEYS)
            )
        if key in values:
            raise UsageError(f"{key} is given twice", where="--lora")
        values[key] = value
    return values


def _number(name: str, text: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(text)
    except ValueError as error:
        wanted = "a whole number" if kind is int else "a number"
        raise UsageError(f"{name} is {text!r}, expected {wanted}", where="--lora") from error
