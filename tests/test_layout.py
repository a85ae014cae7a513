"""Shares become ranges that partition every buffer."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cephalo_cli.layout import Range, shard_ranges

weights = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-9, 1.0), st.integers(1, 10).map(float)), min_size=1, max_size=20
).filter(any)
num_elements = st.one_of(st.integers(0, 50), st.integers(0, 2**40))


def normalised(parts: list[float]) -> list[float]:
    return [part / sum(parts) for part in parts]


@given(num_elements=num_elements, parts=weights)
def test_the_ranges_partition_the_buffer_in_rank_order(num_elements: int, parts: list[float]) -> None:
    ranges = shard_ranges(num_elements, normalised(parts))
    assert len(ranges) == len(parts)
    assert ranges[0].start == 0
    assert ranges[-1].stop == num_elements
    assert all(left.stop == right.start for left, right in pairwise(ranges))
    assert all(each.start <= each.stop for each in ranges)
    assert sum(map(len, ranges)) == num_elements


@given(num_elements=num_elements, parts=weights)
def test_a_rank_without_share_stores_nothing(num_elements: int, parts: list[float]) -> None:
    for share, each in zip(normalised(parts), shard_ranges(num_elements, normalised(parts)), strict=True):
        if share == 0:
            assert len(each) == 0


@given(num_elements=st.integers(0, 10**6), parts=weights)
def test_no_range_is_an_element_away_from_its_share(num_elements: int, parts: list[float]) -> None:
    for share, each in zip(normalised(parts), shard_ranges(num_elements, normalised(parts)), strict=True):
        assert abs(len(each) - share * num_elements) <= 1 + 1e-6


@given(num_elements=num_elements, parts=weights, factor=st.floats(0.5, 2.0))
def test_shares_whose_sum_is_a_little_off_cut_as_exact_ones(
    num_elements: int, parts: list[float], factor: float
) -> None:
    def sizes(shares: list[float]) -> list[int]:
        return [len(each) for each in shard_ranges(num_elements, shares)]

    exact = sizes(normalised(parts))
    off = sizes([share * (1 + factor * 1e-12) for share in normalised(parts)])
    assert all(abs(a - b) <= 1 + 1e-11 * num_elements for a, b in zip(exact, off, strict=True))


@pytest.mark.parametrize(
    ("num_elements", "shares", "sizes"),
    [
        (7, [1.0], [7]),
        (7, [5 / 7, 2 / 7], [5, 2]),
        (7, [1.0, 0.0], [7, 0]),
        (7, [0.0, 1.0], [0, 7]),
        (7, [4 / 7, 3 / 7, 0.0], [4, 3, 0]),
        (10, [0.0, 0.5, 0.0, 0.5, 0.0], [0, 5, 0, 5, 0]),
        (10, [0.25, 0.25, 0.5], [3, 2, 5]),
        (3, [0.1] * 10, [0, 1, 0, 0, 1, 0, 0, 0, 1, 0]),
        (1, [0.5, 0.5], [1, 0]),
        (0, [0.5, 0.5], [0, 0]),
        (101, [0.7, 0.3], [71, 30]),
    ],
)
def test_cuts_by_hand(num_elements: int, shares: list[float], sizes: list[int]) -> None:
    assert [len(each) for each in shard_ranges(num_elements, shares)] == sizes


def test_a_range_has_a_length() -> None:
    assert len(Range(3, 10)) == 7


@pytest.mark.parametrize("shares", [[], [0.0, 0.0], [1.5, -0.5], [float("nan"), 1.0], [1.0, float("inf")]])
def test_shares_that_are_none_are_refused(shares: list[float]) -> None:
    with pytest.raises(ValueError, match=r"^shares must be at least 0 and sum to 1, found \["):
        shard_ranges(10, shares)
