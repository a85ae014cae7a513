"""Equal devices, and in which modes they may treat activations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.profile import Basis, DeviceProfile
from cephalo_cli.costmodel.compute import RankChoice, optimizer_s
from cephalo_cli.costmodel.memory import accumulation_bytes, limit_bytes, weights_bytes
from cephalo_cli.errors import UsageError
from cephalo_cli.planner.network import Network
from cephalo_cli.units import model_units

__all__ = ["DeviceGroup", "Mode", "device_groups", "partial_counts", "startup_bytes"]


@dataclass(frozen=True, slots=True)
class Mode:
    """How a rank treats activations."""

    recompute: bool
    offload: bool
    recompute_blocks: int | None = None
    """How many blocks recompute, where not all do."""

    @property
    def recomputes_all(self) -> bool:
        """Whether no block keeps what autograd needs."""
        return self.recompute and self.recompute_blocks is None

    def choice(self, device: str, sizes: tuple[int, ...], share: float) -> RankChoice:
        """What a rank decides that runs in this mode."""
        return RankChoice(
            device=device,
            microbatch_sizes=sizes,
            state_share=share,
            recompute=self.recompute,
            offload=self.offload,
            recompute_blocks=self.recompute_blocks,
        )


@dataclass(frozen=True, kw_only=True)
class DeviceGroup:
    """Equal devices."""

    name: str
    device: DeviceProfile
    ranks: tuple[int, ...]
    modes: tuple[Mode, ...]
    """What the settings and the device allow, the fastest first."""
    families: tuple[tuple[int, ...], ...]
    """Indices of modes that differ only in how many blocks recompute, but not all: what a microbatch costs is linear in
    that."""
    optimizer_s: float
    """Optimizer step on the whole state (rho_d)."""
    moving_s_per_byte: float
    """Compute that handling one byte of a collective costs."""
    limit_bytes: int
    reserve_bytes: int
    startup_share: float
    """Largest share with which it can start: shard of the weights, one whole unit and the reserve."""

    @property
    def count(self) -> int:
        """Number of ranks N_d."""
        return len(self.ranks)


def device_groups(
    basis: Basis, settings: PlanSettings, network: Network | None, *, stride: int | None
) -> tuple[DeviceGroup, ...]:
    """Group the ranks by device type, in the order of their first rank.

    Args:
        basis: Curves, model and cluster.
        settings: Limits and switches.
        network: Whose bytes cost compute, where the device's cores move them.
        stride: Distance between the numbers of recomputed blocks that ranks may have, from all but one downwards; None:
            they recompute all blocks or none.

    Raises:
        UsageError: The settings ask for something a device type cannot do.
    """
    ranks: dict[str, list[int]] = {}
    for place in basis.cluster.ranks:
        ranks.setdefault(place.device, []).append(place.rank)
    groups = []
    for name, members in ranks.items():
        device = basis.devices[name]
        whole = RankChoice(device=name, microbatch_sizes=(), state_share=1.0, recompute=True, offload=False)
        limit = limit_bytes(basis, name, settings)
        reserve = device.reserve_bytes if settings.reserve_bytes is None else settings.reserve_bytes
        # One element of slack, so that a share rounded up to whole elements still starts.
        room = limit - reserve - startup_bytes(basis, 0.0) - accumulation_bytes(basis.dtype)
        modes = _modes(basis, settings, name, stride=stride)
        groups.append(
            DeviceGroup(
                name=name,
                device=device,
                ranks=tuple(members),
                modes=modes,
                families=_families(modes),
                optimizer_s=optimizer_s(basis, whole),
                moving_s_per_byte=0.0 if network is None else device.collective_compute_s_per_byte,
                limit_bytes=limit,
                reserve_bytes=reserve,
                startup_share=room / weights_bytes(basis),
            )
        )
    return tuple(groups)


def startup_bytes(basis: Basis, share: float) -> int:
    """Bytes while weights are made unit by unit: the shard of the weights and one whole unit."""
    largest = max(unit.num_parameters for unit in model_units(basis.model))
    return math.ceil(share * weights_bytes(basis)) + accumulation_bytes(basis.dtype) * largest


def partial_counts(basis: Basis, settings: PlanSettings, name: str) -> range:
    """How many blocks a device type may recompute beside none and all."""
    allowed = settings.recompute == "blocks" and settings.offload != "on" and _may_keep(basis, name)
    return range(1, basis.model.num_layers if allowed else 1)


def _may_keep(basis: Basis, name: str) -> bool:
    """Whether a device type may run blocks without recompute: what they keep is known, or they have no curves."""
    block = basis.devices[name].units.get("block")
    return block is None or block.saved_bytes is not None


def _may_offload(basis: Basis, name: str) -> bool:
    """Whether a device type has memory of its own beside the host's."""
    return basis.cluster.device_types[name].backend != "cpu"


def _modes(basis: Basis, settings: PlanSettings, name: str, *, stride: int | None) -> tuple[Mode, ...]:
    _refuse_impossible(basis, settings, name)
    counts = () if stride is None else partial_counts(basis, settings, name)[::-1][::stride][::-1]
    some = [Mode(True, False, count) for count in counts]
    every = (Mode(False, False), *some, Mode(True, False), Mode(True, True))
    return tuple(
        mode
        for mode in every
        if (settings.recompute in ("auto", "blocks") or mode.recompute == (settings.recompute == "on"))
        and (settings.offload == "auto" or mode.offload == (settings.offload == "on"))
        and (mode.recompute or _may_keep(basis, name))
        and (not mode.offload or _may_offload(basis, name))
    )


def _refuse_impossible(basis: Basis, settings: PlanSettings, name: str) -> None:
    if settings.recompute == "off" and settings.offload == "on":
        raise UsageError(
            "offload needs recompute: only boundary activations are moved to host memory",
            where="--offload on",
            hint="leave out --recompute off",
        )
    if settings.recompute == "off" and not _may_keep(basis, name):
        raise UsageError(
            f"the profile does not say what {name} keeps without recompute (no saved_bytes for blocks)",
            where="--recompute off",
            hint="use --recompute on, or measure a profile",
        )
    if settings.offload == "on" and not _may_offload(basis, name):
        raise UsageError(
            f"{name} has the cpu backend: its memory is host memory, so there is nowhere to offload to",
            where="--offload on",
            hint="use --offload off",
        )


def _families(modes: Sequence[Mode]) -> tuple[tuple[int, ...], ...]:
    some = tuple(index for index, mode in enumerate(modes) if not mode.recomputes_all)
    others = tuple((index,) for index in range(len(modes)) if index not in some)
    return (some, *others) if some else others
