"""What runs of a race were, and the table that compares them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from cephalo_cli.quantities import format_bytes, format_seconds

__all__ = ["Run", "table"]

PEERS = ("fsdp2", "ddp", "plain", "two loops at once")
"""Contestants that others are compared with."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run was."""

    name: str
    round: int
    num_samples: int
    """Samples of a step."""
    steps_s: list[float] = field(default_factory=list)
    """Steps after the first."""
    busy: list[float] = field(default_factory=list)
    """Part of the step that each rank computed."""
    peaks_bytes: list[int] = field(default_factory=list)
    planned_bytes: list[int] = field(default_factory=list)
    limits_bytes: list[int] = field(default_factory=list)
    predicted_s: float | None = None
    others_cpus: float = 0.0
    """CPUs that other programs kept busy meanwhile: a race with much of that says nothing."""
    error: str | None = None
    """Why it has no steps."""

    @property
    def samples_per_s(self) -> float:
        """Throughput of the median step."""
        return self.num_samples / median(self.steps_s) if self.steps_s else 0.0


def table(runs: Sequence[Run]) -> Iterator[str]:
    """Lines that compare all runs."""
    names = list(dict.fromkeys(entry.name for entry in runs))
    of = {name: [entry for entry in runs if entry.name == name] for name in names}
    singles = sum(_typical(of[name]) * _copies(name, of) for name in names if name.startswith("single"))
    yield f"{'':24}{'runs':>5}{'samples/s':>11}{'spread':>16}{'of singles':>12}{'predicted':>11}{'off':>8}{'others':>9}"
    for name in names:
        rates = [entry.samples_per_s for entry in of[name] if entry.steps_s]
        if not rates:
            yield f"{name:24}{len(of[name]):>5}  {(of[name][-1].error or '').partition(';')[0]}"
            continue
        line = f"{name:24}{len(rates):>5}{median(rates):>11.3f}{min(rates):>8.3f}{max(rates):>8.3f}"
        line += f"{median(rates) / singles:>12.1%}" if singles and not name.startswith("single") else f"{'':12}"
        predicted = of[name][-1].predicted_s
        if predicted is not None:
            measured = of[name][-1].num_samples / median(rates)
            line += f"{format_seconds(predicted):>11}{measured / predicted - 1:>+8.1%}"
        yield f"{line:91}{max(entry.others_cpus for entry in of[name]):>9.2f}"
    for name in names:
        for peer in PEERS:
            ratios = list(_ratios(of[name], of.get(peer, [])))
            if ratios and name not in PEERS and not name.startswith("single"):
                yield f"{name} / {peer}: {median(ratios):.3f} ({' '.join(f'{ratio:.3f}' for ratio in ratios)})"
    for name in names:
        last = of[name][-1]
        if last.busy:
            yield f"{name}: busy {' '.join(f'{part:.0%}' for part in last.busy)}; peak {' '.join(_peaks(last))}"


def _peaks(entry: Run) -> Iterator[str]:
    planned = entry.planned_bytes or [0] * len(entry.peaks_bytes)
    for peak, expected, limit in zip(entry.peaks_bytes, planned, entry.limits_bytes, strict=True):
        over = " over its limit" if expected and peak > limit else ""
        yield format_bytes(peak) + (f" ({peak / expected - 1:+.1%} of planned{over})" if expected else "")


def _typical(runs: Sequence[Run]) -> float:
    return median(entry.samples_per_s for entry in runs)


def _copies(name: str, of: dict[str, list[Run]]) -> int:
    """How many ranks a single device stands for."""
    return max(len(entry.busy) for runs in of.values() for entry in runs) if name == "single core" else 1


def _ratios(runs: Sequence[Run], peers: Sequence[Run]) -> Iterator[float]:
    theirs = {entry.round: entry.samples_per_s for entry in peers if entry.steps_s}
    for entry in runs:
        if entry.steps_s and entry.round in theirs:
            yield entry.samples_per_s / theirs[entry.round]
