"""A process that nears its limit gives the gaps of its heap back, and no other does."""

import platform

import pytest

from cephalo_cli.runtime.heap import HeapRoom, anonymous_bytes, trim_heap

PIECE_BYTES, NUM_PIECES = 2**16, 1024
NUM_SMALL = 48
"""Pieces that are too little to look for gaps again."""
GAPS_BYTES = PIECE_BYTES * NUM_PIECES // 2

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries manage memory otherwise")


def heap_with_gaps(num_pieces: int = NUM_PIECES) -> list[bytearray]:
    """Occupy memory of which every other piece is free."""
    return [bytearray(b"x" * PIECE_BYTES) for _ in range(num_pieces)][::2]


def test_gaps_are_given_back_before_the_limit_is_reached() -> None:
    trim_heap()
    kept = heap_with_gaps()
    before = anonymous_bytes()
    HeapRoom(before + PIECE_BYTES).make(GAPS_BYTES)
    assert before - anonymous_bytes() > GAPS_BYTES // 2
    assert set(kept[-1]) == {ord("x")}


def test_gaps_are_kept_where_there_is_room() -> None:
    trim_heap()
    kept = heap_with_gaps()
    before = anonymous_bytes()
    HeapRoom(before + 2 * GAPS_BYTES).make(GAPS_BYTES)
    assert abs(before - anonymous_bytes()) < GAPS_BYTES // 8
    assert len(kept) == NUM_PIECES // 2


def test_a_search_is_worth_it_only_when_much_was_occupied_since_the_last() -> None:
    room = HeapRoom(1)
    room.make(0)
    kept = heap_with_gaps(NUM_SMALL)
    before = anonymous_bytes()
    room.make(0)
    assert before - anonymous_bytes() < PIECE_BYTES * NUM_SMALL // 8
    kept += heap_with_gaps()
    before = anonymous_bytes()
    room.make(0)
    assert before - anonymous_bytes() > GAPS_BYTES // 2
    assert len(kept) == (NUM_SMALL + NUM_PIECES) // 2


@pytest.mark.parametrize(("needed_bytes", "given_back"), [(GAPS_BYTES // 2, False), (2 * GAPS_BYTES, True)])
def test_what_comes_next_finds_place_in_gaps(needed_bytes: int, *, given_back: bool) -> None:
    trim_heap()
    room = HeapRoom(anonymous_bytes() + 2 * GAPS_BYTES + 3 * GAPS_BYTES // 4)
    room.make(4 * GAPS_BYTES)
    kept = heap_with_gaps()
    before = anonymous_bytes()
    room.make(needed_bytes)
    room.make(GAPS_BYTES)
    assert (before - anonymous_bytes() > GAPS_BYTES // 2) == given_back
    assert len(kept) == NUM_PIECES // 2
