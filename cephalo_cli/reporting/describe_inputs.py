"""What a cluster, a model and a profile say."""

from collections import Counter
from collections.abc import Iterator

from cephalo_cli.artifacts import Cluster, Model, Profile
from cephalo_cli.artifacts.profile import Basis, CollectiveFit, DeviceProfile, UnitProfile
from cephalo_cli.catalog import resolve_cluster
from cephalo_cli.quantities import format_percent
from cephalo_cli.reporting.sheet import Column, Fact, Facts, Part, Sheet, Value, shown, without_empty_columns
from cephalo_cli.reporting.words import basis_facts, link, unit_flags
from cephalo_cli.units import model_units, num_parameters

__all__ = ["describe_cluster", "describe_model", "describe_profile"]

BANDWIDTH = "bandwidth: of the rank that sends and receives most."
UNRESOLVED = "at least, not resolved: the model's transfers are too small for their size to tell."
FASTEST_LINK = 1e13
"""Bytes a second that no link between devices reaches: what is above was fitted to noise."""
UNIT_TERMS = "working: memory beside parameters, at its most; saved: what is kept for backward without recompute."


def describe_cluster(cluster: Cluster) -> list[Part]:
    """Say which devices there are, with what the catalog knows of them, and what connects them.

    Raises:
        ArtifactError: A device type names a catalog device that does not exist.
    """
    cluster = resolve_cluster(cluster, where=cluster.name)
    counts = Counter(place.device for place in cluster.ranks)
    network = (
        "ideal (collectives take no time, unless measured)" if cluster.network == "ideal" else link(cluster.network)
    )
    facts = Facts(
        name="cluster",
        title=f"Cluster {cluster.name}",
        facts=(
            Fact(key="num_ranks", label="ranks", value=len(cluster.ranks)),
            Fact(key="num_nodes", label="nodes", value=len(cluster.nodes)),
            Fact(key="network", label="network", value=network),
        ),
    )
    types = Sheet(
        name="device_types",
        title="Device types",
        columns=(
            Column(key="device", title="device"),
            Column(key="what", title="what"),
            Column(key="num_devices", title="devices", kind="count"),
            Column(key="memory_bytes", title="memory", kind="bytes"),
            Column(key="peak_flops", title="fastest peak", kind="flops"),
            Column(key="emulated_speed", title="cores", kind="count"),
        ),
        rows=tuple(
            {
                "device": name,
                "what": device.description or device.catalog or device.backend,
                "num_devices": counts[name],
                "memory_bytes": device.memory_bytes,
                "peak_flops": max(device.peak_flops.values()) if device.peak_flops else None,
                "emulated_speed": device.emulated_speed,
            }
            for name, device in cluster.device_types.items()
        ),
    )
    nodes = Sheet(
        name="nodes",
        title="Nodes",
        columns=(
            Column(key="node", title="node"),
            Column(key="devices", title="devices"),
            Column(key="link", title="between its devices"),
        ),
        rows=tuple(
            {
                "node": node.name,
                "devices": ", ".join(
                    f"{count}x {device}" if count > 1 else device for device, count in Counter(node.devices).items()
                ),
                "link": None if node.link is None else link(node.link),
            }
            for node in cluster.nodes
        ),
    )
    return [facts, without_empty_columns(types), nodes]


def describe_model(model: Model) -> list[Part]:
    """Say what shape a model has and how many parameters each unit owns."""
    units = model_units(model)
    block = next(unit for unit in units if unit.kind == "block")
    fields: list[tuple[str, str, Value]] = [
        ("family", "family", model.family),
        ("num_layers", "blocks", model.num_layers),
        ("hidden_size", "hidden size", model.hidden_size),
        ("num_heads", "heads", model.num_heads),
        ("num_kv_heads", "key and value heads", model.kv_heads),
        ("ffn_size", "MLP size", model.ffn_size),
        ("vocab_size", "vocabulary", model.vocab_size),
        ("max_seq_len", "longest sequence", model.max_seq_len),
        ("image_size", "image size", model.image_size),
        ("patch_size", "patch size", model.patch_size),
        ("num_classes", "classes", model.num_classes),
        ("tie_embeddings", "tied embeddings", model.tie_embeddings),
        ("rope_scaling", "stretched positions", _stretch(model)),
        ("sliding_window", "sliding window", model.sliding_window),
        ("dropout", "dropout", model.dropout or None),
        ("frozen", "not trained", None if model.frozen is None else list(model.frozen)),
        ("frozen_dtype", "stored in", model.frozen_dtype),
    ]
    parameters = (
        Fact(key="num_parameters", label="parameters", value=num_parameters(model), kind="count"),
        Fact(key="embedding_parameters", label="  embedding", value=units[0].num_parameters, kind="count"),
        Fact(
            key="block_parameters",
            label="  each block",
            value=block.num_parameters,
            kind="count",
        ),
        Fact(key="head_parameters", label="  head", value=units[-1].num_parameters, kind="count"),
    )
    facts = tuple(Fact(key=key, label=label, value=value) for key, label, value in fields if value is not None)
    return [Facts(name="model", title=f"Model {model.name}", facts=facts + parameters)]


def _stretch(model: Model) -> str | None:
    scaling = model.rope_scaling
    return None if scaling is None else f"{scaling.type}, {scaling.factor:g} times"


def describe_profile(profile: Profile) -> list[Part]:
    """Say what each device does with each unit, and what the network does."""
    return [
        Facts(
            name="profile",
            title=f"Profile of {profile.model.name} on {profile.cluster.name}",
            facts=basis_facts(profile),
        ),
        Sheet(
            name="units",
            title="Seconds and memory of one microbatch: smallest and largest profiled",
            columns=(
                Column(key="device", title="device"),
                Column(key="unit", title="unit"),
                Column(key="microbatch", title="size", kind="count"),
                Column(key="forward_s", title="forward", kind="seconds"),
                Column(key="backward_s", title="backward", kind="seconds"),
                Column(key="working_bytes", title="working", kind="bytes"),
                Column(key="saved_bytes", title="saved", kind="bytes"),
            ),
            rows=tuple(
                _curve_point(name, kind, unit, index)
                for name, device in profile.devices.items()
                for kind, unit in device.units.items()
                for index in sorted({0, len(unit.microbatch) - 1})
            ),
            notes=(UNIT_TERMS, *unit_flags(profile.devices)),
        ),
        Sheet(
            name="devices",
            title="Devices",
            columns=(
                Column(key="device", title="device"),
                Column(key="method", title="how"),
                Column(key="optimizer_parameters_per_s", title="optimizer, params/s", kind="count"),
                Column(key="to_device_bytes_per_s", title="from host", kind="link"),
                Column(key="to_host_bytes_per_s", title="to host", kind="link"),
                Column(key="reserve_bytes", title="reserve", kind="bytes"),
                Column(key="expected_error", title="off by", kind="percent"),
            ),
            rows=tuple(_device(name, device) for name, device in profile.devices.items()),
            notes=tuple(_doubts(profile)),
        ),
        *_network(profile),
    ]


def _doubts(profile: Profile) -> Iterator[str]:
    """Say how far off estimates other than times typically are."""
    for title, field in (("working memory", "expected_memory_error"), ("optimizer", "expected_optimizer_error")):
        errors = {name: getattr(device, field) for name, device in profile.devices.items()}
        for error in sorted({error for error in errors.values() if error is not None}):
            names = [name for name, other in errors.items() if other == error]
            where = "" if len(names) == len(errors) else f" ({', '.join(names)})"
            yield f"{title}: typically off by {format_percent(error)}{where}"


def _curve_point(name: str, kind: str, unit: UnitProfile, index: int) -> dict[str, Value]:
    return {
        "device": name,
        "unit": kind,
        "microbatch": unit.microbatch[index],
        "forward_s": unit.forward_s[index],
        "backward_s": unit.backward_s[index],
        "working_bytes": unit.working_bytes[index],
        "saved_bytes": None if unit.saved_bytes is None else unit.saved_bytes[index],
    }


def _device(name: str, device: DeviceProfile) -> dict[str, Value]:
    copy, optimizer = device.host_copy, device.optimizer_s_per_parameter
    return {
        "device": name,
        "method": device.method,
        "optimizer_parameters_per_s": 1 / optimizer if optimizer else None,
        "to_device_bytes_per_s": copy.to_device_bytes_per_s if copy else None,
        "to_host_bytes_per_s": copy.to_host_bytes_per_s if copy else None,
        "reserve_bytes": device.reserve_bytes,
        "expected_error": device.expected_error,
    }


def _bandwidth(fit: CollectiveFit) -> float | str:
    """A bandwidth, or what is known of one that no transfer was large enough to show."""
    if fit.bandwidth_bytes_per_s > FASTEST_LINK:
        return "not resolved"
    return (
        f"at least {shown(fit.bandwidth_bytes_per_s, 'link')}" if fit.bandwidth_is_bound else fit.bandwidth_bytes_per_s
    )


def _network(basis: Basis) -> list[Part]:
    network = basis.network
    if network == "ideal":
        return []
    fits = {"all-gather": network.all_gather, "reduce-scatter": network.reduce_scatter}
    return [
        without_empty_columns(
            Sheet(
                name="network",
                title=f"Collectives ({network.algorithm}, {network.method})",
                columns=(
                    Column(key="collective", title="collective"),
                    Column(key="latency_s", title="latency", kind="seconds"),
                    Column(key="bandwidth_bytes_per_s", title="bandwidth", kind="link"),
                    Column(key="residual", title="fit is off by", kind="percent"),
                    Column(key="num_points", title="transfers measured", kind="count"),
                ),
                rows=tuple(
                    {
                        "collective": name,
                        "latency_s": fit.latency_s,
                        "bandwidth_bytes_per_s": _bandwidth(fit),
                        "residual": fit.residual,
                        "num_points": len(fit.points) or None,
                    }
                    for name, fit in fits.items()
                ),
                notes=(
                    BANDWIDTH,
                    *([UNRESOLVED] if any(fit.bandwidth_is_bound for fit in fits.values()) else []),
                    *(
                        [f"typically off by {format_percent(network.expected_error)}"]
                        if network.expected_error is not None
                        else []
                    ),
                ),
            )
        )
    ]
