"""Cephalo's unequal shards and its schedule in a loop of one's own.

    cephalo plan --gpus l4,p40 --model gpt2 --seq-len 64 --batch-size 5 -o plan.json
    torchrun --nproc-per-node 2 examples/own_loop.py plan.json

Each process is one rank of the plan. The loop, the data and the process group are ours; `ShardedModel` gathers a unit
where it is needed, runs all of this rank's microbatches of it, and reduces its gradient to unequal shards. The numbers
are those of the whole batch in one process.
"""

import sys

import torch
import torch.distributed as dist

from cephalo_cli import ShardedModel, TextBatch, read_plan

NUM_STEPS = 10


def make_batch(num_samples: int, seq_len: int, vocab_size: int, generator: torch.Generator) -> TextBatch:
    """Make samples that count upwards from a random token: easy to learn."""
    starts_B1 = torch.randint(vocab_size, (num_samples, 1), generator=generator)
    ids_BT = (starts_B1 + torch.arange(seq_len + 1)) % vocab_size
    return TextBatch(samples=tuple(range(num_samples)), tokens_BT=ids_BT[:, :-1], targets_BT=ids_BT[:, 1:])


def main(path: str) -> None:
    """Train a few steps and print the losses on rank 0."""
    plan = read_plan(path)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    dist.init_process_group()
    group = dist.group.WORLD
    if group is None:
        raise SystemExit("start it with torchrun")
    rank = dist.get_rank()
    device = accelerator or torch.device("cpu")
    if accelerator is not None:
        device = torch.device(accelerator.type, rank % torch.accelerator.device_count())
        torch.accelerator.set_device_index(device.index)
    generator = torch.Generator().manual_seed(0)  # the same global batch on every rank
    with ShardedModel(plan, group, device, num_steps=NUM_STEPS, learning_rate=3e-3) as model:
        stored = sum(len(unit.master) for unit in model.units)
        print(f"rank {rank} stores {stored} of {plan.num_parameters} parameters", flush=True)
        for step in range(1, NUM_STEPS + 1):
            batch = make_batch(plan.global_batch_size, plan.seq_len, plan.model.vocab_size or 0, generator)
            numbers = model.step(model.part_of(batch))
            if rank == 0:
                print(f"step {step} loss {numbers.loss:.6f} gradient {numbers.grad_norm:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
