"""Dropout whose masks belong to the sample, not to the moment.

A mask is drawn from a generator seeded with (seed, step, unit, sample, site). So it is the same mask when a block is
recomputed, whatever ran in between, and however the batch is split into microbatches and ranks. It differs between
kinds of device (their generators differ), and it costs one generator a sample: the price of exactness.

A compiler cannot look into generators and hashes, so where it traces a unit the masks come from an operator of our own,
which is opaque to it; the key reaches it as a tensor, because numbers would be compiled in.

The attention probabilities are not dropped: fused attention kernels draw their mask from the global generator, which
cannot be tied to a sample. What is dropped are the embedding's output and the two branches of every block.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Self

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
    numbers: torch.Tensor = field(init=False, repr=False, compare=False)
    """All of the above in a row, int64 on the CPU: what a compiled unit is given."""

    def __post_init__(self) -> None:
        numbers = torch.tensor([self.seed, self.step, self.unit, *self.samples], dtype=torch.int64, device="cpu")
        object.__setattr__(self, "numbers", numbers)

    @classmethod
    def from_numbers(cls, numbers: torch.Tensor) -> Self:
        """Make a key again from its `numbers`."""
        seed, step, unit, *samples = numbers.tolist()
        return cls(seed=seed, step=step, unit=unit, samples=tuple(samples))

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
    if torch.compiler.is_compiling():
        dropped_BTD = _dropped_when_compiled(x_BTD, probability, key.numbers, site)
    else:
        dropped_BTD = _dropped(x_BTD, probability, key, site)
    return x_BTD.masked_fill(dropped_BTD, 0.0) * (1.0 / (1.0 - probability))


def _dropped(x_BTD: torch.Tensor, probability: float, key: DropoutKey, site: str) -> torch.Tensor:
    """True where an element is dropped."""
    if len(key.samples) != len(x_BTD):
        raise AssertionError(f"a dropout key of {len(key.samples)} samples for a microbatch of {len(x_BTD)}")
    dropped_BTD = torch.empty(x_BTD.shape, dtype=torch.bool, device=x_BTD.device)
    for row, generator in enumerate(key.generators(site, x_BTD.device)):
        draw_TD = torch.rand(x_BTD.shape[1:], generator=generator, device=x_BTD.device)
        torch.lt(draw_TD, probability, out=dropped_BTD[row])
    return dropped_BTD


@torch.library.custom_op("cephalo::dropped", mutates_args=())
def _dropped_when_compiled(x_BTD: torch.Tensor, probability: float, numbers: torch.Tensor, site: str) -> torch.Tensor:
    return _dropped(x_BTD, probability, DropoutKey.from_numbers(numbers), site)


@_dropped_when_compiled.register_fake
def _(x_BTD: torch.Tensor, probability: float, numbers: torch.Tensor, site: str) -> torch.Tensor:  # noqa: ARG001 - the operator's
    return torch.empty(x_BTD.shape, dtype=torch.bool, device=x_BTD.device)


def _seed_of(*parts: object) -> int:
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
