"""What if: the same plan with another network, other devices or other limits.

A change is ``PATH=VALUE``. The path names a value of the plan or, in short, of its cluster; the value is a number, a
size such as ``48GiB``, a bandwidth such as ``48GB/s``, or a factor such as ``2x``; the variants of a microbatch-major
step, such as ``fsdp.keeps_gathered=true`` (only gradients and optimizer state are sharded), are words. What follows
from a change follows: a faster link makes collectives faster, a faster device type computes in less time, and the
plan's own expectations are worked out again. Who does how much stays as planned.
A change that a simulation could not notice is refused.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast, get_args

from cephalo_cli.artifacts import store
from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.plan import ExpectedRank, ExpectedStep, Plan, SolverProof
from cephalo_cli.artifacts.profile import CollectiveFit, NetworkProfile
from cephalo_cli.costmodel import network_from_links, rank_memory, step_estimate
from cephalo_cli.errors import UsageError
from cephalo_cli.quantities import parse_memory, parse_rate
from cephalo_cli.schedule import plan_stages
from cephalo_cli.simulator.changeable import about_links, changeable, instead, slowest_links, why_no_links
from cephalo_cli.simulator.parts import rank_choice
from cephalo_cli.simulator.paths import find

__all__ = ["parse_sweep", "with_changes"]

Document: TypeAlias = dict[str, Any]

SPEED = re.compile(r"devices\.(?P<device>[^.]+)\.speed")
FSDP = re.compile(r"fsdp\.(?P<option>keeps_gathered|reduces_every_microbatch|reduce_dtype)")
SCALES_COMPUTE = re.compile(r"cluster\.device_types\.(?P<device>[^.]+)\.emulated_speed")
SCALES_COPIES = re.compile(r"cluster\.device_types\.(?P<device>[^.]+)\.host_link\.bandwidth_bytes_per_s")
_FACTOR = re.compile(r"(\d+(?:\.\d+)?)x", re.ASCII)


def with_changes(plan: Plan, changes: Sequence[str]) -> Plan:
    """Apply changes such as ``network.bandwidth_bytes_per_s=2x`` to a plan, in order.

    Args:
        plan: The plan; stays as it is.
        changes: Each ``PATH=VALUE``. ``devices.TYPE.speed=2x`` makes a device type compute twice as fast.

    Returns:
        A plan that expects what the changes imply, without alternatives and without a proof.

    Raises:
        UsageError: A path is unknown or without effect, or a value cannot be read.
        ArtifactError: A value is out of its range.
    """
    if not changes:
        return plan
    document: Document = plan.model_dump(mode="json", exclude_none=True)
    for change in changes:
        _apply(plan, document, change)
    changed = cast("Plan", store.loads(json.dumps(document).encode(), where="the changed plan"))
    return _expecting_anew(_linked_anew(plan, changed))


def parse_sweep(text: str) -> list[str]:
    """Split ``PATH=a,b,c`` into one change a value.

    Raises:
        UsageError: There is no path or no value.
    """
    path, values = _split(text, "--sweep", "nodes.NAME.link.latency_s=1x,2x,4x")
    listed = [value.strip() for value in values.split(",")]
    if not all(listed):
        raise UsageError("a value is missing", where=f"--sweep {path}", hint=f"write it like {path}=1x,2x,4x")
    return [f"{path}={value}" for value in listed]


# One change -----------------------------------------------------------------------------------------------------------


def _apply(plan: Plan, document: Document, change: str) -> None:
    path, text = _split(change, "--set", "devices.TYPE.speed=2x, or device_types.TYPE.memory_bytes=48GiB")
    try:
        _change(plan, document, path, text)
    except UsageError as error:
        error.where = f"--set {path}"
        raise


def _change(plan: Plan, document: Document, path: str, text: str) -> None:
    if match := SPEED.fullmatch(path):
        _scale_compute(document, match["device"], _value(text, 1.0, path))
        return
    if match := FSDP.fullmatch(path):
        _vary_fsdp(document, match["option"], text)
        return
    place = find(document, path, inside=("cluster",), hint=lambda corrected: instead(plan, path, corrected))
    old = place.holder.get(place.key)
    if isinstance(old, dict | list | str | bool):
        raise UsageError("is not a number", hint=instead(plan, path, None))
    _refuse_without_effect(plan, document, place.path)
    new = _value(text, old, path)
    if match := SCALES_COMPUTE.fullmatch(place.path):
        _scale_compute(document, match["device"], _ratio(new, old))
    elif match := SCALES_COPIES.fullmatch(place.path):
        _scale_copies(document["devices"][match["device"]]["host_copy"], _ratio(new, old))
    place.holder[place.key] = round(new) if place.key.endswith("_bytes") else new


def _refuse_without_effect(plan: Plan, document: Document, full: str) -> None:
    """Refuse a value that the plan has, but that no simulation notices."""
    known = [f"{place}.{key}" for place, keys in changeable(plan).items() for key in keys]
    real = [path for path in known if not SPEED.fullmatch(path) and not FSDP.fullmatch(path)]
    if full in {find(document, path, inside=("cluster",), hint=str).path for path in real}:
        return
    hint = instead(plan, full, None)
    if about_links(full):
        hint = why_no_links(plan) or _wait_for(slowest_links(plan, full))
    elif full.startswith("cluster.device_types.") and (name := full.split(".")[2]) in plan.devices:
        hint = f"devices.{name}.speed=2x makes its compute twice as fast"
    raise UsageError("does not enter a simulation", hint=hint)


def _wait_for(links: Sequence[str]) -> str:
    return f"change {' and '.join(links)}: collectives wait for {'it' if len(links) == 1 else 'them'}"


def _split(change: str, option: str, example: str) -> tuple[str, str]:
    path, equals, value = change.partition("=")
    if not equals or not path.strip() or not value.strip():
        raise UsageError(f"{change!r} is not PATH=VALUE", where=option, hint=f"write it like {example}")
    return path.strip(), value.strip()


def _value(text: str, old: float | None, path: str) -> float:
    """Read a number, a size, a bandwidth or a factor of the old value."""
    if match := _FACTOR.fullmatch(text):
        if old is None:
            raise UsageError("has no value to multiply", hint="give a number")
        return float(match[1]) * old
    if path.endswith("_bytes_per_s"):
        return parse_rate(text)
    if path.endswith("_bytes"):
        return float(parse_memory(text))
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a number", hint="write a number, or a factor like 2x") from None


def _ratio(new: float, old: float | None) -> float:
    if not old or new <= 0:
        raise UsageError("can only be changed from one positive number to another", hint="such as 2x")
    return new / old


def _vary_fsdp(document: Document, option: str, text: str) -> None:
    """Have a microbatch-major step shard or reduce in another way, see `FsdpOptions`."""
    if document["schedule"] != "microbatch-major":
        raise UsageError(
            f"does not enter a simulation of schedule {document['schedule']}", hint="plan with --strategy fsdp"
        )
    words = get_args(DType) if option == "reduce_dtype" else ("true", "false")
    if text not in words:
        raise UsageError(f"found {text!r}, expected {', '.join(words)}")
    options = document.setdefault("fsdp", {})
    options[option] = text if option == "reduce_dtype" else text == "true"


# What follows from a change -------------------------------------------------------------------------------------------


def _scale_copies(copies: Document, ratio: float) -> None:
    """Make copies between a device and host memory so much faster."""
    for key in copies:
        if key.endswith("_bytes_per_s"):
            copies[key] *= ratio


def _scale_compute(document: Document, name: str, speed: float) -> None:
    """Make everything a device type computes take ``1 / speed`` of the time; its peaks grow with it."""
    devices = cast("Mapping[str, Document]", document["devices"])
    if name not in devices:
        raise UsageError("does not enter a simulation", hint=f"the plan uses {', '.join(sorted(devices))}")
    if speed <= 0:
        raise UsageError("must be above 0", hint="such as 2x")
    device = devices[name]
    for unit in device["units"].values():
        for phase in ("forward_s", "backward_s"):
            unit[phase] = [seconds / speed for seconds in unit[phase]]
    for key in ("optimizer_s_per_parameter", "collective_compute_s_per_byte"):
        device[key] /= speed
    peaks = document["cluster"]["device_types"][name].get("peak_flops", {})
    for dtype in peaks:
        peaks[dtype] *= speed


def _linked_anew(plan: Plan, changed: Plan) -> Plan:
    """Give collectives the times that changed links imply."""
    if _links(changed) == _links(plan):
        return changed
    before, after = network_from_links(plan.cluster), network_from_links(changed.cluster)
    if changed.network == "ideal" or before == "ideal" or after == "ideal":
        raise AssertionError("links that no simulation notices are refused before")
    if before == after:
        raise UsageError("these links do not enter a simulation", where="--set", hint=_wait_for(slowest_links(plan)))
    return changed.model_copy(update={"network": _scaled(changed.network, before, after)})


def _links(plan: Plan) -> tuple[object, ...]:
    return (plan.cluster.network, *(node.link for node in plan.cluster.nodes))


def _scaled(network: NetworkProfile, before: NetworkProfile, after: NetworkProfile) -> NetworkProfile:
    """Change measured or estimated fits as the links between the same ranks changed."""

    def fit(now: CollectiveFit, old: CollectiveFit, new: CollectiveFit) -> CollectiveFit:
        return CollectiveFit(
            latency_s=now.latency_s * new.latency_s / old.latency_s if old.latency_s else new.latency_s,
            bandwidth_bytes_per_s=now.bandwidth_bytes_per_s * new.bandwidth_bytes_per_s / old.bandwidth_bytes_per_s,
        )

    return network.model_copy(
        update={
            "all_gather": fit(network.all_gather, before.all_gather, after.all_gather),
            "reduce_scatter": fit(network.reduce_scatter, before.reduce_scatter, after.reduce_scatter),
            "small_sum_s": None
            if network.small_sum_s is None
            else fit(
                CollectiveFit(latency_s=network.small_sum_s, bandwidth_bytes_per_s=1.0),
                before.all_gather,
                after.all_gather,
            ).latency_s,
        }
    )


def _expecting_anew(plan: Plan) -> Plan:
    """Work out again what the plan expects of itself."""
    step = plan_stages(plan)
    choices = [rank_choice(plan, rank) for rank in range(len(plan.ranks))]
    estimate = step_estimate(plan, choices, step)
    ranks = tuple(
        rank.model_copy(
            update={
                "memory": rank_memory(plan, plan.settings, choice, step=step, num_ranks=len(choices)),
                "expected": ExpectedRank(
                    forward_s=seconds.forward_s, backward_s=seconds.backward_s, optimizer_s=seconds.optimizer_s
                ),
            }
        )
        for rank, choice, seconds in zip(plan.ranks, choices, estimate.ranks, strict=True)
    )
    samples_per_s = plan.global_batch_size / estimate.step_s if estimate.step_s else 0.0
    return plan.model_copy(
        update={
            "ranks": ranks,
            "expected": ExpectedStep(
                step_s=estimate.step_s,
                samples_per_s=samples_per_s,
                tokens_per_s=samples_per_s * plan.model.tokens_per_sample(plan.seq_len),
                bound=estimate.bound,
            ),
            "solver": SolverProof(status="heuristic", lower_bound_s=0.0, gap=1.0),
            "alternatives": (),
        }
    )
