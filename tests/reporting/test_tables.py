"""Tables: the same content for eyes and for programs, 80 columns wide, with marks that survive without colour."""

import contextlib
import io
import itertools
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from cephalo_cli.artifacts import Envelope, Plan, Profile, Report
from cephalo_cli.artifacts.model import RopeScaling
from cephalo_cli.artifacts.plan import Alternative, PlanSettings
from cephalo_cli.artifacts.profile import Basis, CollectiveFit
from cephalo_cli.artifacts.report import StepReport
from cephalo_cli.artifacts.store import write
from cephalo_cli.errors import UsageError
from cephalo_cli.reporting import artifact_tables, compare
from cephalo_cli.reporting.describe import describe
from cephalo_cli.reporting.labels import labels, legend
from cephalo_cli.reporting.sheet import plain, rank_ranges, shown
from cephalo_cli.reporting.words import microbatches
from cephalo_cli.simulator import simulate
from tests.simulator.plans import make_plan


def small_plan() -> Plan:
    plan = make_plan(
        ["fast", "middle", "slow", "slow"],
        [[4, 4, 1], [4], [2], [2]],
        [0.2, 0.4, 0.2, 0.2],
        recompute=[True, True, False, False],
    )
    others = (
        Alternative(strategy="fsdp", feasible=False, reason="rank 2 needs too much", step_s=0.4, samples_per_s=42.5),
        Alternative(strategy="compute-balanced", feasible=True, step_s=0.2, samples_per_s=85.0),
    )
    return plan.model_copy(update={"alternatives": others})


def tight_plan() -> Plan:
    """Ranks 0 and 1 do not fit."""
    return make_plan(
        ["fast", "middle", "slow"],
        [[4, 4, 1], [4], [2]],
        [0.2, 0.5, 0.3],
        settings=PlanSettings(memory_fraction=0.01),
        memory_bytes=1_100_000_000,
        host_rate=1e8,
        offload=True,
    )


def profile_of(plan: Plan) -> Profile:
    return Profile(**{name: getattr(plan, name) for name in Basis.model_fields if name != "kind"})


def measured(report: Report) -> Report:
    steps = tuple(StepReport(step=number, loss=5.0 / number, tokens=100, step_s=0.1) for number in (1, 2, 3))
    update = {"source": "measured", "step_s": 1.25 * report.step_s, "steps": steps}
    ranks = tuple(rank.model_copy(update={"memory": None, "late_s": None}) for rank in report.ranks)
    return report.model_copy(update=update | {"ranks": ranks})


def printed(renderables: Sequence[RenderableType], width: int = 80) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width)
    for renderable in renderables:
        console.print(renderable)
    return out.getvalue()


def every_kind() -> list[Envelope]:
    plan, tight = small_plan(), tight_plan()
    report = simulate(plan).report
    return [
        plan.cluster,
        plan.model,
        profile_of(plan),
        plan,
        tight,
        report,
        simulate(tight).report,
        measured(report),
    ]


@pytest.mark.parametrize("artifact", every_kind(), ids=lambda each: each.kind)
def test_every_kind_fits_in_80_columns_and_nothing_is_cut(artifact: Envelope) -> None:
    text = printed(artifact_tables(artifact))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    wide = printed(artifact_tables(artifact), width=200)
    assert sorted(text.replace("─", "").split()) == sorted(wide.replace("─", "").split())


@pytest.mark.parametrize("artifact", every_kind(), ids=lambda each: each.kind)
def test_rows_are_plain_data(artifact: Envelope) -> None:
    parts = describe(artifact)
    again = json.loads(json.dumps(plain(parts), allow_nan=False))
    assert set(again) == {part.name for part in parts}


def test_a_plan_says_who_does_what_and_what_was_chosen() -> None:
    text = printed(artifact_tables(small_plan()))
    assert "0     fast    2x4, 1              9  20.0 %  recompute         165 ms" in text
    assert "2-3   slow    2                   2  20.0 %  -                 117 ms" in text
    assert "✓  cephalo           yes" in text
    assert "fsdp              no    400 ms" in text
    assert "fsdp: rank 2 needs too much" in text


def test_what_does_not_fit_is_red_and_marked() -> None:
    plain_text = printed(artifact_tables(tight_plan()))
    assert plain_text.count(" !") == 2
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="standard", no_color=False)
    for renderable in artifact_tables(tight_plan()):
        console.print(renderable)
    assert "\x1b[1;31m10.8 MiB !\x1b[0m" in out.getvalue()


def test_a_report_names_the_bottleneck_the_peak_and_the_loss() -> None:
    report = simulate(small_plan()).report
    text = printed(artifact_tables(report))
    assert "Compute of rank 0 (fast on node-a): 98.7 % of the step" in text
    assert "Fullest at forward-backward head." in text
    assert "5.0000 to 1.6667 in 3 steps" in printed(artifact_tables(measured(report)))


def test_the_steps_of_a_training_are_a_table_with_the_warm_up_named() -> None:
    steps = tuple(
        StepReport(step=number, loss=5.0 / number, grad_norm=0.5, tokens=100, step_s=0.15, predicted_step_s=0.1)
        for number in range(11, 211)
    )
    report = measured(simulate(small_plan()).report).model_copy(update={"steps": steps})
    text = printed(artifact_tables(report))
    assert max(len(line) for line in text.splitlines()) <= 80
    table = text.partition("Steps of the training\n")[2].splitlines()
    assert table[0].split() == ["step", "loss", "gradient", "time", "against", "plan"]
    assert table[2].split() == ["11", "0.4545", "0.5", "150", "ms", "-"]
    assert table[21].split() == ["210", "0.0238", "0.5", "150", "ms", "+50.0", "%"]
    assert table[22:24] == [
        "20 of 200 steps; --json prints all.",
        "Step 11 is the warm-up, whose time no plan means to predict.",
    ]
    alone = report.model_copy(update={"steps": steps[:1], "predicted_step_s": 0.1})
    assert "a warm-up step alone" in printed(artifact_tables(alone))
    assert "against the plan" not in printed(artifact_tables(alone)).partition("Steps")[0]


def test_a_bandwidth_that_no_transfer_could_show_is_not_shown_as_if_it_was() -> None:
    profile = profile_of(small_plan())
    assert profile.network != "ideal"

    def with_fits(*rates: float) -> str:
        fits = [CollectiveFit(latency_s=1e-3, bandwidth_bytes_per_s=rate, bandwidth_is_bound=True) for rate in rates]
        assert profile.network != "ideal"
        network = profile.network.model_copy(update=dict(zip(("all_gather", "reduce_scatter"), fits, strict=True)))
        return printed(artifact_tables(profile.model_copy(update={"network": network})))

    text = with_fits(2e9, 1e15)
    assert "all-gather      1.00 ms  at least 2.00 GB/s\n" in text
    assert "reduce-scatter  1.00 ms        not resolved\n" in text
    assert "too small for their size to tell" in " ".join(text.split())


def test_noise_is_one_sentence() -> None:
    profile = profile_of(small_plan())
    flags = ("noisy: forward spread 24% at microbatch 4", "noisy: backward spread 6% at microbatch 8")
    name, device = next(iter(profile.devices.items()))
    block = device.units["block"].model_copy(update={"flags": flags})
    device = device.model_copy(update={"units": device.units | {"block": block}})
    text = printed(artifact_tables(profile.model_copy(update={"devices": profile.devices | {name: device}})))
    assert f"2 curves are noisy: repeated runs spread by up to 24 % (forward of {name} block, 4 samples)." in " ".join(
        text.split()
    )


def test_how_a_plan_was_found_is_said_in_words() -> None:
    def found(status: str, strategy: str, *, bound_schedule: str | None = None, kept: int | None = None) -> str:
        plan = small_plan()
        proof = plan.solver.model_copy(update={"status": status, "gap": 0.1, "bound_schedule": bound_schedule})
        settings = plan.settings.model_copy(update={"keep_unsharded": kept})
        changes = {"solver": proof, "strategy": strategy, "settings": settings}
        text = printed(artifact_tables(plan.model_copy(update=changes)))
        return " ".join(text.partition("solution ")[2].partition("Who does")[0].split())

    assert found("optimal", "cephalo") == "optimal (no plan is faster under this profile)"
    assert found("time-limit", "cephalo") == "not proven best (at most 10.0 % from the best possible)"
    assert found("time-limit", "cephalo", bound_schedule="replicated").endswith(
        "from the best possible, which may be a plan with the whole state on every rank)"
    )
    assert "(no plan that keeps 2 blocks unsharded is faster" in found("optimal", "cephalo", kept=2)
    assert found("heuristic", "poplar").startswith("by a rule (poplar divides the work by a fixed rule")
    assert found("heuristic", "cephalo").startswith("by a rule (the plan of another strategy, which is faster")


def test_identical_ranks_share_a_row() -> None:
    plan = make_plan(["fast"] * 3 + ["slow"] * 61, [[4]] * 3 + [[1]] * 61)
    for artifact in (plan, simulate(plan).report):
        lines = printed(artifact_tables(artifact)).splitlines()
        assert len([line for line in lines if line.startswith(("0-2 ", "3-63 "))]) == 4


def test_predicted_against_measured() -> None:
    plan = small_plan()
    report = measured(simulate(plan).report)
    comparison = compare([plan, report], ["plans/laptop.json", "out/measured.json"])
    text = printed(comparison.tables())
    assert max(len(line) for line in text.splitlines()) <= 80
    steps = comparison.rows["steps"]
    assert isinstance(steps, list)
    assert [row["what"] for row in steps] == ["planned", "measured", "too large", "alternative"]
    assert steps[1]["step_ratio"] == pytest.approx(1.25)
    assert steps[2]["step_s"] == 0.4
    compute = comparison.rows["compute_s"]
    assert isinstance(compute, list)
    assert compute[0]["laptop"] == pytest.approx(compute[0]["measured"])
    assert {"wait_s", "memory_bytes"} < set(comparison.rows)
    assert "samples" not in comparison.rows


def test_numbers_stay_beside_names_that_go_on_and_on() -> None:
    plan = small_plan()
    report = simulate(plan).report
    ranks = tuple(rank.model_copy(update={"device": "d" * 150}) for rank in report.ranks)
    report = report.model_copy(update={"ranks": ranks})
    names = ["a-" * 40 + "plan.json", "b-" * 40 + "measured.json"]
    text = printed(compare([report, report], names).tables())
    short = printed(compare([report, report], ["a.json", "b.json"]).tables())
    assert max(len(line) for line in text.splitlines()) <= 80
    for words in ("peak memory", "samples/s"):
        line = next(line for line in text.splitlines() if line.startswith(words))
        wanted = next(line for line in short.splitlines() if line.startswith(words))
        assert line.replace("d", "").split() == wanted.replace("d", "").split()


@pytest.mark.parametrize("names", [["a-" * 25 + "plan.json", "b.json"], [f"run{number}.json" for number in range(9)]])
def test_however_many_files_there_are_and_however_long_their_names_every_number_is_there(names: list[str]) -> None:
    comparison = compare([small_plan()] * len(names), names)
    text = printed(comparison.tables())
    assert max(len(line) for line in text.splitlines()) <= 80
    overview, *by_rank = text.split("Side by side")
    steps = comparison.rows["steps"]
    assert isinstance(steps, list)
    (fullest,) = {row["peak_memory_fraction"] for row in steps if row["what"] == "planned"}
    assert overview.count(f" {shown(fullest, 'percent')}\n") == overview.count("planned") == len(names)
    assert overview.count("compute-balanced") == len(names)
    for name in names if len(names) > 2 else ():
        assert sum(f" {name.removesuffix('.json')} " in part for part in by_rank) == 1
    assert all("limit" in part for part in by_rank)


HEADS = {
    *("file", "what", "strategy", "step", "time", "samples/s", "fullest"),
    *("rank", "device", "unit", "size", "collective", "change", "limit"),
}
LONG = [f"/data/experiments/2024-11/{kind}-a-name-that-goes-on-and-on.json" for kind in ("first", "second", "third")]
CALLED = {
    "a folder apart": ["plan.json", "runs/quickstart/plan.json"],
    "twice the same": ["plans/laptop-mixed.json"] * 2,
    "long paths": LONG,
    "the same long names in folders": [
        "runs/a-folder-of-some-length/measured.json",
        "runs/another-folder/measured.json",
    ],
    "differing in the middle": [f"{'same-' * 8}{number}{'-end' * 8}.json" for number in (1, 2)],
    "five": [f"runs/experiment-{number}/simulated.json" for number in range(5)],
    "nine times": ["a-long-name-of-a-plan.json"] * 9,
    "usual": ["plan.json", "simulated.json", "measured.json"],
}


@pytest.mark.parametrize("names", CALLED.values(), ids=CALLED)
@pytest.mark.parametrize("kind", ["plan", "report", "profile"])
def test_names_of_files_never_break_a_comparison(kind: str, names: list[str]) -> None:
    plan = small_plan()
    artifact = {"plan": plan, "report": measured(simulate(plan).report), "profile": profile_of(plan)}[kind]
    text = printed(compare([artifact] * len(names), names).tables())
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.strip() in ("d", "n") for line in lines)
    heads = [head for head, line in itertools.pairwise(lines) if line and not line.strip("─")]
    found = {word for head in heads for word in re.split(r"  +", head.strip())} - HEADS
    assert len(found) == len(names)
    for label in found:
        assert len([line for line in lines if line.startswith(f"{label}: ")]) == ("…" in label)


def test_labels_are_the_parts_that_differ() -> None:
    assert labels(["plan.json", "runs/quickstart/plan.json"], 16) == ["plan", "quickstart/plan"]
    assert labels(["plan.json", "runs/quickstart/plan.json"], 12) == ["plan", "quick…t/plan"]
    assert labels(["a/x/plan.json", "b/x/plan.json"], 16) == ["a/x/plan", "b/x/plan"]
    assert labels([f"{'same-' * 5}{end}" for end in ("one-tail", "two-tail")], 10) == ["…one-tail", "…two-tail"]
    assert labels([f"{'same-' * 5}{number}{'-end' * 5}" for number in (1, 2)], 10) == ["sam…-end#1", "sam…-end#2"]
    assert labels(["laptop-mixed#1", "laptop-mixed#2"], 8) == ["lap…ed#1", "lap…ed#2"]
    assert legend(["laptop-mixed#1", "plan"], ["lap…ed#1", "plan"]) == ["lap…ed#1: laptop-mixed#1"]


def test_plan_against_plan_shows_what_was_decided_differently() -> None:
    one, other = small_plan(), make_plan(["fast", "middle", "slow", "slow"], [[4], [4], [4], [5]])
    rows = compare([one, other], ["a.json", "b.json"]).rows
    samples = rows["samples"]
    assert isinstance(samples, list)
    assert [(row["a"], row["b"]) for row in samples] == [(9, 4), (4, 4), (2, 4), (2, 5)]
    assert samples[2]["change"] == 1.0
    assert "state_share" in rows


def test_many_reports_at_once() -> None:
    plan = small_plan()
    report = simulate(plan).report
    names = ["plan.json", "simulated.json", "measured.json", "fsdp2.json"]
    sides = [plan, report, measured(report), measured(report).model_copy(update={"engine": "fsdp2"})]
    text = printed(compare(sides, names).tables())
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "measured, fsdp2" in text
    assert "measured is 1.00 times as fast as fsdp2." in text


def test_different_jobs_are_compared_with_a_warning() -> None:
    one, other = make_plan(["fast"], [[4]]), make_plan(["fast", "fast"], [[4], [4]])
    comparison = compare([one, other], ["a.json", "b.json"])
    assert "These are different jobs" in printed(comparison.tables())
    assert list(comparison.rows) == ["steps"]


def test_profile_against_profile() -> None:
    profile = profile_of(small_plan())
    rows = compare([profile, profile], ["a.json", "b.json"]).rows
    forward = rows["forward_s"]
    assert isinstance(forward, list)
    assert len(forward) == 9
    assert {row["change"] for row in forward} == {0.0}
    assert forward[1] == {"device": "fast", "unit": "block", "microbatch": 8, "a": 8.1e-3, "b": 8.1e-3, "change": 0.0}
    bandwidth = rows["network_bandwidth"]
    assert isinstance(bandwidth, list)
    assert bandwidth[0]["a"] == 1e9


def test_kinds_that_cannot_be_compared_are_refused() -> None:
    plan = small_plan()
    with pytest.raises(UsageError) as refusal:
        compare([plan, plan.cluster], ["plan.json", "cluster.json"])
    assert str(refusal.value) == (
        "there is nothing to compare between these kinds: cluster, plan "
        "(compare plans and reports with each other, or profiles with profiles)"
    )


def test_files_of_the_same_name_keep_their_folders() -> None:
    plan = small_plan()
    comparison = compare([plan, plan], ["a/plan.json", "b/plan.json"])
    steps = comparison.rows["steps"]
    assert isinstance(steps, list)
    assert [row["file"] for row in steps[:2]] == ["a/plan.json", "b/plan.json"]


@pytest.mark.parametrize(("ranks", "words"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([5, 0, 1, 3, 4], "0-1, 3-5")])
def test_rank_ranges(ranks: list[int], words: str) -> None:
    assert rank_ranges(ranks) == words


@pytest.mark.parametrize(("sizes", "words"), [([], "none"), ([4], "4"), ([3, 3, 1], "2x3, 1"), ([2, 2, 2], "3x2")])
def test_microbatches(sizes: list[int], words: str) -> None:
    assert microbatches(sizes) == words


def test_numbers_are_written_with_their_units() -> None:
    assert shown(1.5e9, "link") == "1.50 GB/s"
    assert shown(312e12, "flops") == "312 TFLOP/s"
    assert shown(-0.031, "change") == "-3.1 %"
    assert shown(0.031, "change") == "+3.1 %"
    assert shown(None, "bytes") == "-"
    assert shown(True, "text") == "yes"
    assert shown([0, 1, 4], "ranks") == "0-1, 4"


def test_importing_tables_loads_nothing_that_draws() -> None:
    heavy = "{'matplotlib', 'pandas', 'rich', 'torch', 'scipy', 'numpy'}"
    code = f"import sys, cephalo_cli.reporting, cephalo_cli.simulator; print(sorted({heavy} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == "[]"


def test_a_model_says_what_few_models_have() -> None:
    stretch = RopeScaling(type="linear", factor=4.0)
    model = small_plan().model.model_copy(
        update={"family": "llama", "rope_scaling": stretch, "sliding_window": 512, "frozen": ("block.0.*",)}
    )
    text = printed(artifact_tables(model))
    for words in ("stretched positions  linear, 4 times", "sliding window       512", "not trained          block.0.*"):
        assert words in text


def test_a_measured_run_is_as_full_as_the_limit_of_its_plan_says() -> None:
    plan = small_plan()
    report = measured(simulate(plan).report)
    steps = compare([report, plan], ["measured.json", "plan.json"]).rows["steps"]
    assert isinstance(steps, list)
    most = max(
        mine.peak_memory_bytes / rank.memory.limit_bytes for mine, rank in zip(report.ranks, plan.ranks, strict=True)
    )
    assert steps[0]["peak_memory_fraction"] == pytest.approx(most)
    other = report.model_copy(update={"cluster_name": "another"})
    steps = compare([other, plan], ["measured.json", "plan.json"]).rows["steps"]
    assert isinstance(steps, list)
    assert steps[0]["peak_memory_fraction"] is None


@pytest.mark.parametrize("asked", [{"NO_COLOR": "1"}, {}], ids=["NO_COLOR", "colours"])
def test_no_colours_on_a_terminal_that_wants_none(asked: dict[str, str], tmp_path: Path) -> None:
    """Bold and dim are no colours, see no-color.org; foreground is 30 to 38 and 90 to 97, background ten more."""
    write(tight_plan(), tmp_path / "tight.json")
    terminal, end = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    command = [sys.executable, "-m", "cephalo_cli", "show", str(tmp_path / "tight.json")]
    with subprocess.Popen(command, stdout=end, env=kept | {"TERM": "xterm-256color"} | asked) as process:
        os.close(end)
        text = b""
        with contextlib.suppress(OSError):  # how Linux says that nobody has the other end open any more
            while piece := os.read(terminal, 65536):
                text += piece
    os.close(terminal)
    assert process.returncode == 0
    codes = {int(code) for codes in re.findall(rb"\x1b\[([\d;]*)m", text) for code in codes.split(b";") if code}
    assert 1 in codes
    assert b" !" in text
    assert any(30 <= code <= 49 or 90 <= code <= 107 for code in codes) != bool(asked)
