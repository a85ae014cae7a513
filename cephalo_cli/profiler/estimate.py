"""Profiles of devices that are not here: times from datasheets and fitted coefficients, memory from fake tensors.

Note: stated constants
    Nothing measures these without the device; each errs on the careful side.

    * Reserve: 1 GiB on an accelerator for the runtime's context, product workspaces, communicator buffers and
      fragmentation, which together take 0.5 to 1 GiB of a process that has run a step; 256 MiB on a CPU, an
      interpreter with torch loaded.
    * Host copies reach 0.8 of the link's rate from pinned memory, which large copies do.
    * AdamW reads and writes 30 bytes a parameter (master weight, two moments, gradient, weight in the compute dtype),
      at 0.75 of the peak bandwidth, as fused optimizers do.
    * The device copies what collectives move: ``collectives`` passes over its memory for each byte sent or received, a
      read and a write where nothing better is known. On a CPU the cores do it; an accelerator's communication kernels
      take compute units and memory bandwidth from the products they overlap with.

Note: stated errors
    Times of units: `catalog.coefficients`. The others come from what is known of them:

    * Working memory: the median of 119 published measurements (``tests/benchmarks/estimate_memory.py``).
    * The optimizer of an accelerator: nobody measured one here; at the peak bandwidth, which none exceeds, it would
      take 0.75 of what is stated. That of a CPU: the furthest off of the devices of ``profiles/laptop-mixed.json``.
    * Collectives: links at their nominal rate would take 0.8 of what is stated; the measured ones of
      ``profiles/laptop-mixed.json`` are off by 4 and 18 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from cephalo_cli import catalog
from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import Cluster, DeviceType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import DeviceProfile, HostCopy, NetworkProfile, Profile, UnitKind, UnitProfile
from cephalo_cli.catalog.coefficients import Coefficients
from cephalo_cli.catalog.compatible import expect_compatible
from cephalo_cli.costmodel.network import network_from_links
from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.profiler.attention import Attention, attention_by, kernels_of
from cephalo_cli.profiler.calibrate import calibrated
from cephalo_cli.profiler.lengths import tokens_of_sample
from cephalo_cli.profiler.memory import UnitMemory, memory_curve
from cephalo_cli.profiler.roofline import unit_seconds, unit_work
from cephalo_cli.units import num_frozen_parameters, num_parameters

__all__ = ["estimate_profile"]

RESERVE_BYTES = 2**30
CPU_RESERVE_BYTES = 256 * 2**20
HOST_COPY_EFFICIENCY = 0.8
OPTIMIZER_BYTES = 30
OPTIMIZER_EFFICIENCY = 0.75
MEMORY_ERROR = 0.098
OPTIMIZER_ERROR = 1 / 0.75 - 1
CPU_OPTIMIZER_ERROR = 3.1
NETWORK_ERROR = 0.25

LARGEST_MICROBATCH = 4096
"""Curves are given at every size, so larger ones take long and say nothing more."""

MOST_ELEMENTS = 2**50
"""Parameters of a model, or elements of one tensor, above which counts of bytes overflow."""

_Memory = dict[tuple[UnitKind, Attention], list[UnitMemory]]


@dataclass(frozen=True)
class _Case:
    """What is estimated on one device type."""

    model: Model
    tokens: int
    dtype: DType
    attention: Attention
    fit: Coefficients


def estimate_profile(
    cluster: Cluster,
    model: Model,
    *,
    seq_len: int | None,
    dtype: DType,
    max_microbatch: int = 32,
    attention: Attention | None = None,
    calibration: Profile | None = None,
) -> Profile:
    """Estimate a profile from what the catalog and the cluster file say, without running anything on the devices.

    Args:
        cluster: The cluster; catalog facts are filled in.
        model: The model.
        seq_len: Tokens of one sample; None for vit.
        dtype: Compute dtype.
        max_microbatch: Curves are given for microbatches of 1 to this many samples.
        attention: How all devices compute attention; None: as training here does, see `profiler.attention`.
        calibration: A profile measured on some of the devices, with any model; it corrects their estimates.

    Raises:
        UsageError: A device cannot run the dtype, two devices cannot be in one group of collectives, the length does
            not fit the model, the microbatch is too large, or the model is larger than anything that can be counted.
        ArtifactError: A custom device type lacks a fact that the estimate needs.
    """
    cluster = catalog.resolve_cluster(cluster)
    tokens = tokens_of_sample(model, seq_len)
    _expect_countable(model, tokens, max_microbatch)
    used = dict.fromkeys(place.device for place in cluster.ranks)
    types = {name: cluster.device_types[name] for name in used}
    expect_compatible(cluster, dtype)
    sizes = range(1, max_microbatch + 1)
    ways = {name: attention or attention_by(kernels_of(device), model, dtype, tokens) for name, device in types.items()}
    memory: _Memory = {
        (kind, way): memory_curve(model, seq_len=tokens, dtype=dtype, kind=kind, microbatches=sizes, attention=way)
        for kind in get_args(UnitKind)
        for way in set(ways.values())
    }
    return Profile(
        cluster=cluster,
        model=model,
        seq_len=tokens,
        dtype=dtype,
        num_parameters=num_parameters(model),
        num_frozen_parameters=num_frozen_parameters(model),
        devices={
            name: _device(
                name,
                device,
                _Case(model, tokens, dtype, ways[name], calibrated(device, name, dtype, calibration)),
                memory,
            )
            for name, device in types.items()
        },
        network=_network(cluster),
    )


def _network(cluster: Cluster) -> NetworkProfile | Literal["ideal"]:
    network = network_from_links(cluster)
    return network if network == "ideal" else network.model_copy(update={"expected_error": NETWORK_ERROR})


def _device(name: str, device: DeviceType, case: _Case, memory: _Memory) -> DeviceProfile:
    rates = _rates(name, device, case.dtype)
    is_cpu = device.backend == "cpu"
    host_copy = None
    if device.host_link is not None and not is_cpu:
        rate = device.host_link.bandwidth_bytes_per_s * HOST_COPY_EFFICIENCY
        host_copy = HostCopy(to_device_bytes_per_s=rate, to_host_bytes_per_s=rate, latency_s=device.host_link.latency_s)
    kinds: Sequence[UnitKind] = get_args(UnitKind)
    return DeviceProfile(
        method="estimated",
        units={kind: _unit(kind, case, rates, memory[kind, case.attention]) for kind in kinds},
        optimizer_s_per_parameter=OPTIMIZER_BYTES / (OPTIMIZER_EFFICIENCY * rates[1]),
        collective_compute_s_per_byte=case.fit.collectives / rates[1],
        host_copy=host_copy,
        reserve_bytes=CPU_RESERVE_BYTES if is_cpu else RESERVE_BYTES,
        expected_error=case.fit.expected_error,
        expected_memory_error=None if is_cpu else MEMORY_ERROR,
        expected_optimizer_error=CPU_OPTIMIZER_ERROR if is_cpu else OPTIMIZER_ERROR,
    )


def _unit(kind: UnitKind, case: _Case, rates: tuple[float, float], memory: list[UnitMemory]) -> UnitProfile:
    sizes = range(1, len(memory) + 1)
    works = [
        unit_work(
            case.model, kind=kind, tokens=case.tokens, dtype=case.dtype, microbatch=size, attention=case.attention
        )
        for size in sizes
    ]
    seconds = [unit_seconds(work, *rates, case.fit) for work in works]
    return UnitProfile(
        microbatch=tuple(sizes),
        forward_s=tuple(forward for forward, _ in seconds),
        backward_s=tuple(backward for _, backward in seconds),
        working_bytes=tuple(unit.working_bytes for unit in memory),
        saved_bytes=tuple(unit.saved_bytes for unit in memory),
        flags=_said_of_block(case) if kind == "block" else (),
    )


def _said_of_block(case: _Case) -> tuple[str, ...]:
    """How a block was taken to compute; where training here does less, its estimate errs on the slow side."""
    attention = f"{case.attention} attention"
    if case.model.family != "llama":
        return (attention,)
    return (attention, "norms and rotations as chains of operators, as published runs have them; training fuses norms")


def _rates(name: str, device: DeviceType, dtype: DType) -> tuple[float, float]:
    """Read the peak rate and the memory's bandwidth; an emulated CPU has its share of both."""
    if device.peak_flops is None or device.memory_bandwidth_bytes_per_s is None:
        lacks = "peak_flops" if device.peak_flops is None else "memory_bandwidth_bytes_per_s"
        raise ArtifactError(
            "is missing, and an estimate needs it",
            where=f"device_types.{name}.{lacks}",
            hint='give it, or name a catalog device with "catalog"',
        )
    speed = device.emulated_speed or 1.0
    return device.peak_flops[dtype] * speed, device.memory_bandwidth_bytes_per_s * speed


def _expect_countable(model: Model, tokens: int, max_microbatch: int) -> None:
    """Refuse sizes whose bytes overflow, or whose curves would be endless."""
    if max_microbatch > LARGEST_MICROBATCH:
        raise UsageError(
            f"found {max_microbatch}, expected at most {LARGEST_MICROBATCH} in an estimate", where="--max-microbatch"
        )
    parameters = num_parameters(model)
    if parameters > MOST_ELEMENTS:
        raise UsageError(
            f"{model.name} has {parameters:.3g} parameters, expected at most {MOST_ELEMENTS:.3g}",
            where="--model",
            hint="look at hidden_size, ffn_size, vocab_size and num_layers",
        )
    widest = max(model.hidden_size, model.ffn_size, model.vocab_size or 0, model.num_heads * tokens)
    elements = max_microbatch * tokens * widest
    if elements > MOST_ELEMENTS:
        raise UsageError(
            f"a microbatch of {max_microbatch} samples has a tensor of {elements:.3g} elements, "
            f"expected at most {MOST_ELEMENTS:.3g}",
            where="--seq-len",
            hint="shorten it, or lower --max-microbatch",
        )
