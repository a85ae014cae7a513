"""O18: resume on another number of GPUs or another sharding."""

from collections.abc import Mapping
from pathlib import Path

import torch

from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.checkpoint import find_checkpoint, load_shards, save_checkpoint
from cephalo_cli.executor.checkpoint_manifest import Manifest
from cephalo_cli.executor.checkpoint_shards import Shard
from cephalo_cli.layout import shard_ranges
from cephalo_cli.runtime.process import ProcessContext
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks

MODEL = make_model()
OPTIONS = TrainOptions(data="random", num_steps=1)
SIZES = {"a": 101, "b": 7, "c": 1}
SHARES = ([0.7, 0.3], [0.2, 0.5, 0.3], [1.0], [0.3, 0.7], [0.0, 1.0])


def test_o18_weights_and_moments_are_cut_anew_to_the_bit(ranks: Ranks, tmp_path: Path) -> None:
    """O18: saved with 0.7/0.3, loaded with other shares and numbers of ranks, sizes that nothing divides: 101, 7, 1.

    The loss after resuming and the position in the data are compared in tests/executor/test_checkpoint.py.
    """
    save, *loads = [
        Job(
            plan=make_plan(MODEL, [[1]] * len(shares), shares),
            options=OPTIONS,
            run=save_numbers if index == 0 else load_numbers,
            arguments=tmp_path,
        )
        for index, shares in enumerate(SHARES)
    ]
    ranks.run([save])
    for shares, found in zip(SHARES[1:], ranks.run(loads), strict=True):
        for name, size in SIZES.items():
            for tensor in ("weights", "first_moment", "second_moment"):
                whole = torch.cat([part[f"{name}.{tensor}"] for part in found])
                assert torch.equal(whole, numbers(name, tensor, size)), (shares, name, tensor)


def numbers(name: str, tensor: str, size: int) -> torch.Tensor:
    """Irregular bits that no arithmetic would keep."""
    generator = torch.Generator().manual_seed(sum(map(ord, name + tensor)))
    return torch.randn(size, generator=generator)


def shards_of(context: ProcessContext, job: Job, *, filled: bool) -> Mapping[str, Shard]:
    shards = {}
    for name, size in SIZES.items():
        own = shard_ranges(size, [rank.state_share for rank in job.plan.ranks])[context.rank]
        for tensor in ("weights", "first_moment", "second_moment"):
            data = numbers(name, tensor, size)[own.start : own.stop] if filled else torch.full((len(own),), torch.nan)
            shards[f"{name}.{tensor}"] = Shard(data=data, start=own.start, num_elements=size)
    return shards


def save_numbers(context: ProcessContext, job: Job) -> None:
    manifest = Manifest(
        step=5,
        position=20,
        seed=0,
        data="d",
        model=MODEL,
        state_dtype="float32",
        num_updates=5,
        loss_scale=1.0,
        good_steps=0,
        layout={},
        files={},
    )
    save_checkpoint(job.arguments, manifest, shards_of(context, job, filled=True), context.process_group)


def load_numbers(context: ProcessContext, job: Job) -> dict[str, torch.Tensor]:
    found, skipped = find_checkpoint("latest", job.arguments, context.process_group)
    assert found is not None
    assert not skipped
    shards = shards_of(context, job, filled=False)
    load_shards(found, shards, context.process_group)
    return {name: shard.data for name, shard in shards.items()}
