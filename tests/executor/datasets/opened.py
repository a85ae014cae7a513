"""Data opened the way a training opens it, and a look at its samples."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cephalo_cli.artifacts import Model
from cephalo_cli.executor.data import Microbatch, Source
from cephalo_cli.executor.datasets.opening import open_source
from cephalo_cli.executor.datasets.options import DataOptions, check_data_options
from cephalo_cli.models import TextBatch
from tests.executor.plans import make_model


def open_data(
    data: Path | str,
    *,
    seq_len: int = 4,
    seed: int = 0,
    family: str = "gpt",
    model: dict[str, Any] | None = None,
    notice: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Source:
    """Open data for a tiny model; ``model`` changes its fields."""
    wanted = DataOptions(data=str(data), **options)
    shape = make_model(family, **(model or {}))
    check_data_options(wanted, shape.family)
    return open_source(wanted, shape, seq_len=seq_len, seed=seed, timeout_s=5.0, notice=notice)


def tokens_of(source: Source, index: int) -> list[int]:
    """A sample's tokens and the last one's target; 0 where nothing counts."""
    row = source.row(index, 0)
    return [*row["tokens_BT"].tolist(), max(0, int(row["targets_BT"][-1]))]


def counted(source: Source, index: int) -> list[bool]:
    """Which targets of a sample count."""
    return [target != -100 for target in source.row(index, 0)["targets_BT"].tolist()]


def text_of(microbatch: Microbatch) -> TextBatch:
    """A microbatch that is text."""
    assert isinstance(microbatch, TextBatch)
    return microbatch


def logits(modules: list[Any], model: Model, batch: Microbatch) -> torch.Tensor:
    """Scores of all targets."""
    x = modules[0](batch)
    for block in modules[1:-1]:
        x = block(x, batch)
    scores: torch.Tensor = modules[-1].logits(x, *((modules[0].matrix,) if model.tie_embeddings else ()))
    return scores
