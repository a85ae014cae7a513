"""Medium problems against HiGHS: a mixed-integer program with one variable an option, written from the formulas."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.profile import Basis, Profile
from cephalo_cli.costmodel import RankChoice, rank_memory
from cephalo_cli.costmodel.compute import copy_s, optimizer_s, stage_s
from cephalo_cli.costmodel.memory import state_bytes
from cephalo_cli.planner.problem import make_problem
from cephalo_cli.planner.solve import solve
from cephalo_cli.planner.variants import with_memory
from cephalo_cli.schedule import step_stages
from cephalo_cli.units import model_units

KINDS = (
    ("embedding", "forward"),
    ("block", "forward"),
    ("head", "forward-backward"),
    ("block", "backward"),
    ("embedding", "backward"),
)


def by_milp(profile: Basis, settings: PlanSettings, batch: int) -> float | None:
    """Only the given microbatch size (and a smaller last one), ideal network: sizes follow from the samples."""
    step = step_stages("layer-major", model_units(profile.model))
    members = [place.device for place in profile.cluster.ranks]
    size = settings.microbatch_size or 1
    blocks = profile.model.num_layers
    columns: list[tuple[int, int, list[float], float]] = []
    for rank, device in enumerate(members):
        curves = profile.devices[device]
        modes = [(True, False), (True, True)]
        if curves.units["block"].saved_bytes is not None:
            modes.insert(0, (False, False))
        for samples in range(batch + 1):
            whole, rest = divmod(samples, size)
            sizes = (size,) * whole + ((rest,) if rest else ())
            for recompute, offload in modes if samples else modes[:1]:
                choice = RankChoice(
                    device=device, microbatch_sizes=sizes, state_share=0.0, recompute=recompute, offload=offload
                )
                memory = rank_memory(profile, settings, choice, step=step, num_ranks=len(members))
                room = (memory.limit_bytes - memory.total_bytes) / state_bytes(profile)
                times = [
                    max(
                        stage_s(curves, kind, phase, sizes, recompute=recompute),  # type: ignore[arg-type]
                        copy_s(profile, curves, kind, phase, sizes, offload=offload),  # type: ignore[arg-type]
                    )
                    for kind, phase in KINDS
                ]
                if room >= 0:
                    columns.append((rank, samples, times, min(1.0, room)))
    options, ranks, kinds = len(columns), len(members), len(KINDS)
    width = options + ranks + kinds + 1
    unit = 1e-3
    rows: list[Any] = []

    def add(low: float, high: float, entries: list[tuple[int, float]]) -> None:
        row = np.zeros(width)
        for column, value in entries:
            row[column] += value
        rows.append((row, low, high))

    for rank, device in enumerate(members):
        mine = [(index, column) for index, column in enumerate(columns) if column[0] == rank]
        add(1, 1, [(index, 1.0) for index, _ in mine])
        add(-np.inf, 0, [(options + rank, 1.0)] + [(index, -column[3]) for index, column in mine])
        for kind in range(kinds):
            add(
                -np.inf,
                0,
                [(index, column[2][kind] / unit) for index, column in mine] + [(options + ranks + kind, -1.0)],
            )
        full = RankChoice(device=device, microbatch_sizes=(), state_share=1.0, recompute=True, offload=False)
        add(-np.inf, 0, [(options + rank, optimizer_s(profile, full) / unit), (width - 1, -1.0)])
    add(batch, batch, [(index, float(column[1])) for index, column in enumerate(columns)])
    add(1, 1, [(options + rank, 1.0) for rank in range(ranks)])
    cost = np.zeros(width)
    cost[options + ranks : options + ranks + kinds] = [1, blocks, 1, blocks, 1]
    cost[-1] = 1.0
    solved = milp(
        cost,
        integrality=np.array([1] * options + [0] * (width - options)),
        bounds=Bounds(np.zeros(width), np.array([1.0] * (options + ranks) + [np.inf] * (kinds + 1))),
        constraints=LinearConstraint(
            np.array([row for row, _, _ in rows]), [low for _, low, _ in rows], [high for _, _, high in rows]
        ),
        options={"mip_rel_gap": 1e-9, "time_limit": 60},
    )
    return None if solved.x is None else float(solved.fun) * unit


@pytest.mark.parametrize("seed", range(10))
def test_medium_problems_equal_a_mixed_integer_program(seed: int, random_profile: Callable[..., Profile]) -> None:
    profile: Basis = random_profile(seed + 300, num_ranks=4 + seed % 3, moving=False).model_copy(
        update={"network": "ideal"}
    )
    for name in profile.devices:
        profile = with_memory(profile, name, state_bytes(profile) // 2)
    measured = {name: device.model_copy(update={"method": "measured"}) for name, device in profile.devices.items()}
    profile = profile.model_copy(update={"devices": measured})
    settings = PlanSettings(microbatch_size=1 + seed % 3)
    batch = 20 + 3 * seed
    wanted = by_milp(profile, settings, batch)
    assert wanted is not None
    found = solve(make_problem(profile, settings, batch))
    assert found is not None
    assert found.proven
    assert found.step_s == pytest.approx(wanted, rel=1e-6)
