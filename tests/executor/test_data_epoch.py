"""One epoch of real images and real text through the real trainer, on two ranks that differ in everything.

What is asked after it, of data that was kept back: ViT knows at least 80 % of 359 images of digits (chance is 10 %,
found were 87 %), BERT finds at least 36 % of the masked bytes of text (29 % are spaces, found were 39 %).
"""

import argparse
import inspect
import textwrap
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from cephalo_cli.artifacts import Model
from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.data import Batches, Source
from cephalo_cli.executor.datasets.opening import open_source, split_source
from cephalo_cli.executor.pretrained import Pretrained
from tests.executor.datasets.opened import logits
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks, Trained, train_job
from tests.executor.test_pretrained import filled_modules

VIT = make_model(
    "vit",
    name="digits",
    num_layers=2,
    hidden_size=128,
    ffn_size=256,
    image_size=8,
    patch_size=4,
    num_classes=10,
    num_channels=1,
    vocab_size=None,
    max_seq_len=None,
)
BERT = make_model("bert", num_layers=1, hidden_size=64, ffn_size=128, max_seq_len=8)
HELD_BACK = 0.2


def train_for_an_epoch(
    ranks: Ranks, model: Model, split: list[list[int]], folder: Path, seq_len: int, **options: Any
) -> tuple[Trained, list[Any], Source]:
    """Train, export, and read the export back; gives the modules with what was kept back."""
    wanted = TrainOptions(
        num_steps=1, dtype="float32", validation_fraction=HELD_BACK, export=str(folder / "export"), **options
    )
    training, kept_back = split_source(open_source(wanted, model, seq_len=seq_len, seed=0), HELD_BACK)
    num_steps = -(-training.num_samples // sum(map(sum, split)))
    schedule = {"num_steps": num_steps, "warmup_steps": num_steps // 10, "lr_schedule": "cosine"}
    wanted = wanted.model_copy(update=schedule)
    plan = make_plan(model, split, [0.3, 0.7], seq_len=seq_len, recompute=[True, False])
    (trained, *_), *_ = ranks.run([Job(plan=plan, options=wanted, run=train_job)])
    assert isinstance(trained, Trained), trained
    assert kept_back is not None
    modules = filled_modules(Pretrained(folder / "export", model), model)
    return trained, modules, kept_back


@torch.no_grad()
def accuracy(modules: list[Any], model: Model, source: Source) -> float:
    """Part of the targets that have the highest score."""
    num_right = num_counted = 0
    for position in range(0, source.num_samples, 100):
        (batch,) = Batches(source, [[100]], None).of_rank(0, position)
        scores = logits(modules, model, batch)
        num_right += int((scores.argmax(-1) == batch.targets).sum())
        num_counted += batch.num_counted
    return num_right / num_counted


def test_vit_learns_digits_in_one_epoch(ranks: Ranks, tmp_path: Path) -> None:
    digits = load_digits()
    np.save(tmp_path / "images.npy", (digits.images * 15.9375).astype(np.uint8))
    np.save(tmp_path / "labels.npy", digits.target)
    trained, modules, kept_back = train_for_an_epoch(
        ranks, VIT, [[2, 1], [1]], tmp_path, 5, data=str(tmp_path), learning_rate=1e-3
    )
    steps = trained.result.report.steps
    assert [step.tokens for step in steps] == [4] * 359 + [2]
    assert [step.tokens_per_s * step.step_s / 5 for step in steps] == pytest.approx([4] * 359 + [2])
    assert trained.result.report.tokens_per_s == pytest.approx(5 * trained.result.report.samples_per_s)
    assert steps[-1].validation_loss < steps[0].loss / 2
    assert kept_back.num_samples == 359
    assert accuracy(modules, VIT, kept_back) >= 0.8


def test_bert_learns_masked_text_in_one_epoch(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(map(inspect.getsource, (argparse, inspect, textwrap, typing))))
    trained, modules, kept_back = train_for_an_epoch(
        ranks,
        BERT,
        [[64, 32], [32]],
        tmp_path,
        8,
        data=str(tmp_path / "text.txt"),
        mask_rate=0.3,
        learning_rate=1e-2,
    )
    report = trained.result.report
    assert report.steps[0].tokens < 0.4 * 128 * 8
    assert report.steps[0].tokens_per_s == pytest.approx(128 * 8 / report.steps[0].step_s)
    assert report.tokens_per_s == pytest.approx(128 * 8 / report.step_s)
    assert accuracy(modules, BERT, kept_back) >= 0.36
