"""The training that every plan must equal: one process, one batch, plain PyTorch, nothing of the executor."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from cephalo_cli.artifacts import Model
from cephalo_cli.models import DropoutKey, ImageBatch, TextBatch, build_unit, initialise_
from cephalo_cli.units import model_units


@dataclass
class Reference:
    losses: list[float]
    grad_norms: list[float]
    modules: list[Any]
    moments: dict[int, dict[str, torch.Tensor]]


def write_text(folder: Path, num_bytes: int = 600) -> Path:
    """A text with some structure to learn."""
    words = ["alpha ", "beta ", "gamma ", "delta ", "über ", "\n"]
    text = "".join(words[(7 * position * position + position // 3) % len(words)] for position in range(num_bytes))
    path = folder / "text.txt"
    path.write_bytes(text.encode()[:num_bytes])
    return path


def batches(path: Path, seq_len: int, batch_size: int, num_steps: int, seed: int) -> list[list[int]]:
    """Which windows each step has: permutations of the epochs; the last step of an epoch has what is left."""
    return shuffled(-(-(len(path.read_bytes()) - 1) // seq_len), batch_size, num_steps, seed)


def shuffled(num_samples: int, batch_size: int, num_steps: int, seed: int) -> list[list[int]]:
    """Which samples each step has."""
    steps: list[list[int]] = []
    epoch = 0
    while len(steps) < num_steps:
        digest = hashlib.blake2b(f"{seed}/epoch/{epoch}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        order = torch.randperm(num_samples, generator=generator).tolist()
        steps += [order[start : start + batch_size] for start in range(0, num_samples, batch_size)]
        epoch += 1
    return steps[:num_steps]


class OneProcess:
    """A model in one process, trained on one batch a step."""

    def __init__(
        self,
        model: Model,
        *,
        learning_rate: float,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        momentum: float | None = None,
    ) -> None:
        self.modules: list[Any] = []
        for unit in model_units(model):
            module = build_unit(model, unit.kind, unit.index).to(dtype)
            initialise_(module, model, unit.index, seed)
            self.modules.append(module)
        self.tied = (self.modules[0].matrix,) if model.tie_embeddings else ()
        self.parameters = trained_parameters(model, self.modules)
        groups = by_decay(self.parameters)
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))
        if momentum is not None:
            self.optimizer = torch.optim.SGD(groups, lr=learning_rate, momentum=momentum)

    def step(
        self,
        batch: TextBatch | ImageBatch,
        *,
        clip: float | None = 1.0,
        keys: Sequence[DropoutKey | None] | None = None,
    ) -> tuple[float, float]:
        """Update once; gives the loss and the gradient's norm before it is clipped. Without keys nothing is dropped."""
        keys = keys or [None] * len(self.modules)
        x = self.modules[0](batch, keys[0])
        for block, key in zip(self.modules[1:-1], keys[1:-1], strict=True):
            x = block(x, batch, key)
        loss = self.modules[-1](x, batch, *self.tied) / batch.num_counted
        self.optimizer.zero_grad()
        loss.backward()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        grad_norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt().item()
        if clip is not None and grad_norm > clip:
            for gradient in gradients:
                gradient.mul_(clip / grad_norm)
        self.optimizer.step()
        return loss.item(), grad_norm


def by_decay(parameters: Sequence[torch.nn.Parameter], weight_decay: float = 0.1) -> list[dict[str, Any]]:
    """Groups of an optimizer: only matrices decay."""
    return [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim < 2], "weight_decay": 0.0},
    ]


def train_reference(
    model: Model,
    path: Path,
    *,
    seq_len: int,
    batch_size: int,
    num_steps: int,
    seed: int = 0,
    learning_rate: float = 3e-3,
    clip: float | None = 1.0,
    dtype: torch.dtype = torch.float64,
    rate: Callable[[int], float] | None = None,
    momentum: float | None = None,
    counted: Sequence[bool] | None = None,
) -> Reference:
    """Train; ``rate`` is the learning rate by step, ``momentum`` makes it SGD, ``counted`` says which tokens count."""
    training = OneProcess(model, dtype=dtype, seed=seed, learning_rate=learning_rate, momentum=momentum)
    tokens = torch.tensor(list(path.read_bytes()))
    targets = tokens if counted is None else tokens.where(torch.tensor(counted), -100)
    targets = torch.cat((targets, torch.full((seq_len,), -100)))  # the last window is padded
    tokens = torch.cat((tokens, torch.zeros(seq_len, dtype=torch.int64)))
    reference = Reference([], [], training.modules, {})
    for step, windows in enumerate(batches(path, seq_len, batch_size, num_steps, seed), start=1):
        rows = torch.stack([tokens[window * seq_len : (window + 1) * seq_len] for window in windows])
        after = torch.stack([targets[window * seq_len + 1 : (window + 1) * seq_len + 1] for window in windows])
        samples = tuple(range(len(windows)))
        keys = [DropoutKey(seed=seed, step=step, unit=unit, samples=samples) for unit in range(len(training.modules))]
        for group in training.optimizer.param_groups:
            group["lr"] = learning_rate if rate is None else rate(step)
        batch = TextBatch(samples=samples, tokens_BT=rows, targets_BT=after)
        loss, grad_norm = training.step(batch, clip=clip, keys=keys)
        reference.losses.append(loss)
        reference.grad_norms.append(grad_norm)
    reference.moments = {id(parameter): training.optimizer.state[parameter] for parameter in training.parameters}
    return reference


def trained_parameters(model: Model, modules: list[Any]) -> list[torch.nn.Parameter]:
    """Freeze what the model freezes, and list the rest."""
    for unit, module in zip(model_units(model), modules, strict=True):
        for name, parameter in module.named_parameters():
            patterns = model.frozen or ()
            parameter.requires_grad_(not any(fnmatch(f"{unit.name}.{name}", pattern) for pattern in patterns))
    return [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]
