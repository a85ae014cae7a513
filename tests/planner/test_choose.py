import itertools
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.profile import Profile
from cephalo_cli.errors import InfeasibleError, TimeLimitError, UsageError
from cephalo_cli.planner import choose_batch, choose_devices, cost_per_token, explain, make_plan
from cephalo_cli.planner.variants import with_faster_network

Make = Callable[..., Profile]
AMPLE = 10**9


def priced(profile: Profile, prices: dict[str, float]) -> Profile:
    types = {
        name: device.model_copy(update={"price_per_hour": prices[name]})
        for name, device in profile.cluster.device_types.items()
    }
    return profile.model_copy(update={"cluster": profile.cluster.model_copy(update={"device_types": types})})


def test_auto_finds_the_batch_with_most_samples_a_second(random_profile: Make) -> None:
    found = 0
    for seed in range(6):
        profile = random_profile(seed, moving=False)
        rates = []
        for batch in range(1, 10):
            try:
                rates.append(make_plan(profile, batch).expected.samples_per_s)
            except InfeasibleError:
                continue
        if rates:
            best = choose_batch(profile, "auto", 9).expected.samples_per_s
            assert best == pytest.approx(max(rates), rel=1e-9)
            found += 1
    assert found >= 3


def test_max_finds_the_largest_batch_that_fits(simple_profile: Make) -> None:
    settings = PlanSettings(offload="off")
    profile = simple_profile({"a": (1, 500_000, 1e-3), "b": (1, 70_000, 1e-3)})
    plan = choose_batch(profile, "max", 1000, settings)
    assert 1 < plan.global_batch_size < 1000
    with pytest.raises(InfeasibleError):
        make_plan(profile, plan.global_batch_size + 1, settings=settings)
    assert choose_batch(simple_profile({"a": (1, AMPLE, 1e-3)}), "max", 50).global_batch_size == 50


def test_when_time_is_up_the_best_batch_so_far_is_taken_and_said(
    random_profile: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr("cephalo_cli.planner.batches.time", SimpleNamespace(monotonic=lambda: next(clock)))
    words: list[str] = []
    plan = choose_batch(random_profile(0, moving=True), "auto", 60, time_limit_s=75.0, say=words.append)
    assert plan.global_batch_size == 4
    assert words == ["time was up after 75 s: 57 batch sizes up to 60 were not tried"]


def test_no_batch_in_no_time(random_profile: Make) -> None:
    with pytest.raises(TimeLimitError, match="no plan was found in time"):
        choose_batch(random_profile(0, moving=True), "auto", 60, time_limit_s=1e-9)


def test_the_largest_batch_is_planned_within_the_time_and_tells_its_gap(random_profile: Make) -> None:
    plan = choose_batch(random_profile(0, moving=True), "max", 60, time_limit_s=1e-9)
    assert plan.global_batch_size == 60
    assert plan.solver.status == "time-limit"
    assert plan.solver.gap > 0.1


def test_nothing_to_choose_from_is_infeasible(simple_profile: Make) -> None:
    profile = simple_profile({"a": (1, 30_000, 1e-3)})
    for goal in ("auto", "max"):
        with pytest.raises(InfeasibleError):
            choose_batch(profile, goal, 8)


def test_the_cheapest_devices_are_kept(simple_profile: Make) -> None:
    profile = simple_profile({"dear": (1, AMPLE, 1e-3), "cheap": (1, AMPLE, 1.5e-3)})
    plan = choose_devices(priced(profile, {"dear": 30.0, "cheap": 1.0}), 12, objective="cost")
    assert [rank.device for rank in plan.ranks] == ["cheap"]
    assert cost_per_token(plan) == pytest.approx(1.0 / 3600 / plan.expected.tokens_per_s)
    both = choose_devices(priced(profile, {"dear": 1.0, "cheap": 1.0}), 12, objective="cost")
    assert [rank.device for rank in both.ranks] == ["dear"]


def test_a_type_without_a_price_is_named(simple_profile: Make) -> None:
    with pytest.raises(UsageError, match="device type a has no price_per_hour"):
        choose_devices(simple_profile({"a": (2, AMPLE, 1e-3)}), 4, objective="cost")


def test_no_choice_of_devices_is_slower_than_all(random_profile: Make) -> None:
    dropped = 0
    for seed in range(20):
        profile = random_profile(seed, moving=False)
        try:
            everyone = make_plan(profile, 5)
        except InfeasibleError:
            continue
        chosen = choose_devices(profile, 5)
        assert chosen.expected.step_s <= everyone.expected.step_s * (1 + 1e-9)
        dropped += len(chosen.ranks) < len(everyone.ranks)
    assert dropped > 0


def test_an_explanation_says_what_binds_and_what_changes_gain(simple_profile: Make) -> None:
    plan = make_plan(simple_profile({"fast": (1, 100_000, 1e-3), "slow": (1, 150_000, 4e-3)}), 10)
    told = explain(plan)
    assert [binding.rank for binding in told.bindings] == [0, 1]
    assert any("forward" in binding.constraints for binding in told.bindings)
    gains = {gain.change: gain for gain in told.gains}
    assert set(gains) == {"1 GiB more on each fast", "1 GiB more on each slow", "one more fast", "one more slow"}
    speedups = [gain.speedup for gain in told.gains if gain.speedup is not None]
    assert all(speedup >= 1 - 1e-9 for speedup in speedups)
    assert (gains["one more fast"].speedup or 0) > 1.5


def test_an_explanation_names_the_network_where_it_binds(random_profile: Make) -> None:
    for factor, named in ((1000.0, False), (0.02, True)):
        plan = make_plan(with_faster_network(random_profile(5), factor), 4)
        constraints = [binding.constraints for binding in explain(plan).bindings]
        assert any("network" in each for each in constraints) is named
        assert any("forward" in each or "backward" in each for each in constraints) is not named
