"""A plan, and what became of it, as one web page that needs nothing else: for a colleague or a pull request."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from cephalo_cli.artifacts import Envelope, Plan, Profile, Report, store
from cephalo_cli.artifacts.base import InputFile
from cephalo_cli.artifacts.profile import Basis
from cephalo_cli.errors import UsageError
from cephalo_cli.quantities import format_change, format_count, format_percent, format_seconds
from cephalo_cli.reporting.chart_plan import draw_plan, draw_strategies
from cephalo_cli.reporting.chart_profile import draw_profile
from cephalo_cli.reporting.chart_steps import draw_report, draw_sides
from cephalo_cli.reporting.compare import compare
from cephalo_cli.reporting.compare_steps import side
from cephalo_cli.reporting.describe import describe
from cephalo_cli.reporting.describe_plan import proof, with_chosen
from cephalo_cli.reporting.gantt import draw_step
from cephalo_cli.reporting.labels import IN_A_PICTURE, labels, short_names
from cephalo_cli.reporting.markup import escaped, figure_of, part_of
from cephalo_cli.reporting.sheet import Column, Fact, Facts, Sheet
from cephalo_cli.timeline import Timeline

__all__ = ["Shown", "write_page"]

PROOF_NOTES: Mapping[str, str] = {
    "optimal": "Every other choice of microbatch sizes, state shares, recompute and offload takes at least as long "
    "under the profile's numbers; the lower bound equals the step.",
    "time-limit": "The search was stopped by its time limit, or without one after some effort: this is the best plan "
    "found by then, and no plan is "
    "faster than the lower bound.",
    "heuristic": "This strategy follows a rule and does not search, so its bound says nothing about other plans.",
}

TAKEN_OVER = (
    "Another strategy's plan is faster than all that were searched; no plan is faster than the lower bound, which "
    "counts compute alone."
)
"""The note of a cephalo plan that is another strategy's."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """An artifact of the page."""

    artifact: Envelope
    source: InputFile
    """Its file and digest."""
    timeline: Timeline | None = None
    """A plan's step, played out."""


@dataclass
class _Page:
    """Sections in their order, and how many figures they have."""

    sections: list[tuple[str, str]] = field(default_factory=list)
    num_figures: int = 0

    def add(self, title: str, *pieces: str) -> None:
        self.sections.append((title, "\n".join(pieces)))

    def figure(self, drawn: object, caption: str) -> str:
        self.num_figures += 1
        return figure_of(drawn, caption, number=self.num_figures)  # type: ignore[arg-type]  # a matplotlib figure


def write_page(shown: Sequence[Shown], path: str | Path, *, force: bool = False) -> None:
    """Write a page about a plan and its reports, or about several plans and reports, or about a profile.

    The same artifacts give the same bytes.

    Raises:
        UsageError: A cluster or a model alone, or kinds that have nothing to compare.
        ArtifactError: The file exists and ``force`` is false, or it cannot be written.
    """
    store.check_writable(path, force=force)
    for each in shown:
        if not isinstance(each.artifact, Plan | Report | Profile):
            raise UsageError(
                f"there is no page about a {each.artifact.kind}",
                where="--html",
                hint="give a plan, reports or a profile",
            )
    names = short_names([each.source.path for each in shown])
    page = _Page()
    if len(shown) > 1:
        _comparison(page, [each.artifact for each in shown], names)
    for each, name in zip(shown, names, strict=True):
        alike = [other for other in shown if _called(other.artifact) == _called(each.artifact)]
        label = f" ({name})" if len(alike) > 1 else ""
        if isinstance(each.artifact, Plan):
            _plan(page, each.artifact, each.timeline, label)
        elif isinstance(each.artifact, Report):
            _report(page, each.artifact, label)
    bases = [each.artifact for each in shown if isinstance(each.artifact, Basis)]
    if bases:
        _basis(page, bases[0])
    _inputs(page, shown)
    store.write_text(_document(page, shown, names), path, force=force)


def _called(artifact: Envelope) -> str:
    """What a section about an artifact is called."""
    return artifact.source if isinstance(artifact, Report) else artifact.kind


# Sections -------------------------------------------------------------------------------------------------------------


def _comparison(page: _Page, artifacts: Sequence[Envelope], names: Sequence[str]) -> None:
    compared = compare(artifacts, names)
    first, *rest = [part_of(part) for part in compared.parts]
    pieces = [first, f'<div class="side-by-side">{"".join(f"<div>{piece}</div>" for piece in rest)}</div>']
    sides = [
        side(artifact, label)
        for artifact, label in zip(artifacts, labels(names, IN_A_PICTURE), strict=True)
        if isinstance(artifact, Plan | Report)
    ]
    if sides:
        pieces.insert(0, page.figure(draw_sides(sides), "One step, and compute and peak memory of every rank"))
    is_against = any(isinstance(artifact, Plan) for artifact in artifacts) and any(
        isinstance(artifact, Report) and artifact.source == "measured" for artifact in artifacts
    )
    page.add("Predicted against measured" if is_against else "Side by side", *pieces)


def _plan(page: _Page, plan: Plan, timeline: Timeline | None, label: str) -> None:
    facts, work, memory, *alternatives = map(part_of, describe(plan))
    page.add(f"Plan{label}", facts, work, page.figure(draw_plan(plan, strategies=False), "Work, state and memory"))
    page.add(f"Memory{label}", memory)
    page.add(f"Proof{label}", _proof(plan))
    if alternatives:
        page.add(
            f"Alternatives{label}",
            page.figure(draw_strategies(plan), "Throughput of every strategy; hatched: does not fit"),
            *alternatives,
        )
    if timeline is not None:
        caption = "One step, simulated from the plan: what every rank does when, and how full it is"
        page.add(f"The step{label}", page.figure(draw_step(timeline), caption))


def _proof(plan: Plan) -> str:
    solver = plan.solver
    facts = Facts(
        name="proof",
        title=f"{solver.status}: {proof(plan)}",
        facts=(
            Fact(key="step_s", label="expected step", value=plan.expected.step_s, kind="seconds"),
            Fact(key="lower_bound_s", label="lower bound", value=solver.lower_bound_s, kind="seconds"),
            Fact(key="gap", label="gap", value=solver.gap, kind="percent"),
            Fact(
                key="memory_fraction",
                label="may use",
                value=plan.settings.memory_fraction,
                kind="percent",
                more="of memory",
            ),
            Fact(key="recompute", label="recompute", value=plan.settings.recompute),
            Fact(key="offload", label="offload", value=plan.settings.offload),
        ),
    )
    note = TAKEN_OVER if plan.strategy == "cephalo" and solver.status == "heuristic" else PROOF_NOTES[solver.status]
    return f'{part_of(facts)}<p class="note">{escaped(note)}</p>'


def _report(page: _Page, report: Report, label: str) -> None:
    caption = "Where the step of every rank goes"
    if any(step.loss is not None for step in report.steps):
        caption += "; below, the loss"
    pieces = [part_of(part) for part in describe(report)]
    page.add(f"{report.source.capitalize()}{label}", *pieces, page.figure(draw_report(report), caption))


def _basis(page: _Page, basis: Basis) -> None:
    """The profile that everything rests on, folded away below a plan."""
    profile = Profile(**{name: getattr(basis, name) for name in Basis.model_fields if name not in _ENVELOPE})
    curves = page.figure(draw_profile(profile), "Seconds and working memory of one microbatch")
    pieces = [part_of(part) for part in (*describe(profile)[1:], *describe(basis.cluster))]
    is_open = " open" if isinstance(basis, Profile) else ""
    page.add("Profile", curves, f"<details{is_open}><summary>All numbers</summary>{''.join(pieces)}</details>")


_ENVELOPE = Envelope.model_fields.keys()


def _inputs(page: _Page, shown: Sequence[Shown]) -> None:
    rows = [
        {"role": role, "kind": kind, "path": source.path, "sha256": source.sha256}
        for each in shown
        for role, kind, source in _sources(each)
    ]
    table = Sheet(
        name="inputs",
        title="Files and digests",
        columns=(
            Column(key="role", title="role"),
            Column(key="kind", title="kind"),
            Column(key="path", title="file"),
            Column(key="sha256", title="SHA-256"),
        ),
        rows=tuple(rows),
    )
    page.add("Inputs", part_of(table))


def _sources(each: Shown) -> Iterator[tuple[str, str, InputFile]]:
    yield "shown", each.artifact.kind, each.source
    for source in each.artifact.inputs:
        yield f"went into the {each.artifact.kind}", "", source


# The document ---------------------------------------------------------------------------------------------------------


def _document(page: _Page, shown: Sequence[Shown], names: Sequence[str]) -> str:
    first = shown[0].artifact
    title = describe(first)[0].title
    style = resources.files("cephalo_cli.reporting").joinpath("page.css").read_text(encoding="utf-8")
    links = "".join(f'<a href="#s{number}">{escaped(name)}</a>' for number, (name, _) in enumerate(page.sections))
    sections = "\n".join(
        f'<section id="s{number}"><h2>{escaped(name)}</h2>\n{body}</section>'
        for number, (name, body) in enumerate(page.sections)
    )
    makers = ", ".join(dict.fromkeys(each.artifact.created_by for each in shown if each.artifact.created_by))
    subtitle = ", ".join(names) + (f", made by {makers}" if makers else "")
    tiles = "".join(
        f'<div class="tile {mood}"><b>{escaped(value)}</b><span>{escaped(words)}</span></div>'
        for value, words, mood in _tiles([each.artifact for each in shown])
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{escaped(title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{escaped(title)}</h1>
<p>{escaped(subtitle)}</p>
<nav aria-label="Sections">{links}</nav>
<div class="tiles">{tiles}</div>
</header>
<main>
{sections}
</main>
<footer>Red and ! mark what does not fit; a tick marks what was chosen. Sizes are binary (GiB), rates decimal.</footer>
</body>
</html>
"""


def _tiles(artifacts: Sequence[Envelope]) -> Iterator[tuple[str, str, str]]:
    """Number, words and mood of what matters most."""
    for artifact in artifacts[:1]:
        if isinstance(artifact, Plan):
            yield from _plan_tiles(artifact)
        elif isinstance(artifact, Report):
            yield format_seconds(artifact.step_s), f"{artifact.source} step", ""
            yield format_count(artifact.tokens_per_s), "tokens a second", ""
    planned = next((artifact for artifact in artifacts if isinstance(artifact, Plan)), None)
    measured = next((each for each in artifacts if isinstance(each, Report) and each.source == "measured"), None)
    if planned is not None and measured is not None and planned.expected.step_s:
        off = measured.step_s / planned.expected.step_s - 1
        yield format_seconds(measured.step_s), f"measured step, {format_change(off)} against the plan", ""
    if measured is not None:
        losses = [step.loss for step in measured.steps if step.loss is not None]
        if losses:
            yield f"{losses[-1]:.4f}", f"loss after {len(measured.steps)} steps, from {losses[0]:.4f}", ""


def _plan_tiles(plan: Plan) -> Iterator[tuple[str, str, str]]:
    yield format_seconds(plan.expected.step_s), f"expected step of {plan.global_batch_size} samples", ""
    yield format_count(plan.expected.tokens_per_s), "tokens a second", ""
    rivals = [other for other in with_chosen(plan) if other.strategy != plan.strategy and other.samples_per_s]
    best = max(
        (other for other in rivals if other.feasible), key=lambda other: other.samples_per_s or 0.0, default=None
    )
    if best is not None and best.samples_per_s:
        times = plan.expected.samples_per_s / best.samples_per_s
        yield (
            f"{times:.2f}x",
            f"as fast as {best.strategy}, the best other strategy that fits",
            "good" if times > 1 else "",
        )
    full = [rank.memory.total_bytes / rank.memory.limit_bytes for rank in plan.ranks if rank.memory.limit_bytes]
    if full:
        yield format_percent(max(full)), "of its limit on the fullest rank", "bad" if max(full) > 1 else ""
    gap = "proven" if plan.solver.status == "optimal" else f"gap {format_percent(plan.solver.gap)}"
    by_rule = plan.solver.status == "heuristic" and plan.strategy != "cephalo"
    yield plan.solver.status, "a rule, not a search" if by_rule else gap, ""
