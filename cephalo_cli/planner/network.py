"""How state shares act on collectives, in the numbers of the search; the formulas are those of `costmodel.network`."""

from dataclasses import dataclass

from cephalo_cli.artifacts.profile import Basis, CollectiveFit

__all__ = ["Network"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """The network between two ranks or more, where it is not ideal."""

    direct: bool
    """Whether every rank sends its shard to every other (else a ring)."""
    num_ranks: int
    gather: CollectiveFit
    reduce: CollectiveFit

    @classmethod
    def of(cls, basis: Basis) -> "Network | None":
        """The network of a cluster; None where no collective takes time: it is ideal, or a rank is alone."""
        num_ranks = len(basis.cluster.ranks)
        if basis.network == "ideal" or num_ranks == 1:
            return None
        return cls(
            direct=basis.network.algorithm == "direct",
            num_ranks=num_ranks,
            gather=basis.network.all_gather,
            reduce=basis.network.reduce_scatter,
        )

    @property
    def least_busiest(self) -> float:
        """The smallest w: equal shares."""
        return 1.0 - 1.0 / self.num_ranks

    @property
    def most_busiest(self) -> float:
        """The largest w: one rank stores everything."""
        return self.num_ranks - 1.0 if self.direct else 1.0

    @property
    def handled(self) -> tuple[float, float]:
        """Constant and slope of `costmodel.network.handled_fraction` in the share."""
        return (1.0, self.num_ranks - 1.0) if self.direct else (2.0, -2.0)
