"""Among equally fast plans, a tidier one: equal ranks share their samples evenly and nobody is slower than needed."""

from collections.abc import Sequence

import numpy as np

from cephalo_cli.planner.arrays import Floats
from cephalo_cli.planner.limit_search import price_rows
from cephalo_cli.planner.options import Options
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.search import Found

__all__ = ["tidy"]


SAME = 1e-12
"""Relative difference of steps that counts as none."""


def tidy(problem: Problem, options: Sequence[Options], found: Found) -> Found:
    """The first of these that is as fast as the plan found: even and quickest, even and roomiest, quickest, as it is.

    Options are taken from those whose stages take no longer than the slowest of the plan.
    """
    slowest = np.max(
        [listed.times_s[list(rows)].max(axis=0) for listed, rows in zip(options, found.rows, strict=True)], axis=0
    )
    counts = np.array(problem.counts, dtype=np.float64)
    for even, quickest in ((True, True), (True, False), (False, True)):
        rows = []
        for listed, mine in zip(options, found.rows, strict=True):
            samples = listed.samples[list(mine)].tolist()
            if even:
                each, more = divmod(sum(samples), len(samples))
                samples = [each + 1] * more + [each] * (len(samples) - more)
            rows.append(_pick(listed, samples, slowest, counts if quickest else None))
        if all(row is not None for row in rows):
            chosen = tuple(tuple(row) for row in rows if row is not None)
            limits = price_rows(problem, options, chosen)
            if limits is not None and limits.step_s <= found.limits.step_s * (1.0 + SAME):
                return Found(rows=chosen, limits=limits)
    return found


def _pick(listed: Options, samples: list[int], slowest: Floats, counts: Floats | None) -> list[int] | None:
    """An option for every number of samples: the quickest, or without counts the roomiest; None if one is missing."""
    able = (listed.times_s <= slowest * (1.0 + SAME)).all(axis=1)
    rows: dict[int, int] = {}
    for wanted in set(samples):
        fitting = np.flatnonzero(able & (listed.samples == wanted))
        if not len(fitting):
            return None
        merit = -listed.caps[fitting] if counts is None else listed.times_s[fitting] @ counts
        rows[wanted] = int(fitting[np.argmin(merit)])
    return [rows[wanted] for wanted in samples]
