"""The committed artifacts: each reads, comes back byte for byte, and holds what it says."""

from pathlib import Path

import pytest

from cephalo_cli.artifacts import Plan, Profile, store
from cephalo_cli.planner import check_plan, make_plan
from cephalo_cli.simulator import simulate

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(
    str(path.relative_to(ROOT))
    for folder in ("profiles", "plans", "examples")
    for path in ROOT.glob(f"{folder}/**/*.json")
)
PLANS = [path for path in FILES if path.startswith("plans/")]
PROFILES = [path for path in FILES if path.startswith("profiles/")]


def test_there_are_examples_of_every_stage() -> None:
    assert len(PLANS) >= 2
    assert len(PROFILES) >= 2
    assert {store.read_any(path).kind for path in FILES} == {"cluster", "model", "profile", "plan"}


@pytest.mark.parametrize("path", FILES)
def test_reads_and_comes_back_byte_for_byte(path: str) -> None:
    assert store.dumps(store.read_any(path)) == Path(path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PLANS)
def test_plans_hold_what_they_say(path: str) -> None:
    plan = store.read(path, Plan)
    check_plan(plan)
    assert (plan.solver.status, plan.solver.gap) == ("optimal", 0.0)


@pytest.mark.parametrize("path", PLANS)
def test_plans_are_what_their_profiles_give_today(path: str) -> None:
    plan = store.read(path, Plan)
    (source,) = plan.inputs
    profile = store.read(source.path, Profile)
    assert source == store.input_file(source.path)
    again = make_plan(profile, plan.global_batch_size, plan.strategy, plan.settings, inputs=plan.inputs)
    assert store.dumps(again.model_copy(update={"created_by": plan.created_by})) == store.dumps(plan)


@pytest.mark.parametrize("path", PLANS)
def test_the_simulator_agrees_or_says_why(path: str) -> None:
    plan = store.read(path, Plan)
    report = simulate(plan).report
    assert report.difference is not None or abs(report.step_s / plan.expected.step_s - 1) <= 0.02
