"""The planning problem in numbers: what the search needs from a profile, and nothing else.

Symbols (used throughout the planner)

    n            number of ranks; device types d have N_d ranks each
    b, s         samples of a rank; size of one microbatch
    k            kind of stage: embedding forward, block forward, head, block backward (in parts where ranks may
                 recompute some blocks), embedding backward
    g            class of stages that are equal in everything: kind k(g), times it occurs n_g, network time
                 ``floor_g + slope_g * w`` with w the busiest fraction of `costmodel.network`, bytes moved y_g
    T_g          time of one stage of the class; ``T_g >= network``, ``T_g >= t_k(x)`` for every rank's option x
    x            an option: a multiset of microbatch sizes with a mode: how many blocks recompute, and offload
    M(x)         largest state share that fits beside the option
    O, rho_d     optimizer limit; seconds of a device's optimizer step if it held the whole state

    step = exposed(w) + sum_g n_g * T_g + O

`costmodel.step_estimate` stays the objective: every plan is priced by it at the end; this module only takes it apart,
with `kinds` for the stages, `groups` for the devices and `network` for the shares.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from cephalo_cli.artifacts.plan import Memory, PlanSettings
from cephalo_cli.artifacts.profile import Basis
from cephalo_cli.costmodel import RankChoice, rank_memory
from cephalo_cli.costmodel.memory import planned_state_bytes
from cephalo_cli.errors import UsageError
from cephalo_cli.planner.groups import DeviceGroup, device_groups
from cephalo_cli.planner.kinds import Exposed, Kind, StageClass, list_kinds, stage_classes
from cephalo_cli.planner.network import Network
from cephalo_cli.planner.sane import refuse_absurd
from cephalo_cli.schedule import StepStages, step_stages
from cephalo_cli.units import model_units

__all__ = ["Problem", "Space", "make_problem"]

Table = TypeVar("Table")


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Which plans a problem is about, beyond those of a rank that recomputes all blocks or none."""

    keep_unsharded: int = 0
    """How many blocks before the last one stay unsharded between their phases."""
    charged: int | None = None
    """For how many of them memory is charged: fewer give a bound on all numbers in between; all when absent."""
    partial: bool = False
    """Whether ranks may recompute some of the blocks."""
    stride: int = 1
    """Distance between the numbers of recomputed blocks that are considered, from all but one downwards."""
    cuts: tuple[int, ...] = ()
    """Numbers of recomputed blocks that are priced exactly, see the note on parts in `kinds`."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A layer-major planning problem."""

    basis: Basis
    settings: PlanSettings
    batch_size: int
    space: Space
    step: StepStages
    """Whose time counts."""
    memory_step: StepStages
    """Whose memory counts: the same step, or one that keeps fewer blocks unsharded."""
    kinds: tuple[Kind, ...]
    """Kinds of stages k, in the order in which a step meets them."""
    groups: tuple[DeviceGroup, ...]
    stages: tuple[StageClass, ...]
    exposed: Exposed
    network: Network | None
    """None where shares do not act on time through collectives."""
    state_bytes: int
    tables: dict[tuple[object, ...], Any] = field(default_factory=dict, compare=False, repr=False)
    """What has been tabulated for it so far, so that every strategy shares it."""

    @cached_property
    def num_ranks(self) -> int:
        """Number of ranks n."""
        return len(self.basis.cluster.ranks)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How often each kind of stage occurs."""
        return tuple(sum(stage.count for stage in self.stages if stage.kind == kind) for kind in range(len(self.kinds)))

    @cached_property
    def shares_cost_compute(self) -> bool:
        """Whether a rank's share acts on its compute: the computing cores move the bytes of collectives."""
        return any(group.moving_s_per_byte > 0 for group in self.groups)

    @property
    def least_busiest(self) -> float:
        """The smallest w."""
        return 0.0 if self.network is None else self.network.least_busiest

    @property
    def least_exposed_s(self) -> float:
        """Exposed collectives under equal shares."""
        return self.exposed.floor_s + self.exposed.slope_s * self.least_busiest

    def memory(self, choice: RankChoice) -> Memory:
        """Memory of a rank by the cost model."""
        return rank_memory(self.basis, self.settings, choice, step=self.memory_step, num_ranks=self.num_ranks)

    def tabulated(self, key: tuple[object, ...], make: Callable[[], Table]) -> Table:
        """What was made under a key, made when first asked for."""
        if key not in self.tables:
            self.tables[key] = make()
        table: Table = self.tables[key]
        return table


def make_problem(
    basis: Basis,
    settings: PlanSettings,
    batch_size: int,
    space: Space | None = None,
    groups: tuple[DeviceGroup, ...] | None = None,
) -> Problem:
    """Take a profile apart into the numbers of the search.

    Args:
        basis: Curves, model, cluster and network.
        settings: Limits and switches.
        batch_size: Samples of a step.
        space: Which plans; when absent those whose ranks recompute all blocks or none, and that keep as many blocks
            unsharded as the settings say, none where they say auto.
        groups: Device groups of another problem whose ranks may recompute as many blocks; found anew when absent.

    Raises:
        UsageError: The settings ask for something a device type or the model cannot do.
        ArtifactError: The profile has a number that no hardware has.
    """
    refuse_absurd(basis)
    asked = settings.keep_unsharded if isinstance(settings.keep_unsharded, int) else 0
    _refuse_impossible(basis, settings, asked)
    if space is None:
        space = Space(keep_unsharded=asked)
    units = model_units(basis.model)
    step = step_stages("layer-major", units, keep_unsharded=space.keep_unsharded)
    charged = space.keep_unsharded if space.charged is None else space.charged
    network = Network.of(basis)
    kinds = list_kinds(step, network, space.cuts if space.partial else None)
    stages, exposed = stage_classes(step, kinds, network, basis.dtype)
    return Problem(
        basis=basis,
        settings=settings,
        batch_size=batch_size,
        space=space,
        step=step,
        memory_step=step_stages("layer-major", units, keep_unsharded=charged),
        kinds=kinds,
        groups=groups or device_groups(basis, settings, network, stride=space.stride if space.partial else None),
        stages=stages,
        exposed=exposed,
        network=network,
        state_bytes=planned_state_bytes(basis, settings, step=step, num_ranks=len(basis.cluster.ranks)),
    )


def _refuse_impossible(basis: Basis, settings: PlanSettings, keep_unsharded: int) -> None:
    num_layers = basis.model.num_layers
    if keep_unsharded >= num_layers:
        raise UsageError(
            f"{keep_unsharded} blocks cannot stay unsharded beside the last one: the model has {num_layers}",
            where="--keep-unsharded",
            hint=f"at most {num_layers - 1}",
        )
    if settings.optimizer_in_backward and basis.dtype == "float16":
        raise UsageError(
            "in float16 a step whose scaled gradient overflows is left out, so all gradients come before any update",
            where="--optimizer-in-backward",
            hint="profile in bfloat16 or float32",
        )
