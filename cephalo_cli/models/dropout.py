"""Dropout whose masks belong to the sample, not to the moment.

A mask is drawn from a generator seeded with (seed, step, unit, sample, site). So it is the same mask when a block is
recomputed, whatever ran in between, and however the batch is split into microbatches and ranks. It differs between
kinds of device (their generators differ), and it costs one generator a sample: the price of exactness.

The attention probabilities are not dropped: fused attention kernels draw their mask from the global generator, which
cannot be tied to a sample. What is dropped are the embedding's output and the two branches of every block.
"""

import hashlib
from dataclasses import dataclass

import torch

__all__ = ["DropoutKey", "dropout"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DropoutKey:
    """What the masks of one unit and one microbatch depend on."""

    seed: int
    """Seed of the run."""
    step: int
    """Number of the step."""
    unit: int
    """Index of the unit."""
    samples: tuple[int, ...]
    """Position of each of the microbatch's samples in the global batch."""

    def generators(self, site: str, device: torch.device) -> list[torch.Generator]:
        """Make one generator a sample for one place (``site``) in the unit."""
        return [
            torch.Generator(device).manual_seed(_seed_of(self.seed, self.step, self.unit, sample, site))
            for sample in self.samples
        ]


def dropout(x_BTD: torch.Tensor, probability: float, key: DropoutKey | None, site: str) -> torch.Tensor:
    """Drop elements of ``x_BTD`` with ``probability`` and scale up the rest; without a key nothing is dropped."""
    if probability == 0 or key is None:
        return x_BTD
    if len(key.samples) != len(x_BTD):
        raise AssertionError(f"a dropout key of {len(key.samples)} samples for a microbatch of {len(x_BTD)}")
    dropped_BTD = torch.empty(x_BTD.shape, dtype=torch.bool, device=x_BTD.device)
    for row, generator in enumerate(key.generators(site, x_BTD.device)):
        draw_TD = torch.rand(x_BTD.shape[1:], generator=generator, device=x_BTD.device)
        torch.lt(draw_TD, probability, out=dropped_BTD[row])
    return x_BTD.masked_fill(dropped_BTD, 0.0) * (1.0 / (1.0 - probability))


def _seed_of(*parts: object) -> int:
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
