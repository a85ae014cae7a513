"""What a simulation of a plan could notice: the values that it has and that enter one, by the paths people type."""

import difflib
import re
from collections.abc import Mapping

from cephalo_cli.artifacts.cluster import Link
from cephalo_cli.artifacts.plan import Plan

__all__ = ["about_links", "changeable", "instead", "slowest_links", "why_no_links"]

OF_A_LINK = ("bandwidth_bytes_per_s", "latency_s")
OF_A_DEVICE = ("speed", "optimizer_s_per_parameter", "collective_compute_s_per_byte", "reserve_bytes")
OF_SETTINGS = ("memory_fraction", "reserve_bytes")
OF_FSDP = ("keeps_gathered", "reduces_every_microbatch", "reduce_dtype")
COLLECTIVES = ("network.all_gather", "network.reduce_scatter")
_ABOUT_LINKS = re.compile(r"(cluster\.)?(network|nodes)\b")


def changeable(plan: Plan) -> dict[str, tuple[str, ...]]:
    """List the paths of a plan that enter its simulation.

    Returns:
        By what they belong to, such as ``device_types.l4``, the last keys of the paths. Of links those that collectives
        pass over; none for one rank, whose collectives move nothing, and none where collectives take no time.
    """
    places: dict[str, tuple[str, ...]] = {}
    if len(plan.ranks) > 1 and plan.network != "ideal":
        places |= dict.fromkeys((*_links(plan), *COLLECTIVES), OF_A_LINK)
    for name, device in plan.devices.items():
        facts = plan.cluster.device_types[name]
        of_type = {
            "memory_bytes": facts.memory_bytes,
            "emulated_speed": facts.emulated_speed,
            "host_link.bandwidth_bytes_per_s": device.host_copy and facts.host_link,
        }
        places[f"device_types.{name}"] = tuple(key for key, value in of_type.items() if value is not None)
        copies = {} if device.host_copy is None else device.host_copy.model_dump(exclude_none=True)
        places[f"devices.{name}"] = (*OF_A_DEVICE, *(f"host_copy.{key}" for key in copies))
    places["settings"] = OF_SETTINGS
    if plan.schedule == "microbatch-major":
        places["fsdp"] = OF_FSDP
    return places


def instead(plan: Plan, path: str, corrected: str | None) -> str:
    """Say what to change instead of a value that the plan does not have.

    Args:
        plan: The plan.
        path: What was asked for.
        corrected: The same with its first wrong key corrected, if something resembles it.
    """
    known = [f"{place}.{key}" for place, keys in changeable(plan).items() for key in keys]
    if corrected in known:
        return f"did you mean {corrected!r}?"
    if about_links(corrected or path):
        reason = why_no_links(plan)
        return reason if reason is not None else f"did you mean {slowest_links(plan, path)[0]!r}?"
    near = difflib.get_close_matches(path, known, n=1, cutoff=0.8)
    return f"did you mean {near[0]!r}?" if near else f"this plan has {_in_short(changeable(plan))}"


def about_links(path: str) -> bool:
    """Tell whether a path is one of links, as they are or misspelt."""
    return _ABOUT_LINKS.match(path) is not None


def why_no_links(plan: Plan) -> str | None:
    """Say why no link of a plan enters its simulation, and what does; None where one does."""
    if len(plan.ranks) == 1:
        return "one rank has no collectives"
    if plan.network == "ideal":
        return "its network is ideal: collectives take no time"
    if plan.cluster.network == "ideal":
        fits = " and ".join(f"{each}.{OF_A_LINK[0]}" for each in COLLECTIVES)
        return f"its cluster names no links; what can be changed are the times of its collectives: {fits}"
    return None


def slowest_links(plan: Plan, path: str = "") -> list[str]:
    """Paths of the links that bound collectives: their bandwidths, or latencies where the path is of one."""
    links = _links(plan)
    least = min(link.bandwidth_bytes_per_s for link in links.values())
    key = OF_A_LINK["latency" in path]
    return [f"{place}.{key}" for place, link in links.items() if link.bandwidth_bytes_per_s == least]


def _links(plan: Plan) -> dict[str, Link]:
    """The links that collectives pass over; a network between nodes is none where there is one node."""
    cluster = plan.cluster
    if cluster.network == "ideal":
        return {}
    links = {
        f"nodes.{node.name}.link": node.link
        for node in cluster.nodes
        if node.link is not None and len(node.devices) > 1
    }
    return links if len(cluster.nodes) == 1 and links else links | {"network": cluster.network}


def _in_short(places: Mapping[str, tuple[str, ...]]) -> str:
    """Name paths in one line; what several have in common once, as in ``devices.{l4, p40}.{speed, reserve_bytes}``."""
    owners: dict[tuple[str, bool, tuple[str, ...]], list[str]] = {}
    for place, keys in places.items():
        kind, _, name = place.partition(".")
        owners.setdefault((kind, not name, keys), []).append(name)
    return "; ".join(
        ".".join(part for part in (kind, _braced(names), _braced(keys)) if part)
        for (kind, _, keys), names in owners.items()
        if keys
    )


def _braced(words: list[str] | tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{{{', '.join(words)}}}"
