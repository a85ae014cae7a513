import itertools

import numpy as np
import pytest

from cephalo_cli.planner.split import find_split, largest_sum


def by_enumeration(values: np.ndarray, counts: np.ndarray, total: int) -> float:
    ranks = [group for group, count in enumerate(counts) for _ in range(count)]
    splits = itertools.product(range(values.shape[1]), repeat=len(ranks))
    return max(
        (
            sum(values[group, samples] for group, samples in zip(ranks, split, strict=True))
            for split in splits
            if sum(split) == total
        ),
        default=-np.inf,
    )


@pytest.mark.parametrize("chunk", range(8))
def test_splits_equal_enumeration(chunk: int) -> None:
    for seed in range(100 * chunk, 100 * chunk + 100):
        rng = np.random.default_rng(seed)
        shape = (int(rng.integers(1, 4)), int(rng.integers(1, 7)))
        values = np.where(rng.random(shape) < 0.2, -np.inf, np.round(rng.random(shape), int(rng.integers(1, 4))))
        if seed % 3 == 0:
            values = np.sort(values, axis=1)[:, ::-1].copy()
        counts = rng.integers(1, 4, shape[0])
        total = int(rng.integers(0, 10))
        best = by_enumeration(values, counts, total)
        found = largest_sum(values, counts, total)
        if best == -np.inf:
            assert found is None
            assert find_split(values, counts, total, 0.0) is None
            continue
        assert found is not None
        assert found[0] == pytest.approx(best)
        for needed in (best - 0.1, best - 1e-9, best + 1e-9, best + 0.1):
            split = find_split(values, counts, total, needed)
            assert (split is None) == (best < needed)
            if split is not None:
                assert sum(map(sum, split)) == total
                assert [len(samples) for samples in split] == counts.tolist()


def test_many_equal_ranks_with_a_tight_sum_are_decided_exactly() -> None:
    values = np.array([[1.0, 0.9, 0.5, 0.45], [0.8, 0.75, 0.7, 0.1]]) / 1000
    counts = np.array([600, 500])
    best = largest_sum(values, counts, 1501)
    assert best is not None
    assert find_split(values, counts, 1501, best[0] * (1 - 1e-12)) is not None
    assert find_split(values, counts, 1501, best[0] * (1 + 1e-9)) is None
