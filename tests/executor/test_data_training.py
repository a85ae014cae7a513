"""Prompts with completions, and packed documents: what is learned is what plain torch learns from each alone."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.data import Batches, Source
from cephalo_cli.models import build_unit, initialise_
from cephalo_cli.units import model_units
from tests.executor.datasets.opened import logits, open_data, text_of
from tests.executor.datasets.tokenizers_made import make_bpe
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks, train_job
from tests.executor.reference import shuffled

CHAT = make_model("llama", num_layers=2, vocab_size=400, tie_embeddings=True)

PAIRS = [
    (f"{word} " * (1 + number % 5), f"{word.upper()} {number}\n") for number, word in enumerate(("if", "print") * 9)
]
SEQ_LEN, BATCH, RATE = 12, 5, 0.3


def test_prompts_with_completions_train_like_completions_alone(ranks: Ranks, tmp_path: Path) -> None:
    """Losses of a real tokenizer's tokens equal plain torch, step by step, in float64."""
    tokenizer = make_bpe(tmp_path / "tokenizer")
    (tmp_path / "chat.jsonl").write_text(
        "".join(json.dumps({"prompt": prompt, "completion": completion}) + "\n" for prompt, completion in PAIRS)
    )
    options = TrainOptions(
        data=str(tmp_path / "chat.jsonl"),
        tokenizer=str(tokenizer),
        cache_dir=str(tmp_path / "cache"),
        num_steps=8,
        optimizer="sgd",
        learning_rate=RATE,
        weight_decay=0.0,
        clip=None,
    )
    plans = [make_plan(CHAT, [[2, 1], [], [2]], [0.5, 0.5, 0.0]), make_plan(CHAT, [[5]])]
    outcomes = ranks.run([Job(plan=plan, options=options, run=train_job) for plan in plans])
    expected = list(plain_losses(Tokenizer.from_file(str(tokenizer / "tokenizer.json"))))
    assert expected[-1] < expected[0] - 0.1
    for (trained, *_), _ in zip(outcomes, plans, strict=True):
        assert trained.losses == pytest.approx(expected, rel=1e-10, abs=0)


def plain_losses(tokenizer: Tokenizer) -> Iterator[float]:
    """Train on completions one record at a time, with nothing of the executor."""
    modules = []
    for unit in model_units(CHAT):
        module = build_unit(CHAT, unit.kind).double()
        initialise_(module, CHAT, unit.index, 0)
        modules.append(module)
    parameters = [parameter for module in modules for parameter in module.parameters()]
    for samples in shuffled(len(PAIRS), BATCH, 8, seed=0):
        losses = []
        for sample in samples:
            prompt, completion = (tokenizer.encode(text).ids for text in PAIRS[sample])
            whole = [*prompt, *completion, 0]
            cut = max(0, len(whole) - SEQ_LEN - 1)
            row, num_prompt = whole[cut:], len(prompt) - cut
            source = text_of(Batches(_OneRow(row), [[1]], None).of_rank(0, 0)[0])
            scores = logits(modules, CHAT, source)[0]
            losses.append(
                functional.cross_entropy(scores[num_prompt - 1 :], torch.tensor(row[num_prompt:]), reduction="none")
            )
        loss = torch.cat(losses).mean()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=RATE)
        yield loss.item()


class _OneRow:
    """A record as long as it is: without padding."""

    num_samples = 1
    digest = ""

    def __init__(self, row: list[int]) -> None:
        self._row = row

    def row(self, _index: int, _epoch: int) -> dict[str, Any]:
        return {"tokens_BT": np.array(self._row[:-1]), "targets_BT": np.array(self._row[1:])}


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_packed_documents_are_learned_as_if_each_were_alone(family: str, tmp_path: Path) -> None:
    texts = ["one", "a second one", "b", "and a last document"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    model = make_model(family, max_seq_len=48)
    modules = []
    for unit in model_units(model):
        module = build_unit(model, unit.kind).double()
        initialise_(module, model, unit.index, 0)
        modules.append(module)

    def loss(source: Source) -> tuple[float, int]:
        (batch,) = Batches(source, [[source.num_samples]], None).of_rank(0, 0)
        scores = logits(modules, model, batch)
        return (
            functional.cross_entropy(scores.flatten(0, 1), batch.targets.flatten(), reduction="sum").item(),
            batch.num_counted,
        )

    with torch.no_grad():
        packed = loss(open_data(tmp_path / "a.jsonl", seq_len=48, end_token="256", model={"max_seq_len": 48}))
        run_on = loss(
            open_data(tmp_path / "a.jsonl", seq_len=48, end_token="256", document_mask=False, model={"max_seq_len": 48})
        )
        alone = [loss(_OneRow([*text.encode(), 256])) for text in texts]
    assert packed[0] == pytest.approx(sum(each for each, _ in alone), rel=1e-12)
    assert packed[1] == sum(number for _, number in alone) == run_on[1] - len(texts) + 1
    assert abs(run_on[0] - packed[0]) > 1e-3


def test_the_next_token_is_in_the_sample_or_the_one_after(tmp_path: Path) -> None:
    """Windows of tokenised text overlap by the token that both need."""
    (tmp_path / "a.txt").write_text("some text to be cut " * 9)
    source = open_data(tmp_path / "a.txt", seq_len=7)
    for one, other in pairwise(source.row(index, 0) for index in range(source.num_samples)):
        assert one["targets_BT"][-1] == other["tokens_BT"][0]
