"""Plans and reports of one job side by side: step, throughput, and each rank's compute, wait and memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cephalo_cli.artifacts import Plan, Report
from cephalo_cli.reporting.sheet import Column, Kind, Part, Sheet, Value, merged

__all__ = ["RankSide", "Side", "side", "step_sheets"]


DIFFERENT_JOBS = "These are different jobs: cluster, model, sequence length or batch differ."


@dataclass(frozen=True, kw_only=True)
class RankSide:
    """One rank as a plan expects it or a report saw it."""

    device: str
    num_samples: int
    state_share: float
    compute_s: float
    wait_s: float
    memory_bytes: int
    limit_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Side:
    """One artifact of a comparison."""

    name: str
    """The file."""
    what: str
    """Such as ``planned`` or ``measured, fsdp2``."""
    strategy: str
    job: tuple[str, str, int, int]
    """Cluster, model, sequence length and batch."""
    step_s: float
    samples_per_s: float
    tokens_per_s: float
    ranks: tuple[RankSide, ...]
    alternatives: tuple[tuple[str, bool, float | None, float | None], ...] = ()
    """Strategy, whether it fits, step and samples a second of what else was planned."""


def side(artifact: Plan | Report, name: str) -> Side:
    """Read what plans and reports have in common."""
    if isinstance(artifact, Plan):
        return _planned(artifact, name)
    engine = "" if artifact.engine == "cephalo" else f", {artifact.engine}"
    return Side(
        name=name,
        what=f"{artifact.source}{engine}",
        strategy=artifact.strategy,
        job=(artifact.cluster_name, artifact.model_name, artifact.seq_len, artifact.global_batch_size),
        step_s=artifact.step_s,
        samples_per_s=artifact.samples_per_s,
        tokens_per_s=artifact.tokens_per_s,
        ranks=tuple(
            RankSide(
                device=rank.device,
                num_samples=rank.num_samples,
                state_share=rank.state_share,
                compute_s=rank.compute_s,
                wait_s=rank.wait_s,
                memory_bytes=rank.peak_memory_bytes,
                limit_bytes=rank.memory.limit_bytes if rank.memory else None,
            )
            for rank in artifact.ranks
        ),
    )


def _planned(plan: Plan, name: str) -> Side:
    step_s = plan.expected.step_s
    ranks = []
    for rank in plan.ranks:
        compute_s = rank.expected.forward_s + rank.expected.backward_s + rank.expected.optimizer_s
        ranks.append(
            RankSide(
                device=rank.device,
                num_samples=sum(rank.microbatch_sizes),
                state_share=rank.state_share,
                compute_s=compute_s,
                wait_s=max(0.0, step_s - compute_s),
                memory_bytes=rank.memory.total_bytes,
                limit_bytes=rank.memory.limit_bytes,
            )
        )
    others = [
        (other.strategy, other.feasible, other.step_s, other.samples_per_s)
        for other in plan.alternatives
        if other.strategy != plan.strategy
    ]
    return Side(
        name=name,
        what="planned",
        strategy=plan.strategy,
        job=(plan.cluster.name, plan.model.name, plan.seq_len, plan.global_batch_size),
        step_s=step_s,
        samples_per_s=plan.expected.samples_per_s,
        tokens_per_s=plan.expected.tokens_per_s,
        ranks=tuple(ranks),
        alternatives=tuple(others),
    )


def step_sheets(sides: Sequence[Side]) -> list[Part]:
    """Compare at least two sides; the first is what the others are measured against."""
    sides = _with_limits(sides)
    parts: list[Part] = [_overview(sides)]
    if len({len(each.ranks) for each in sides}) > 1:
        return parts
    if len({tuple((rank.num_samples, round(rank.state_share, 3)) for rank in each.ranks) for each in sides}) > 1:
        parts.append(_per_rank("samples", "samples", "count", sides, lambda rank: rank.num_samples))
        parts.append(_per_rank("state_share", "state", "share", sides, lambda rank: rank.state_share))
    parts.append(_per_rank("compute_s", "compute", "seconds", sides, lambda rank: rank.compute_s))
    parts.append(_per_rank("wait_s", "wait", "seconds", sides, lambda rank: rank.wait_s))
    parts.append(_per_rank("memory_bytes", "peak memory", "bytes", sides, lambda rank: rank.memory_bytes))
    return parts


def _with_limits(sides: Sequence[Side]) -> list[Side]:
    """Give ranks whose side does not know what they may use the limit that another side of the same job knows."""
    filled = []
    for each in sides:
        alike = [
            other.ranks
            for other in sides
            if other.job == each.job and [rank.device for rank in other.ranks] == [rank.device for rank in each.ranks]
        ]
        ranks = [
            replace(rank, limit_bytes=next((known for ranks in alike if (known := ranks[number].limit_bytes)), None))
            if rank.limit_bytes is None
            else rank
            for number, rank in enumerate(each.ranks)
        ]
        filled.append(replace(each, ranks=tuple(ranks)))
    return filled


def _races(sides: Sequence[Side]) -> tuple[str, ...]:
    """A sentence for every measured run of another engine beside a measured run of this one."""
    mine = next((each for each in sides if each.what == "measured"), None)
    if mine is None or not mine.step_s:
        return ()
    return tuple(
        f"{mine.name} is {each.step_s / mine.step_s:.2f} times as fast as {each.name}."
        for each in sides
        if each.what.startswith("measured, ")
    )


def _overview(sides: Sequence[Side]) -> Sheet:
    first = sides[0]
    rows: list[Mapping[str, Value]] = []
    bad = set()
    for each in sides:
        full = [rank.memory_bytes / rank.limit_bytes for rank in each.ranks if rank.limit_bytes]
        if full and max(full) > 1:
            bad.add((len(rows), "peak_memory_fraction"))
        rows.append(
            {
                "file": each.name,
                "what": each.what,
                "strategy": each.strategy,
                "step_s": each.step_s,
                "step_ratio": each.step_s / first.step_s if first.step_s else None,
                "samples_per_s": each.samples_per_s,
                "peak_memory_fraction": max(full, default=None),
            }
        )
    for each in sides:
        for strategy, feasible, step_s, samples_per_s in each.alternatives:
            if not feasible:
                bad.add((len(rows), "what"))
            rows.append(
                {
                    "file": each.name,
                    "what": "alternative" if feasible else "too large",
                    "strategy": strategy,
                    "step_s": step_s,
                    "step_ratio": None if step_s is None or not first.step_s else step_s / first.step_s,
                    "samples_per_s": samples_per_s,
                }
            )
    jobs = {each.job for each in sides}
    notes = _races(sides) if len(jobs) == 1 else (DIFFERENT_JOBS,)
    return Sheet(
        name="steps",
        title="One step",
        columns=(
            Column(key="file", title="file"),
            Column(key="what", title="what"),
            Column(key="strategy", title="strategy"),
            Column(key="step_s", title="step", kind="seconds"),
            Column(key="step_ratio", title="time", kind="ratio"),
            Column(key="samples_per_s", title="samples/s", kind="count"),
            Column(key="peak_memory_fraction", title="fullest", kind="percent"),
        ),
        rows=tuple(rows),
        bad=frozenset(bad),
        notes=notes,
    )


def _per_rank(name: str, title: str, kind: Kind, sides: Sequence[Side], value: Callable[[RankSide], float]) -> Sheet:
    """One number of every rank, a column for each side; with two sides also how far the second is from the first.

    Waits have no such column: what is left of a step may be anything times what was to be left of it.
    """
    changes = name != "wait_s"
    rows: list[Mapping[str, Value]] = []
    for rank in range(len(sides[0].ranks)):
        row: dict[str, Value] = {"ranks": [rank], "device": sides[0].ranks[rank].device}
        for each in sides:
            mine = each.ranks[rank]
            row[each.name] = value(mine)
            if name == "memory_bytes" and mine.limit_bytes is not None:
                row.setdefault("limit_bytes", mine.limit_bytes)
        if len(sides) == 2 and changes:
            one, other = (value(each.ranks[rank]) for each in sides)
            row["change"] = (other - one) / one if one else None
        rows.append(row)
    rows = merged(rows)
    bad = {
        (number, each.name)
        for number, row in enumerate(rows)
        for each in sides
        if isinstance(limit := row.get("limit_bytes"), int) and isinstance(used := row[each.name], int) and used > limit
    }
    columns = [
        Column(key="ranks", title="rank", kind="ranks"),
        Column(key="device", title="device"),
        *(Column(key=each.name, title=each.name, kind=kind) for each in sides),
    ]
    if len(sides) == 2 and changes:
        columns.append(Column(key="change", title="change", kind="change"))
    if any("limit_bytes" in row for row in rows):
        columns.append(Column(key="limit_bytes", title="limit", kind="bytes"))
    return Sheet(name=name, title=title, columns=tuple(columns), rows=tuple(rows), bad=frozenset(bad))
