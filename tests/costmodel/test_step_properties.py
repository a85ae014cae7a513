"""What holds for every step, whatever its schedule, ranks and network."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cephalo_cli.artifacts.plan import ScheduleName
from cephalo_cli.costmodel import RankChoice
from tests.costmodel.bases import basis, choice, estimate

EVERY: tuple[ScheduleName, ...] = ("layer-major", "microbatch-major", "replicated")

ranks = st.lists(
    st.tuples(st.lists(st.integers(1, 6), max_size=4), st.floats(0.01, 1.0), st.booleans()), min_size=2, max_size=4
)
names = st.sampled_from(EVERY)
Ranks = list[tuple[list[int], float, bool]]


def choices_of(parts: Ranks) -> list[RankChoice]:
    whole = sum(share for _, share, _ in parts)
    return [
        choice("xy"[rank % 2], sizes, share / whole, recompute=recompute)
        for rank, (sizes, share, recompute) in enumerate(parts)
    ]


@given(ranks, names, st.integers(0, 3), st.integers(1, 5), st.floats(10.0, 1e6))
def test_more_samples_are_never_faster(
    parts: Ranks, name: ScheduleName, rank: int, more: int, bandwidth: float
) -> None:
    profile = basis(len(parts), bandwidth=bandwidth)
    sizes, share, recompute = parts[rank % len(parts)]
    before = estimate(profile, choices_of(parts), name).step_s
    for larger in ([*sizes, more], [size + more for size in sizes]):
        changed = list(parts)
        changed[rank % len(parts)] = (larger, share, recompute)
        assert estimate(profile, choices_of(changed), name).step_s >= before * (1 - 1e-12)


@given(ranks, names, st.sampled_from(["direct", "ring"]), st.floats(10.0, 1e6), st.floats(1.0, 100.0))
def test_a_faster_network_is_never_slower(
    parts: Ranks, name: ScheduleName, algorithm: Any, bandwidth: float, factor: float
) -> None:
    def step_s(bandwidth: float, latency: float) -> float:
        profile = basis(len(parts), bandwidth=bandwidth, latency=latency, algorithm=algorithm)
        return estimate(profile, choices_of(parts), name).step_s

    slow = step_s(bandwidth, 0.5)
    assert step_s(bandwidth * factor, 0.5) <= slow * (1 + 1e-12)
    assert step_s(bandwidth, 0.5 / factor) <= slow * (1 + 1e-12)


@given(ranks, names)
def test_no_step_is_shorter_than_its_busiest_rank(parts: Ranks, name: ScheduleName) -> None:
    got = estimate(basis(len(parts)), choices_of(parts), name)
    assert got.step_s >= max(rank.forward_s + rank.backward_s for rank in got.ranks) * (1 - 1e-12)


@given(ranks, names)
def test_the_parts_of_an_estimate_add_up(parts: Ranks, name: ScheduleName) -> None:
    got = estimate(basis(len(parts)), choices_of(parts), name)
    stages = sum(stage.seconds for stage in got.stages)
    assert got.step_s == pytest.approx(got.exposed_s + stages + got.optimizer_s, rel=1e-12)


@given(ranks, names)
def test_the_order_of_the_ranks_does_not_matter(parts: Ranks, name: ScheduleName) -> None:
    profile = basis(len(parts))
    choices = choices_of(parts)
    assert estimate(profile, choices[::-1], name).step_s == pytest.approx(estimate(profile, choices, name).step_s)
