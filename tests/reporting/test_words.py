"""What is said of devices' times below the tables of a profile and of a plan."""

from cephalo_cli import catalog
from cephalo_cli.artifacts import Plan, store
from cephalo_cli.profiler import estimate_profile
from cephalo_cli.reporting.describe import describe
from cephalo_cli.reporting.sheet import Sheet
from cephalo_cli.reporting.words import unit_flags

PLAN = store.read("plans/laptop-mixed.json", Plan)


def _sheets(artifact: object) -> dict[str, Sheet]:
    return {part.name: part for part in describe(artifact) if isinstance(part, Sheet)}  # type: ignore[arg-type]


def test_a_plan_says_what_looked_odd_in_the_times_it_rests_on() -> None:
    block = PLAN.devices["cpu-80"].units["block"].model_copy(update={"flags": ("forward: 4 samples took less time",)})
    odd = PLAN.devices["cpu-80"].model_copy(update={"units": {"block": block}})
    plan = PLAN.model_copy(update={"devices": {**PLAN.devices, "cpu-80": odd}})
    assert "cpu-80 block: forward: 4 samples took less time" in _sheets(plan)["ranks"].notes


def test_flags_of_devices_that_no_rank_uses_are_not_said() -> None:
    block = PLAN.devices["cpu-80"].units["block"].model_copy(update={"flags": ("odd",)})
    unused = PLAN.devices["cpu-80"].model_copy(update={"units": {"block": block}})
    plan = PLAN.model_copy(update={"devices": {**PLAN.devices, "unused": unused}})
    assert "unused block: odd" in list(unit_flags(plan.devices))
    assert "unused block: odd" not in _sheets(plan)["ranks"].notes


def test_an_estimated_profile_says_how_far_off_each_of_its_numbers_is() -> None:
    profile = estimate_profile(
        catalog.cluster_from_gpus("l4:2"), catalog.model("gpt2"), seq_len=64, dtype="float32", max_microbatch=1
    )
    sheets = _sheets(profile)
    assert sheets["devices"].notes == (
        "working memory: typically off by 9.8 %",
        "optimizer: typically off by 33.3 %",
    )
    assert sheets["network"].notes[-1] == "typically off by 25.0 %"
