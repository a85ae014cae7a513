import json

import pytest

from cephalo_cli.artifacts import Cluster
from cephalo_cli.artifacts.profile import CollectivePoint
from cephalo_cli.costmodel.network import busiest_fraction, collective_s
from cephalo_cli.profiler.measure_network import fit_collective, share_patterns

SHARES = ((0.25, 0.25, 0.25, 0.25), (0.7, 0.1, 0.2, 0.0))
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)


def measured(latency_s: float, bandwidth: float) -> list[CollectivePoint]:
    return [
        CollectivePoint(
            unit_bytes=size,
            shares=shares,
            seconds=latency_s + size * busiest_fraction("direct", shares) / bandwidth,
        )
        for shares in SHARES
        for size in SIZES
    ]


@pytest.mark.parametrize(("latency_s", "bandwidth"), [(1e-3, 1e9), (2e-5, 2e10), (0.0, 5e8)])
def test_a_fit_finds_latency_and_bandwidth_over_unequal_shares(latency_s: float, bandwidth: float) -> None:
    fit = fit_collective(measured(latency_s, bandwidth))
    assert fit.latency_s == pytest.approx(latency_s, rel=1e-6, abs=1e-12)
    assert fit.bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=1e-6)
    assert fit.residual == pytest.approx(0.0, abs=1e-6)
    assert fit.bandwidth_is_bound is None
    assert collective_s(fit, 10**6, busiest_fraction("direct", SHARES[1])) == pytest.approx(fit.points[6].seconds)


def test_a_bandwidth_that_the_points_do_not_show_is_the_least_they_allow_and_says_so() -> None:
    falling = [
        CollectivePoint(unit_bytes=size, shares=(0.5, 0.5), seconds=seconds)
        for size, seconds in ((10**4, 4e-3), (10**5, 3e-3), (10**6, 2e-3))
    ]
    fit = fit_collective(falling)
    assert fit.latency_s > 0
    assert fit.bandwidth_is_bound
    assert fit.residual is not None
    assert fit.residual > 0.1
    most = 5e5
    assert most / fit.bandwidth_bytes_per_s == pytest.approx(fit.residual * fit.latency_s)


def test_points_that_do_not_depend_on_size_at_all_give_no_endless_bandwidth() -> None:
    level = [CollectivePoint(unit_bytes=size, shares=(0.5, 0.5), seconds=1e-3) for size in SIZES]
    fit = fit_collective(level)
    assert fit.bandwidth_is_bound
    assert fit.latency_s == pytest.approx(1e-3)
    assert fit.bandwidth_bytes_per_s == pytest.approx(5e6 / (0.01 * 1e-3), rel=1e-6)


def test_measured_shares_are_equal_and_as_plans_have_them() -> None:
    def cluster_of(*memories: int) -> Cluster:
        types = {f"d{rank}": {"backend": "cpu", "memory_bytes": size} for rank, size in enumerate(memories)}
        node = {"name": "n", "devices": list(types)}
        content = {"kind": "cluster", "name": "c", "device_types": types, "nodes": [node], "network": "ideal"}
        return Cluster.model_validate_json(json.dumps(content))

    assert share_patterns(cluster_of(10, 30)) == [(0.5, 0.5), (0.25, 0.75)]
    assert share_patterns(cluster_of(5, 5)) == [(0.5, 0.5), (1 / 3, 2 / 3)]
