"""Pictures: every kind becomes a PNG and an SVG whose text names what it shows. That they look well is for eyes."""

import itertools
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from cephalo_cli.artifacts import Envelope, Plan, Profile, Report
from cephalo_cli.artifacts.plan import Alternative, PlanSettings
from cephalo_cli.artifacts.profile import Basis
from cephalo_cli.artifacts.report import StepReport
from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.reporting import plot_artifact, plot_step
from cephalo_cli.reporting.canvas import COLOURS, SERIES, TERMS
from cephalo_cli.simulator import simulate
from cephalo_cli.timeline import Timeline
from tests.simulator.plans import make_plan


def plan() -> Plan:
    made = make_plan(["fast", "slow", "slow"], [[3, 1], [1], [1]], host_rate=1e8, offload=[True, False, False])
    others = (Alternative(strategy="fsdp", feasible=False, step_s=0.2), Alternative(strategy="whale", feasible=True))
    return made.model_copy(update={"alternatives": others})


def full_plan() -> Plan:
    return make_plan(["fast"], [[8]], settings=PlanSettings(memory_fraction=0.005))


def profile() -> Profile:
    return Profile(**{name: getattr(plan(), name) for name in Basis.model_fields if name != "kind"})


def report() -> Report:
    return simulate(plan()).report


def measured() -> Report:
    steps = tuple(StepReport(step=number, loss=5.0 / number, tokens=1, step_s=0.1) for number in range(1, 9))
    return report().model_copy(update={"source": "measured", "steps": steps})


def words(path: Path) -> str:
    return " ".join("".join(element.itertext()) for element in ET.parse(path).iter() if element.tag.endswith("text"))  # noqa: S314  (our own file)


PICTURES: list[tuple[Callable[[], list[Envelope]], list[str]]] = [
    (lambda: [plan()], ["samples a step", "share of the state (%)", "memory (MiB)", "0 · fast", "1-2 · slow", "limit"]),
    (lambda: [full_plan()], ["!", "working"]),
    (
        lambda: [profile()],
        ["embedding", "block", "head", "fast", "forward", "backward", "microbatch size (samples)", "(ms)"],
    ),
    (lambda: [report()], ["one step (ms)", "wait for the network", "wait for late ranks", "optimizer", "1-2 · slow"]),
    (lambda: [measured()], ["loss (nats a token)", "Loss"]),
    (
        lambda: [plan(), report(), measured()],
        ["cephalo, planned", "cephalo, measured", "fsdp, planned", "does not fit", "compute in a step (ms)"],
    ),
]


@pytest.mark.parametrize(("artifacts", "expected"), PICTURES)
def test_every_picture_names_what_it_shows(
    artifacts: Callable[[], list[Envelope]], expected: list[str], tmp_path: Path
) -> None:
    plot_artifact(artifacts(), tmp_path / "picture.svg")
    text = words(tmp_path / "picture.svg")
    assert [word for word in expected if word not in text] == []
    plot_artifact(artifacts(), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_step_shows_lanes_and_memory(tmp_path: Path) -> None:
    plot_step(simulate(plan()).timeline, tmp_path / "step.svg")
    text = words(tmp_path / "step.svg")
    for word in (
        "network",
        "0 · fast",
        "1-2 · slow",
        "recompute",
        "copy in",
        "limit",
        "memory (share of limit)",
        "(ms)",
    ):
        assert word in text


def test_64_ranks_share_rows_where_they_are_alike(tmp_path: Path) -> None:
    many = make_plan(["fast"] * 32 + ["slow"] * 32, [[4]] * 32 + [[1]] * 32)
    plot_step(simulate(many).timeline, tmp_path / "alike.svg")
    assert "0-31 · fast" in words(tmp_path / "alike.svg")
    plot_step(simulate(many, jitter_sigma=0.1).timeline, tmp_path / "noisy.svg")
    text = words(tmp_path / "noisy.svg")
    assert "63 · slow" in text
    assert "fullest: " in text


def test_a_step_without_memory_or_duration_is_drawn_too(tmp_path: Path) -> None:
    timeline = simulate(plan()).timeline
    bare = Timeline(rank_names=timeline.rank_names, duration_s=timeline.duration_s, events=timeline.events)
    plot_step(bare, tmp_path / "bare.svg")
    assert "memory" not in words(tmp_path / "bare.svg")
    plot_step(Timeline(rank_names=("rank 0 · cpu · a",), duration_s=0.0, events=()), tmp_path / "nothing.png")


def test_the_same_picture_has_the_same_bytes(tmp_path: Path) -> None:
    for suffix in ("png", "svg"):
        for name in ("a", "b"):
            plot_artifact([plan()], tmp_path / f"{name}.{suffix}")
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_what_cannot_be_drawn_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"neither \.png nor \.svg \(give the picture one of these endings\)"):
        plot_artifact([plan()], tmp_path / "picture.jpg")
    with pytest.raises(UsageError, match="there is no picture of a cluster"):
        plot_artifact([plan().cluster], tmp_path / "picture.png")
    with pytest.raises(UsageError, match="only plans and reports are drawn together"):
        plot_artifact([plan(), profile()], tmp_path / "picture.png")
    (tmp_path / "mine.png").write_text("mine")
    with pytest.raises(ArtifactError, match="exists already"):
        plot_artifact([plan()], tmp_path / "mine.png")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.png"]


def luminance(colour: str) -> float:
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("palette", [list(COLOURS.values()), list(TERMS.values()), list(SERIES)])
def test_no_two_colours_are_the_same(palette: list[str]) -> None:
    assert len(set(palette)) == len(palette)


def test_neighbours_in_a_bar_differ_in_grey_as_well() -> None:
    """Black and white print: forward, recompute and backward follow each other; so do the terms of memory."""
    for bars in (["forward", "backward"], ["recompute", "backward"], ["gather", "backward"]):
        first, second = (luminance(COLOURS[bar]) for bar in bars)
        assert abs(first - second) > 0.15
    terms = [luminance(colour) for colour in TERMS.values()]
    assert all(abs(one - other) > 0.08 for one, other in itertools.pairwise(terms))


def test_a_name_that_no_font_has_is_drawn_without_a_warning(tmp_path: Path) -> None:
    drawn = plan()
    cluster = drawn.cluster.model_copy(update={"name": "漢字" * 40})
    plot_artifact([drawn.model_copy(update={"cluster": cluster})], str(tmp_path / "a.png"), names=["a"], force=False)
    assert (tmp_path / "a.png").stat().st_size > 0


def test_strategies_of_two_plans_are_told_apart_and_long_names_are_cut(tmp_path: Path) -> None:
    names = ["plan.json", "runs/a-folder-with-a-very-long-name/plan.json"]
    plot_artifact([plan(), plan()], tmp_path / "two.svg", names=names)
    text = words(tmp_path / "two.svg")
    for label in (
        "plan (planned)",
        "a-folder-wi…ng-name/plan (planned)",
        "fsdp, plan ",
        "fsdp, a-folder-wi…ng-name/plan",
    ):
        assert label in text
