"""The clock of a time limit."""

from cephalo_cli.profiler.stopwatch import Stopwatch


def test_it_stands_still_while_it_is_paused() -> None:
    now = [100.0]
    stopwatch = Stopwatch(lambda: now[0])
    assert stopwatch() == 0
    now[0] += 2
    with stopwatch.paused():
        now[0] += 50
    now[0] += 1
    assert stopwatch() == 3
