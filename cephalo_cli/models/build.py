"""From the model artifact to modules, and from a seed to weights."""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import nn

from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.errors import UsageError
from cephalo_cli.models import bert, gpt, llama, vit
from cephalo_cli.models.layers import Linear
from cephalo_cli.models.own import build_own, filled_own
from cephalo_cli.units import adapted, unit_of_kind

__all__ = ["build_unit", "initialise_", "starting_unit", "starting_values"]

INIT_STD = 0.02
"""Standard deviation of starting matrices (Radford et al. 2019; GPT-2's published code)."""


def build_unit(model: Model, kind: UnitKind, index: int | None = None) -> nn.Module:
    """Make one unit's module with empty parameters, on torch's current default device and in its default dtype.

    Under ``with torch.device("meta")`` it takes no memory; units of one's own are always made there.

    Args:
        model: The model.
        kind: Kind of the unit.
        index: Which unit, for units of one's own, which may differ; when absent the one that stands for its kind.

    Raises:
        UsageError: The model's shape cannot be run.
    """
    if model.own is not None:
        return build_own(model, unit_of_kind(model, kind) if index is None else index)
    if model.family == "llama" and model.width_of_head % 2:
        raise UsageError(
            f"rotary positions need an even head width, found {model.width_of_head}", where=f"model {model.name}"
        )
    family = {"gpt": gpt, "llama": llama, "bert": bert, "vit": vit}[model.family]
    makers: dict[UnitKind, type[nn.Module]] = {
        "embedding": family.Embedding,
        "block": family.Block,
        "head": family.Head,
    }
    unit = makers[kind](model)
    if kind == "block" and model.lora is not None:
        for name in adapted(model):
            cast("Linear", unit.get_submodule(name)).adapt(model.lora)
    return unit


@torch.no_grad()
def initialise_(module: nn.Module, model: Model, unit_index: int, seed: int) -> None:
    """Fill a unit's parameters in place; they depend on the seed, the unit's index and the parameter's name alone.

    Matrices are normal with standard deviation 0.02, those that write to the residual stream divided by
    ``sqrt(2 * num_layers)`` unless the stream is normalised after (bert); gains are 1 and biases 0 (GPT-2's and BERT's
    way). Of an adapter B is 0, so that it starts by changing nothing, and A normal with standard deviation
    ``1/sqrt(inputs)``, so that it keeps the size of what it narrows (Hu et al. 2021 leave it open). Numbers are drawn
    on the CPU in float32, so every device and dtype starts from the same model.
    """
    values = starting_unit(model, unit_index, seed)
    for name, parameter in module.named_parameters():
        parameter.copy_(values(name, parameter.shape))


def starting_unit(model: Model, unit_index: int, seed: int) -> Callable[[str, Sequence[int]], torch.Tensor]:
    """Give what draws the starting values of a unit's parameters, by name and shape.

    A unit of one's own fills itself, so the whole of it exists in host memory as long as what is returned.
    """
    if model.own is None:
        return lambda name, shape: starting_values(name, shape, model, unit_index, seed)
    filled = filled_own(model, unit_index, seed)
    return lambda name, _: filled.get_parameter(name).detach()


def starting_values(name: str, shape: Sequence[int], model: Model, unit_index: int, seed: int) -> torch.Tensor:
    """Draw one parameter's starting values, see `initialise_`; one number for all of them where they are equal."""
    if len(shape) < 2:
        return torch.tensor(0.0 if name.endswith("bias") else 1.0)
    if name.endswith("lora_b"):
        return torch.tensor(0.0)
    adds_up = name.endswith("out.weight") and model.family != "bert"
    std = INIT_STD / math.sqrt(2 * model.num_layers) if adds_up else INIT_STD
    if name.endswith("lora_a"):
        std = 1 / math.sqrt(shape[1])
    generator = torch.Generator().manual_seed(_seed_of(seed, unit_index, name))
    return torch.empty(tuple(shape), dtype=torch.float32, device="cpu").normal_(std=std, generator=generator)


def _seed_of(seed: int, unit_index: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}/{unit_index}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
