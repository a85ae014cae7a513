"""O24: the planner answers with nothing, or with a plan that cannot fit."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cephalo_cli.artifacts import Plan, Profile, store
from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.errors import InfeasibleError
from cephalo_cli.planner import check_plan, make_plan
from tests.cli.commands import cephalo

GB = 10**9
WHOLE = PlanSettings(memory_fraction=1.0, reserve_bytes=0)


def profile_with(memories: dict[str, int], num_parameters: int) -> Profile:
    """Cards of given memory under curves that need next to none; the state is 16 bytes a parameter."""
    base = store.read("profiles/home-lab.json", Profile).model_dump(mode="json", exclude_none=True)
    device: dict[str, Any] = {
        "method": "imported",
        "units": {"block": {"microbatch": [1], "forward_s": [0.01], "backward_s": [0.02], "working_bytes": [1000]}},
    }
    base["cluster"] = {
        "kind": "cluster",
        "name": "cards",
        "device_types": {name: {"memory_bytes": size} for name, size in memories.items()},
        "nodes": [{"name": "host", "devices": list(memories)}],
        "network": "ideal",
    }
    base |= {"dtype": "float32", "devices": dict.fromkeys(memories, device), "network": "ideal", "inputs": []}
    base["num_parameters"] = num_parameters
    return Profile.model_validate_json(json.dumps(base))


def plan(profile: Profile, batch: int) -> Plan:
    made = make_plan(profile, batch, settings=WHOLE.model_copy(update={"offload": "on"}))
    check_plan(made)
    return made


def test_o24_a_state_larger_than_all_cards_is_refused_with_the_shortfall() -> None:
    """O24 (a): a state of 16 GB on cards of 2, 4 and 6 GB: no plan, and at least 4 GB are said to be missing."""
    profile = profile_with({"two": 2 * GB, "four": 4 * GB, "six": 6 * GB}, 10**9)
    with pytest.raises(InfeasibleError) as refusal:
        plan(profile, 6)
    assert refusal.value.exit_code == 4
    missing = re.search(r"\((\d+) bytes\)", refusal.value.message)
    assert missing is not None
    assert int(missing[1]) >= 4 * GB
    assert "state" in refusal.value.message


def test_o24_the_state_goes_where_the_memory_is() -> None:
    """O24 (b): a card of 8 GB and one of 48 GB, a state of 40 GB: most of it on the large card."""
    made = plan(profile_with({"small": 8 * GB, "large": 48 * GB}, 2_500_000_000), 4)
    small, large = made.ranks
    assert large.state_share > 0.8
    assert small.memory.total_bytes <= 8 * GB
    assert small.microbatch_sizes


def cut_to_one_point(profile: Profile) -> Profile:
    """A profile whose curves have microbatch 1 alone."""
    content = profile.model_dump(mode="json", exclude_none=True)
    for device in content["devices"].values():
        for unit in device["units"].values():
            unit |= {name: series[:1] for name, series in unit.items() if name != "flags"}
    return Profile.model_validate_json(json.dumps(content))


@pytest.mark.parametrize(
    ("profile", "source"),
    [
        (cut_to_one_point(store.read("profiles/laptop-mixed.json", Profile)), "cephalo profile --max-microbatch 4"),
        (profile_with({"a": 8 * GB, "b": 8 * GB}, 10**6), "rows of the table"),
    ],
    ids=["measured", "imported"],
)
def test_o24_points_that_the_profile_lacks_are_named(tmp_path: Path, profile: Profile, source: str) -> None:
    """O24 (c): a profile of microbatch 1 alone: a plan with larger ones says which points it had to extrapolate."""
    read, written = str(tmp_path / "profile.json"), str(tmp_path / "plan.json")
    store.write(profile, read)

    def extrapolated(size: int) -> list[str]:
        options = ("--batch-size", "16", "--microbatch-size", str(size), "--force", "-o", written)
        ran = cephalo("plan", read, *options)
        assert ran.code == 0
        return [line for line in ran.err.splitlines() if line.startswith("extrapolated")]

    assert extrapolated(1) == []
    (line,) = extrapolated(4)
    beyond: dict[str, set[int]] = {}
    for rank in store.read(written, Plan).ranks:
        if more := {size for size in rank.microbatch_sizes if size > 1}:
            beyond.setdefault(rank.device, set()).update(more)
    named = "; ".join(
        f"{device} at microbatch {', '.join(map(str, sorted(sizes)))} (its points end at 1)"
        for device, sizes in beyond.items()
    )
    assert line == (
        f"extrapolated, for the profile has no such points: {named}"
        f" ({source} would add them, where memory and time allow)"
    )
    assert "microbatch 4 " in named


def test_o24_fewer_samples_than_cards_leave_some_without() -> None:
    """O24 (d): a batch of 2 on three cards: a valid plan in which a rank has no samples."""
    made = plan(profile_with({"a": 8 * GB, "b": 8 * GB, "c": 8 * GB}, 10**6), 2)
    assert sorted(sum(rank.microbatch_sizes) for rank in made.ranks) == [0, 1, 1]
