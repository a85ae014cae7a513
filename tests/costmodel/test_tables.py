"""Curves between and beyond their points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cephalo_cli.costmodel.tables import interpolate
from cephalo_cli.planner.recount import value_at

curves = st.dictionaries(st.integers(1, 200), st.floats(0.0, 100.0), min_size=1, max_size=8).map(
    lambda points: (sorted(points), [points[size] for size in sorted(points)])
)
increasing = curves.map(lambda curve: (curve[0], sorted(curve[1])))


@pytest.mark.parametrize(
    ("microbatch", "values", "size", "expected"),
    [
        ([1, 2, 4], [1.0, 3.0, 4.0], 2, 3.0),
        ([1, 2, 4], [1.0, 3.0, 4.0], 3, 3.5),
        ([2, 4], [5.0, 9.0], 1, 5.0),
        ([1, 2, 4], [1.0, 3.0, 4.0], 0, 0.0),
        # beyond: from the first to the last of min(5, n) points
        ([1, 2, 4], [1.0, 3.0, 4.0], 7, 4.0 + 3 * (4.0 - 1.0) / (4 - 1)),
        ([3, 5], [2.0, 3.0], 9, 3.0 + 4 * 0.5),
        ([1, 2, 3, 4, 5, 6], [100.0, 1.0, 2.0, 3.0, 4.0, 5.0], 8, 5.0 + 2 * 1.0),
        ([1, 2, 3, 4, 5, 6, 7], [9.0, 9.0, 0.0, 9.0, 9.0, 9.0, 8.0], 8, 8.0 + (8.0 - 0.0) / 4),
        # one point: proportional
        ([4], [8.0], 6, 12.0),
        ([4], [8.0], 2, 8.0),
        # beyond a falling end: proportional
        ([1, 2], [2.0, 1.0], 3, 1.5),
        ([1, 2, 3, 4], [10.0, 9.0, 5.0, 2.0], 8, 4.0),
        # beyond a flat end: flat
        ([1, 2], [2.0, 2.0], 50, 2.0),
        ([1, 3], [10, 30], 2, 20.0),
    ],
)
def test_values_by_hand(microbatch: list[int], values: list[float], size: int, expected: float) -> None:
    assert interpolate(microbatch, values, size) == pytest.approx(expected, rel=1e-15)


@given(curves)
def test_a_curve_goes_through_its_points(curve: tuple[list[int], list[float]]) -> None:
    assert [interpolate(*curve, size) for size in curve[0]] == curve[1]


@given(curves, st.integers(0, 1000))
def test_a_curve_is_never_below_zero(curve: tuple[list[int], list[float]], size: int) -> None:
    assert interpolate(*curve, size) >= 0


@given(curves, st.integers(1, 500), st.integers(1, 500))
def test_beyond_its_end_a_curve_never_falls(curve: tuple[list[int], list[float]], one: int, other: int) -> None:
    small, large = (curve[0][-1] + more for more in sorted((one, other)))
    assert interpolate(*curve, curve[0][-1]) <= interpolate(*curve, small) <= interpolate(*curve, large) * (1 + 1e-12)


@given(curves, st.integers(0, 500))
def test_the_plan_checkers_reading_is_the_same(curve: tuple[list[int], list[float]], size: int) -> None:
    assert value_at(*curve, size) == pytest.approx(interpolate(*curve, size), rel=1e-9, abs=1e-9)


@given(curves, st.data())
def test_between_points_a_curve_stays_between_their_values(
    curve: tuple[list[int], list[float]], data: st.DataObject
) -> None:
    microbatch, values = curve
    size = data.draw(st.integers(microbatch[0], microbatch[-1]))
    below = max(at for at, point in enumerate(microbatch) if point <= size)
    above = min(at for at, point in enumerate(microbatch) if point >= size)
    low, high = sorted((values[below], values[above]))
    assert low - 1e-12 * high <= interpolate(microbatch, values, size) <= high * (1 + 1e-12)


@given(increasing, st.integers(0, 500), st.integers(0, 500))
def test_a_curve_that_increases_increases_everywhere(
    curve: tuple[list[int], list[float]], one: int, other: int
) -> None:
    small, large = sorted((one, other))
    assert interpolate(*curve, small) <= interpolate(*curve, large) * (1 + 1e-12)
