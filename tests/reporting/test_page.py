"""The page: whole in one file, the same for the same artifacts, and well in a real browser, wide and narrow."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cephalo_cli.artifacts import Envelope, Plan, Report, store
from cephalo_cli.artifacts.base import InputFile
from cephalo_cli.artifacts.plan import Alternative, SolverProof
from cephalo_cli.artifacts.report import StepReport
from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.reporting.page import Shown, write_page
from cephalo_cli.simulator import simulate
from tests.cli.commands import cephalo
from tests.reporting.test_tables import profile_of, small_plan, tight_plan

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
VOID = frozenset({"meta", "link", "br", "path", "use", "image", "rect", "circle", "line", "stop"})


def shown(artifact: Envelope, name: str) -> Shown:
    timeline = simulate(artifact).timeline if isinstance(artifact, Plan) else None
    return Shown(artifact=artifact, source=InputFile(path=name, sha256="ab" * 32), timeline=timeline)


def measured(plan: Plan) -> Report:
    steps = tuple(
        StepReport(step=number, loss=5.0 / number, grad_norm=1.0, tokens=100, step_s=0.1) for number in range(1, 21)
    )
    report = simulate(plan).report
    return report.model_copy(update={"source": "measured", "step_s": 1.2 * report.step_s, "steps": steps})


def page_of(tmp_path: Path, *artifacts: tuple[Envelope, str]) -> str:
    path = tmp_path / "page.html"
    write_page([shown(artifact, name) for artifact, name in artifacts], path, force=True)
    return path.read_text(encoding="utf-8")


class Balanced(HTMLParser):
    """Raises where a tag is closed that was not opened last, and collects what links and names things."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name in ("src", "href", "xlink:href", "srcset"):
                self.links.append(str(value))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_one_file_that_asks_for_no_other(tmp_path: Path) -> None:
    plan = small_plan()
    text = page_of(tmp_path, (plan, "plan.json"), (simulate(plan).report, "simulated.json"), (measured(plan), "m.json"))
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert len(set(parser.ids)) == len(parser.ids)
    assert all(link.startswith("#") and link[1:] in parser.ids for link in parser.links)
    assert not re.search(r"url\((?!#)|@import|<script|https?://(?!www\.w3\.org)", text)


def test_the_sections_and_what_they_hold(tmp_path: Path) -> None:
    plan = small_plan()
    text = page_of(tmp_path, (plan, "plan.json"), (measured(plan), "measured.json"))
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles == [
        "Predicted against measured",
        "Plan",
        "Memory",
        "Proof",
        "Alternatives",
        "The step",
        "Measured",
        "Profile",
        "Inputs",
    ]
    assert text.count("<svg") == 6
    for words in (
        "ab" * 32,
        "measured.json",
        "gap 100.0 %",
        "counts compute alone",
        "Loss",
        "5.0000",
        "rank 2 needs too much",
        "+20.0 %",
    ):
        assert words in text


def test_the_same_artifacts_give_the_same_page(tmp_path: Path) -> None:
    plan = small_plan()
    assert page_of(tmp_path, (plan, "plan.json")) == page_of(tmp_path, (plan, "plan.json"))


def test_proof_in_words(tmp_path: Path) -> None:
    plan = small_plan()
    optimal = plan.model_copy(
        update={
            "solver": SolverProof(status="optimal", lower_bound_s=plan.expected.step_s, gap=0.0),
            "strategy": "cephalo",
        }
    )
    assert "optimal: no plan is faster under this profile" in page_of(tmp_path, (optimal, "plan.json"))
    limited = plan.model_copy(
        update={"solver": SolverProof(status="time-limit", lower_bound_s=0.9 * plan.expected.step_s, gap=0.1)}
    )
    assert "at most 10.0 % from the best possible" in page_of(tmp_path, (limited, "plan.json"))


def test_what_does_not_fit_is_marked_for_eyes_without_red(tmp_path: Path) -> None:
    text = page_of(tmp_path, (tight_plan(), "plan.json"))
    assert text.count('<td class="number bad">') == 2
    assert text.count(" !</td>") == 2
    assert '<div class="tile bad">' in text


def test_names_are_never_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'&"
    plan = small_plan()
    plan = plan.model_copy(
        update={
            "cluster": plan.cluster.model_copy(update={"name": evil}),
            "alternatives": (Alternative(strategy="fsdp", feasible=False, reason=evil),),
        }
    )
    text = page_of(tmp_path, (plan, f"{evil}.json"))
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_plans_side_by_side_and_profiles_too(tmp_path: Path) -> None:
    plan = small_plan()
    two = page_of(tmp_path, (plan, "old.json"), (plan, "new.json"))
    assert "<h2>Plan (old)</h2>" in two
    assert "<h2>Side by side</h2>" in two
    profile = profile_of(plan)
    assert "Forward of one microbatch" in page_of(tmp_path, (profile, "a.json"), (profile, "b.json"))
    assert "<details open>" in page_of(tmp_path, (profile, "a.json"))


def test_what_has_no_page(tmp_path: Path) -> None:
    plan = small_plan()
    with pytest.raises(
        UsageError, match=r"--html: there is no page about a cluster \(give a plan, reports or a profile\)"
    ):
        page_of(tmp_path, (plan.cluster, "cluster.json"))
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(ArtifactError, match="exists already"):
        write_page([shown(plan, "plan.json")], tmp_path / "mine.html")


def test_through_the_command_line(tmp_path: Path) -> None:
    ran = cephalo("show", "plans/laptop-mixed.json", "--html", f"{tmp_path}/page.html")
    assert (ran.code, ran.err) == (0, f"wrote the page {tmp_path}/page.html\n")
    digest = store.input_file("plans/laptop-mixed.json").sha256
    assert digest in (tmp_path / "page.html").read_text(encoding="utf-8")


HARNESS = """<!DOCTYPE html><pre id="found"></pre>
<iframe src="page.html" style="width:1280px;height:900px"></iframe>
<iframe src="page.html" style="width:400px;height:900px"></iframe>
<script>
onload = () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const inside = frame.contentDocument, root = inside.documentElement;
    const heights = [...inside.querySelectorAll("svg text")].map(t => t.getBoundingClientRect().height);
    const sizes = [...inside.querySelectorAll("p, td, dd, h1, h2")].map(e => parseFloat(getComputedStyle(e).fontSize));
    return {
      scroll: root.scrollWidth, width: frame.clientWidth, sections: inside.querySelectorAll("section").length,
      visible: [...inside.querySelectorAll("section")].every(s => s.getBoundingClientRect().height > 40),
      smallest_in_pictures: Math.min(...heights), smallest: Math.min(...sizes)
    };
  });
  document.getElementById("found").textContent = JSON.stringify(found);
};
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)")
def test_a_real_browser_shows_it_wide_and_narrow(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    plan = small_plan()
    page_of(tmp_path, (plan, "a-rather-long-name-of-a-plan.json"), (measured(plan), "measured.json"))
    (tmp_path / "harness.html").write_text(HARNESS)
    done = subprocess.run(
        [
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={tmp_path / 'profile'}",
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
            "--virtual-time-budget=10000",
            "--dump-dom",
            (tmp_path / "harness.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout)
    assert match is not None
    wide, narrow = json.loads(match[1])
    for found, width in ((wide, 1280), (narrow, 400)):
        assert found["width"] == width
        assert found["scroll"] <= width
        assert found["sections"] == 9
        assert found["visible"]
        assert found["smallest"] >= 13
        assert found["smallest_in_pictures"] >= 9
