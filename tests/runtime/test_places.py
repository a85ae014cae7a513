from collections.abc import Callable

import pytest

from cephalo_cli.artifacts import Cluster
from cephalo_cli.runtime.places import cpus_of_ranks

MakeCluster = Callable[..., Cluster]


@pytest.mark.parametrize(
    ("speeds", "num_cpus", "expected"),
    [
        ([0.4, 0.8], 2, [1, 0]),
        ([0.7, 0.5, 0.3, 0.2], 2, [0, 1, 1, 0]),
        ([0.7, 0.3], 1, [0, 0]),
        ([0.1] * 10, 1, [0] * 10),
        ([0.7, 0.4], 1, None),
        ([0.6, 0.6, 0.6], 2, None),
        ([1.5, 0.1], 4, None),
        ([0.5, None], 4, None),
    ],
)
def test_emulated_ranks_get_cpus_they_fit_on_or_none_at_all(
    make_cluster: MakeCluster, speeds: list[float | None], num_cpus: int, expected: list[int] | None
) -> None:
    assert cpus_of_ranks(make_cluster(speeds), range(num_cpus)) == expected
