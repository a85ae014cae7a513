from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cephalo_cli.artifacts.profile import Basis, Profile, UnitProfile
from cephalo_cli.errors import InfeasibleError
from cephalo_cli.planner import make_plan
from cephalo_cli.planner.variants import with_faster_network, with_memory

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SLACK = 1 + 2e-9

seeds = st.integers(0, 10**6)
batches = st.integers(1, 7)


def step_s(profile: Basis, batch: int) -> float:
    try:
        return make_plan(profile, batch).expected.step_s
    except InfeasibleError:
        return float("inf")


@QUICK
@given(seed=seeds, batch=batches, more=st.integers(1, 200_000), pick=st.integers(0, 3))
def test_more_memory_is_never_slower(
    random_profile: Callable[..., Profile], seed: int, batch: int, more: int, pick: int
) -> None:
    profile = random_profile(seed)
    name = sorted(profile.devices)[pick % len(profile.devices)]
    assert step_s(with_memory(profile, name, more), batch) <= step_s(profile, batch) * SLACK


@QUICK
@given(seed=seeds, batch=batches, factor=st.floats(1.0, 10.0))
def test_a_faster_network_is_never_slower(
    random_profile: Callable[..., Profile], seed: int, batch: int, factor: float
) -> None:
    profile = random_profile(seed)
    assert step_s(with_faster_network(profile, factor), batch) <= step_s(profile, batch) * SLACK


@QUICK
@given(seed=seeds, batch=batches, factor=st.floats(0.1, 1.0), pick=st.integers(0, 3))
def test_a_faster_card_is_never_slower(
    random_profile: Callable[..., Profile], seed: int, batch: int, factor: float, pick: int
) -> None:
    profile = random_profile(seed)
    name = sorted(profile.devices)[pick % len(profile.devices)]
    quick = {kind: quicker(unit, factor) for kind, unit in profile.devices[name].units.items()}
    device = profile.devices[name].model_copy(update={"units": quick})
    faster = profile.model_copy(update={"devices": {**profile.devices, name: device}})
    assert step_s(faster, batch) <= step_s(profile, batch) * SLACK


def quicker(unit: UnitProfile, factor: float) -> UnitProfile:
    return unit.model_copy(
        update={
            "forward_s": tuple(seconds * factor for seconds in unit.forward_s),
            "backward_s": tuple(seconds * factor for seconds in unit.backward_s),
        }
    )


@QUICK
@given(seed=seeds, batch=batches)
def test_no_feasible_strategy_is_faster(random_profile: Callable[..., Profile], seed: int, batch: int) -> None:
    try:
        plan = make_plan(random_profile(seed), batch)
    except InfeasibleError:
        return
    for other in plan.alternatives:
        if other.feasible and other.step_s is not None:
            assert plan.expected.step_s <= other.step_s * SLACK
