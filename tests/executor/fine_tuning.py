"""Fine-tuning a tiny GPT-2 as anyone would, with a tokenizer of its own: what our ranks must equal."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional

from tests.executor.plans import SEQ_LEN
from tests.executor.reference import by_decay, shuffled

SHARES = [0.3, 0.7, 0.0]
SPLIT = [[2, 1], [], [2]]
BATCH = 5
RATE = 1e-2


def with_tokenizer(folder: Path, text: Path) -> None:
    """Train a byte-level tokenizer on the text, and put it into the folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train([str(text)], trainers.BpeTrainer(vocab_size=260, initial_alphabet=alphabet, show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))


def fine_tune(model: Any, tokens: list[int], *, num_steps: int, rate: float = RATE) -> list[float]:
    """Train with transformers and torch alone, in one process; gives the losses."""
    parameters = [each for each in model.train().parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(by_decay(parameters), lr=rate, betas=(0.9, 0.95))
    num_samples = -(-(len(tokens) - 1) // SEQ_LEN)
    ids = torch.tensor(tokens + [0] * SEQ_LEN)
    targets = torch.tensor(tokens + [-100] * SEQ_LEN)
    losses = []
    for samples in shuffled(num_samples, BATCH, num_steps, seed=0):
        rows = torch.stack([ids[sample * SEQ_LEN :][:SEQ_LEN] for sample in samples])
        after = torch.stack([targets[sample * SEQ_LEN + 1 :][:SEQ_LEN] for sample in samples])
        loss = functional.cross_entropy(model(input_ids=rows).logits.flatten(0, 1), after.flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        norm = torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
        for each in parameters:
            if each.grad is not None and norm > 1:
                each.grad /= norm  # torch's own clipping adds 1e-6 to the norm
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses
