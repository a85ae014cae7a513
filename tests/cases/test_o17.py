"""O17: samples repeated or skipped by uneven splitting."""

from pathlib import Path

import numpy as np

from cephalo_cli.executor.data import Batches, count_tokens
from tests.executor.datasets.opened import open_data, text_of

SPLIT = [[3], [1], [1], [2], [1]]


def test_o17_every_sample_once_an_epoch_over_unequal_ranks(tmp_path: Path) -> None:
    """O17: 24 items, 5 ranks with 3, 1, 1, 2 and 1 of them, 3 steps: the union is 0 to 23, each once."""
    np.save(tmp_path / "tokens.npy", np.arange(24 * 4 + 1))
    source = open_data(tmp_path / "tokens.npy", model={"vocab_size": 97})
    batches, other = Batches(source, SPLIT, 5), Batches(source, [[4, 4]], 5)
    orders = []
    for epoch in range(2):
        seen: list[int] = []
        for step in range(3):
            position = 24 * epoch + 8 * step
            assert batches.sample_indices(position) == other.sample_indices(position)
            for rank in range(5):
                for microbatch in batches.of_rank(rank, position):
                    seen += (text_of(microbatch).tokens_BT[:, 0] // 4).tolist()
            assert seen[8 * step :] == list(batches.sample_indices(position))
            assert batches.after(position) == position + 8
        assert sorted(seen) == list(range(24))
        orders.append(seen)
    assert orders[0] != orders[1]
    assert orders[0] != [each for step in range(3) for each in Batches(source, SPLIT, 6).sample_indices(8 * step)]


def test_o17_the_tail_is_not_padded_with_copies(tmp_path: Path) -> None:
    """O17: with 26 items the fourth step has two; the places left over hold rows that count nothing."""
    np.save(tmp_path / "tokens.npy", np.arange(26 * 4 + 1))
    source = open_data(tmp_path / "tokens.npy", model={"vocab_size": 105})
    batches = Batches(source, SPLIT, 5)
    assert len(batches.sample_indices(24)) == 2
    assert [count_tokens(batches.of_rank(rank, 24)) for rank in range(5)] == [8, 0, 0, 0, 0]
    assert batches.after(24) == 26
    assert sorted(each for step in range(4) for each in batches.sample_indices(8 * step)) == list(range(26))
