from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from cephalo_cli.artifacts import Cluster
from cephalo_cli.layout import Range
from cephalo_cli.runtime.buffers import BufferLayout
from cephalo_cli.runtime.collectives import ShardedCollectives
from cephalo_cli.runtime.launch import run_ranks
from cephalo_cli.runtime.process import rank_process

CPU = torch.device("cpu")


def test_three_ranks_gather_and_sum_unequal_shards_all_in_flight_at_once(make_cluster: Callable[..., Cluster]) -> None:
    assert run_ranks("rank_entries:collectives", None, make_cluster([None] * 3)) == [[], [], []]


def test_ranks_that_disagree_about_a_layout_all_say_so(make_cluster: Callable[..., Cluster]) -> None:
    first, second = run_ranks("rank_entries:disagreement", None, make_cluster([None] * 2))
    assert first == second
    assert first.startswith("rank 1 and rank 0 disagree about buffer 'block': BufferLayout(ranges=(Range(start=0, sto")


def test_one_rank_moves_nothing_and_refuses_wrong_sizes(make_cluster: Callable[..., Cluster]) -> None:
    layouts = {
        "block": BufferLayout(ranges=(Range(0, 7),), gather_dtype=torch.bfloat16),
        "frozen": BufferLayout(ranges=(Range(0, 7),), gather_dtype=torch.bfloat16, reduce_dtype=None),
    }
    with rank_process(make_cluster([None]), 0, timeout=timedelta(seconds=10), emit=print, store=HashStore()) as context:
        moves = ShardedCollectives(context.process_group, context.device, layouts)
        full = torch.arange(7, dtype=torch.bfloat16)
        moves.all_gather("block", full).wait()
        assert full.tolist() == list(range(7))
        shard = torch.empty(7)
        moves.reduce_scatter("block", torch.arange(7, dtype=torch.float32), shard).wait()
        assert shard.tolist() == list(range(7))
        with pytest.raises(
            ValueError, match=r"block: gathered buffer is \(8,\) torch.bfloat16 on cpu, expected \(7,\)"
        ):
            moves.all_gather("block", torch.zeros(8, dtype=torch.bfloat16))
        with pytest.raises(ValueError, match=r"expected \(7,\) torch.bfloat16 on cpu"):
            moves.all_gather("block", torch.zeros(7))
        with pytest.raises(ValueError, match="block: gathered buffer is not contiguous"):
            moves.all_gather("block", torch.zeros(14, dtype=torch.bfloat16)[::2])
        with pytest.raises(ValueError, match="block: gradient shard"):
            moves.reduce_scatter("block", torch.zeros(7), torch.empty(6))
        with pytest.raises(ValueError, match="frozen: a frozen buffer has no gradient"):
            moves.reduce_scatter("frozen", torch.zeros(7), torch.empty(7))
        moves.close()


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ((Range(0, 4), Range(4, 7)), "block: 2 ranges for 1 ranks"),
        ((Range(1, 7),), "block: range 1:7 does not continue at element 0"),
        ((Range(0, -1),), "block: range 0:-1 does not continue at element 0"),
    ],
)
def test_ranges_that_are_no_partition_are_refused(
    make_cluster: Callable[..., Cluster], ranges: tuple[Range, ...], message: str
) -> None:
    layout = BufferLayout(ranges=ranges, gather_dtype=torch.float32)
    with (
        rank_process(make_cluster([None]), 0, timeout=timedelta(seconds=10), emit=print, store=HashStore()) as context,
        pytest.raises(ValueError, match=message),
    ):
        ShardedCollectives(context.process_group, CPU, {"block": layout})
