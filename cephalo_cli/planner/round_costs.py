"""What samples cost one rank whose state is replicated, by how many microbatches it cuts them into.

    c(s)     compute of a microbatch of s samples through the whole model
    p(s)     what reductions add that a last microbatch of s samples cannot hide; p(0) where it has no microbatch in
             the last round
    F_k(b)   least compute of b samples in exactly k microbatches
    E_k(b)   the same with p of the last one

An extension by one microbatch, ``F_k(b) = min_s F_{k-1}(b - s) + c(s)``, is all there is to it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from cephalo_cli.planner.apportion import largest_remainder, uniform_sizes
from cephalo_cli.planner.arrays import Floats, Ints, Mask

__all__ = ["AnySizes", "OneSize", "RoundCosts"]

SAME = 1e-12
"""Relative difference of seconds that is rounding."""


class RoundCosts(ABC):
    """Costs of one rank in one mode, by samples from 0 to ``most``.

    Args:
        seconds: c by size, from 0 on.
        penalty_s: p by size, from 0 on.
    """

    def __init__(self, seconds: Floats, penalty_s: Floats) -> None:
        self.seconds, self.penalty_s = seconds, penalty_s
        self.most = len(seconds) - 1
        self.effort = 0
        """Sums of two costs that one more microbatch takes."""
        self.least_of_fewer: list[Floats] = []

    @abstractmethod
    def counts_of(self, fewest: int, most: int) -> tuple[int, int]:
        """The least and the largest number of microbatches of so many samples."""

    @abstractmethod
    def exactly(self, count: int) -> Floats:
        """F_k."""

    def fewer(self, count: int) -> Floats:
        """The least F of at least one microbatch and fewer than so many, which are two or more."""
        while len(self.least_of_fewer) < count - 1:
            now = self.exactly(len(self.least_of_fewer) + 1)
            self.least_of_fewer.append(np.minimum(now, self.least_of_fewer[-1]) if self.least_of_fewer else now)
        return self.least_of_fewer[count - 2]

    @abstractmethod
    def ending(self, count: int) -> Floats:
        """E_k."""

    @abstractmethod
    def at_least(self, count: int) -> tuple[Floats, Floats]:
        """The least F and E of that many microbatches or more."""

    @abstractmethod
    def sizes(self, samples: int, count: int, limit_s: float, *, ends: bool) -> tuple[int, ...] | None:
        """Microbatches that cost no more than a limit, the one that hides most last; None where there are none.

        Args:
            samples: What they add up to.
            count: How many they are.
            limit_s: F + p(0) or E may be no more.
            ends: Whether its last one is in the last round, so that E counts; else F + p(0).
        """

    def cost_s(self, sizes: Sequence[int], *, ends: bool) -> float:
        """F + p(0) or E of microbatches."""
        return float(self.seconds[list(sizes)].sum() + self.penalty_s[sizes[-1] if ends and sizes else 0])

    def ordered(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Largest first, but the one that hides most last."""
        if not sizes:
            return ()
        last = min(sizes, key=lambda size: (self.penalty_s[size], size))
        others = sorted(sizes, reverse=True)
        others.remove(last)
        return (*others, last)


class AnySizes(RoundCosts):
    """Microbatches of any size that fits.

    Where a size fits and a smaller one does not (a curve of memory that falls), the smaller one is used nowhere, though
    it would fit beside the larger one; `at_least` counts it.

    Args:
        seconds: c by size, from 0 on.
        penalty_s: p by size, from 0 on.
        fits: Which sizes may be used.
        useful: Which sizes are worth using.
    """

    def __init__(self, seconds: Floats, penalty_s: Floats, fits: Mask, useful: Mask) -> None:
        super().__init__(seconds, penalty_s)
        self.allowed = np.flatnonzero((fits & useful)[1:]) + 1
        largest = int(np.flatnonzero(fits).max(initial=0))
        self.up_to_largest = np.flatnonzero(useful[1 : largest + 1]) + 1
        none = np.full(self.most + 1, np.inf)
        none[0] = 0.0
        self.tables = [none]
        self.open_tables: list[Floats] = []
        self.known: dict[bytes, Ints] = {}
        self.effort = (self.most + 1) * len(self.allowed)

    def counts_of(self, fewest: int, most: int) -> tuple[int, int]:
        """The least and the largest number of microbatches of so many samples."""
        if not len(self.up_to_largest):
            return 0, 0
        return -(-fewest // int(self.up_to_largest[-1])), most // int(self.up_to_largest[0])

    def _before(self, sizes: Ints) -> Ints:
        """Samples before a size is added, shape (samples, sizes); ``most + 1`` where there are none."""
        key = sizes.tobytes()
        if key not in self.known:
            before = np.arange(self.most + 1)[:, None] - sizes[None, :]
            self.known[key] = np.where(before < 0, self.most + 1, before)
        return self.known[key]

    def _extended(self, table: Floats, sizes: Ints) -> Floats:
        """Costs of samples by the size that is added to a table, shape (samples, sizes)."""
        return np.asarray(np.append(table, np.inf)[self._before(sizes)] + self.seconds[sizes])

    def _any(self) -> Floats:
        table = np.full(self.most + 1, np.inf)
        table[0] = 0.0
        seconds = np.full(self.most + 1, np.inf)
        seconds[self.up_to_largest] = self.seconds[self.up_to_largest]
        for samples in range(1, self.most + 1):
            table[samples] = (table[samples - 1 :: -1] + seconds[1 : samples + 1]).min()
        return table

    def _shortest(self, table: Floats, sizes: Ints) -> Floats:
        return np.asarray(self._extended(table, sizes).min(axis=1, initial=np.inf))

    def _last(self, table: Floats, sizes: Ints) -> Floats:
        return np.asarray((self._extended(table, sizes) + self.penalty_s[sizes]).min(axis=1, initial=np.inf))

    def exactly(self, count: int) -> Floats:
        """F_k."""
        while len(self.tables) <= count:
            self.tables.append(self._shortest(self.tables[-1], self.allowed))
        return self.tables[count]

    def ending(self, count: int) -> Floats:
        """E_k."""
        return self._last(self.exactly(count - 1), self.allowed)

    def at_least(self, count: int) -> tuple[Floats, Floats]:
        """The least F and E of that many microbatches or more."""
        if not self.open_tables:
            self.open_tables.append(self._any())
        while len(self.open_tables) <= count:
            self.open_tables.append(self._shortest(self.open_tables[-1], self.up_to_largest))
        return self.open_tables[count], self._last(self.open_tables[max(0, count - 1)], self.up_to_largest)

    def sizes(self, samples: int, count: int, limit_s: float, *, ends: bool) -> tuple[int, ...] | None:
        """Even microbatches where those are within the limit, else the least."""
        if count > samples:
            return None
        even = self.ordered(largest_remainder([1.0] * count, samples))
        fits = set(even) <= set(self.allowed.tolist())
        if fits and self.cost_s(even, ends=ends) <= limit_s * (1.0 + SAME):
            return even
        found: list[int] = []
        left = samples
        for number in range(count, 0, -1):
            costs = self._extended(self.exactly(number - 1), self.allowed)[left]
            if ends and number == count:
                costs = costs + self.penalty_s[self.allowed]
            if not len(costs) or not np.isfinite(costs.min()):
                return None
            found.insert(0, int(self.allowed[int(costs.argmin())]))
            left -= found[0]
        return tuple(found) if self.cost_s(found, ends=ends) <= limit_s * (1.0 + SAME) else None


class OneSize(RoundCosts):
    """Microbatches of one size and a smaller one.

    Args:
        seconds: c by size, from 0 on.
        penalty_s: p by size, from 0 on.
        fits: Which sizes may be the largest of a rank.
        size: The size.
    """

    def __init__(self, seconds: Floats, penalty_s: Floats, fits: Mask, size: int) -> None:
        super().__init__(seconds, penalty_s)
        self.size = size
        every = [self.ordered(uniform_sizes(samples, size)) for samples in range(self.most + 1)]
        self.counts = np.array([len(sizes) for sizes in every])
        may = np.array([bool(fits[min(samples, size)]) or not samples for samples in range(self.most + 1)])
        self.plain, self.ended = (
            np.where(may, np.array([self.cost_s(sizes, ends=ends) for sizes in every]), np.inf)
            - (0.0 if ends else self.penalty_s[0])
            for ends in (False, True)
        )

    def counts_of(self, fewest: int, most: int) -> tuple[int, int]:
        """The least and the largest number of microbatches of so many samples."""
        return -(-fewest // self.size), -(-most // self.size)

    def exactly(self, count: int) -> Floats:
        """F_k."""
        return np.where(self.counts == count, self.plain, np.inf)

    def ending(self, count: int) -> Floats:
        """E_k."""
        return np.where(self.counts == count, self.ended, np.inf)

    def at_least(self, count: int) -> tuple[Floats, Floats]:
        """The least F and E of that many microbatches or more."""
        many = self.counts >= count
        return np.where(many, self.plain, np.inf), np.where(many & (self.counts > 0), self.ended, np.inf)

    def sizes(self, samples: int, count: int, limit_s: float, *, ends: bool) -> tuple[int, ...] | None:
        """The only ones there are."""
        sizes = self.ordered(uniform_sizes(samples, self.size))
        fits = len(sizes) == count and bool(np.isfinite(self.plain[samples]))
        return sizes if fits and self.cost_s(sizes, ends=ends) <= limit_s * (1.0 + SAME) else None
