"""Collectives over unequal shares."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cephalo_cli.artifacts import Cluster
from cephalo_cli.artifacts.cluster import DeviceType, Link, Node
from cephalo_cli.artifacts.profile import CollectiveFit, NetworkProfile
from cephalo_cli.costmodel import network_from_links
from cephalo_cli.costmodel.network import Algorithm, busiest_fraction, collective_s, handled_fraction, placed_fraction

ALGORITHMS: tuple[Algorithm, ...] = ("direct", "ring")
shares = st.lists(st.floats(0.0, 1.0), min_size=2, max_size=8).filter(lambda parts: sum(parts) > 0.01)


@pytest.mark.parametrize(
    ("algorithm", "parts", "expected"),
    [
        ("direct", [1.0], 0.0),
        ("ring", [1.0], 0.0),
        ("direct", [0.5, 0.5], 0.5),
        ("ring", [0.5, 0.5], 0.5),
        ("direct", [0.25] * 4, 0.75),
        ("ring", [0.25] * 4, 0.75),
        ("direct", [0.7, 0.3], 0.7),  # two ranks: the larger shard crosses once
        ("ring", [0.7, 0.3], 0.7),
        ("direct", [0.5, 0.3, 0.2], 1.0),  # rank 0 sends its half to both
        ("ring", [0.5, 0.3, 0.2], 0.8),
        ("direct", [1.0, 0.0, 0.0], 2.0),  # one rank feeds the others
        ("ring", [1.0, 0.0, 0.0], 1.0),
        ("direct", [0.0, 0.5, 0.5], 1.0),
    ],
)
def test_the_busiest_rank_by_hand(algorithm: Algorithm, parts: list[float], expected: float) -> None:
    assert busiest_fraction(algorithm, parts) == pytest.approx(expected, rel=1e-15)


@given(shares, st.sampled_from(ALGORITHMS))
def test_equal_shares_are_the_fastest(parts: list[float], algorithm: Algorithm) -> None:
    number = len(parts)
    normalised = [part / sum(parts) for part in parts]
    assert busiest_fraction(algorithm, normalised) >= (number - 1) / number - 1e-12


@given(shares, st.sampled_from(ALGORITHMS))
def test_what_ranks_handle_adds_up(parts: list[float], algorithm: Algorithm) -> None:
    number = len(parts)
    normalised = [part / sum(parts) for part in parts]
    handled = [handled_fraction(algorithm, number, share) for share in normalised]
    placed = [placed_fraction(algorithm, number, share) for share in normalised]
    moved = [whole - own for whole, own in zip(handled, placed, strict=True)]
    assert sum(moved) == pytest.approx(2 * (number - 1)), "every element reaches n - 1 ranks: sent and received"
    assert sum(placed) == pytest.approx(1.0 if algorithm == "direct" else 0.0), "and is put in its place once"


def test_a_rank_alone_handles_nothing() -> None:
    assert [handled_fraction(algorithm, 1, 1.0) for algorithm in ALGORITHMS] == [0.0, 0.0]
    assert [placed_fraction(algorithm, 1, 1.0) for algorithm in ALGORITHMS] == [0.0, 0.0]


def test_a_collective_takes_its_latency_and_its_bytes() -> None:
    fit = CollectiveFit(latency_s=0.5, bandwidth_bytes_per_s=100.0)
    assert collective_s(fit, 400.0, 0.75) == 0.5 + 400 * 0.75 / 100
    assert collective_s(fit, 0.0, 0.75) == 0.0
    assert collective_s(fit, 400.0, 0.0) == 0.0


def cluster(*nodes: tuple[int, Link | None], network: Link | Literal["ideal"]) -> Cluster:
    return Cluster(
        name="c",
        device_types={"d": DeviceType(memory_bytes=1)},
        nodes=tuple(Node(name=str(at), devices=("d",) * each[0], link=each[1]) for at, each in enumerate(nodes)),
        network=network,
    )


def link(bandwidth: float, latency: float) -> Link:
    return Link(bandwidth_bytes_per_s=bandwidth, latency_s=latency)


@pytest.mark.parametrize(
    ("nodes", "bandwidth", "latency"),
    [
        # two nodes of two: the network is the slowest link; of the hops 0.1, 1, 0.2, 1 a shard skips one
        ([(2, link(100.0, 0.1)), (2, link(50.0, 0.2))], 10.0, 2.2),
        # one node of three: the network between nodes does not matter
        ([(3, link(100.0, 0.1))], 100.0, 0.2),
        # a slow link inside a node slows all; a node of one device has no link in use
        ([(2, link(5.0, 0.1)), (1, link(1.0, 9.0))], 5.0, 2.0),
        # one device: nothing moves
        ([(1, None)], 10.0, 0.0),
    ],
)
def test_a_network_from_links_is_a_ring_as_fast_as_its_slowest_link(
    nodes: list[tuple[int, Link | None]], bandwidth: float, latency: float
) -> None:
    network = network_from_links(cluster(*nodes, network=link(10.0, 1.0)))
    assert isinstance(network, NetworkProfile)
    assert (network.method, network.algorithm) == ("estimated", "ring")
    assert network.all_gather == network.reduce_scatter
    assert network.all_gather.latency_s == pytest.approx(latency)
    assert network.all_gather.bandwidth_bytes_per_s == 0.8 * bandwidth


def test_an_ideal_network_stays_ideal() -> None:
    assert network_from_links(cluster((2, None), network="ideal")) == "ideal"
