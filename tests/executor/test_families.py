"""Encoders and images under any plan train like one process: losses and gradient norms, padding and documents too."""

from collections.abc import Sequence

import pytest
import torch

from cephalo_cli.artifacts import Model, Plan
from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.engine import StepEngine
from cephalo_cli.executor.engine_torch import TorchEngine
from cephalo_cli.models import IGNORED_TARGET, ImageBatch, TextBatch
from cephalo_cli.runtime.process import ProcessContext
from tests.executor.plans import SEQ_LEN, make_model, make_plan
from tests.executor.ranks import Job, Ranks, make_engine, make_setting
from tests.executor.reference import OneProcess

NUM_STEPS = 3
LEARNING_RATE = 3e-3
BATCH = 6
BERT = make_model("bert", tie_embeddings=True)
UNTIED_BERT = make_model("bert", num_layers=1, linear_bias=False)
PACKED = make_model("llama", num_kv_heads=2, sliding_window=4)
VIT = Model(
    name="tiny-vit",
    family="vit",
    num_layers=2,
    hidden_size=16,
    num_heads=4,
    ffn_size=24,
    image_size=8,
    patch_size=4,
    num_classes=5,
)

PLANS = {
    "bert, one rank": make_plan(BERT, [[4, 2]]),
    "bert, three ranks": make_plan(BERT, [[2, 1], [2], [1]], [0.2, 0.7, 0.1], recompute=[True, False, True]),
    "bert, a rank without samples": make_plan(BERT, [[3, 3], []], [0.0, 1.0], recompute=False),
    "bert, microbatch-major": make_plan(BERT, [[2, 1], [1, 2]], [0.4, 0.6], schedule="microbatch-major"),
    "bert, replicated": make_plan(BERT, [[2, 1], [3]], schedule="replicated"),
    "bert, its own decoder": make_plan(UNTIED_BERT, [[2, 1], [3]], [0.3, 0.7]),
    "llama, packed documents and windows": make_plan(PACKED, [[2, 1], [3]], [0.3, 0.7], recompute=[True, False]),
    "vit, one rank": make_plan(VIT, [[4, 2]], recompute=False),
    "vit, three ranks": make_plan(VIT, [[2, 1], [2], [1]], [0.2, 0.0, 0.8], recompute=[True, False, True]),
    "vit, microbatch-major": make_plan(VIT, [[2, 1], [1, 2]], [0.4, 0.6], schedule="microbatch-major"),
}
Outcome = list[tuple[float | None, float | None]]


def make_samples(model: Model, step: int, first: int, size: int) -> TextBatch | ImageBatch:
    """Some of the six samples of a step, with very different numbers of counted targets."""
    generator = torch.Generator().manual_seed(step)
    rows, samples = slice(first, first + size), tuple(range(first, first + size))
    if model.family == "vit":
        pixels = torch.randn(BATCH, 3, 8, 8, generator=generator)
        labels = torch.randint(5, (BATCH,), generator=generator)
        labels[4] = IGNORED_TARGET
        return ImageBatch(samples=samples, images_BCHW=pixels[rows], labels_B=labels[rows])
    tokens = torch.randint(260, (BATCH, SEQ_LEN), generator=generator)
    places = torch.arange(SEQ_LEN)
    lengths = torch.tensor([[SEQ_LEN], [5], [9], [SEQ_LEN], [0], [2]])
    is_real, starts = places < lengths, torch.tensor([[3], [7], [11], [1], [6], [9]])
    targets = tokens.where(is_real & (places % 3 == 1), IGNORED_TARGET)
    if model.family == "llama":
        documents = (places >= starts).long() + (places >= starts + 3).long()
        return TextBatch(
            samples=samples, tokens_BT=tokens[rows], targets_BT=targets[rows], documents_BT=documents[rows]
        )
    return TextBatch(
        samples=samples,
        tokens_BT=tokens[rows],
        targets_BT=targets[rows],
        attention_mask_BT=is_real[rows],
        types_BT=(places >= starts).long()[rows],
    )


def run_rank(context: ProcessContext, job: Job) -> Outcome:
    """Run all steps on one rank."""
    plan = job.plan
    engine: StepEngine = (
        make_engine(context, job) if job.options.engine == "cephalo" else TorchEngine(make_setting(context, job))
    )
    first = sum(sum(before.microbatch_sizes) for before in plan.ranks[: context.rank])
    outcome: Outcome = []
    for step in range(1, NUM_STEPS + 1):
        batch, start = [], first
        for size in plan.ranks[context.rank].microbatch_sizes:
            batch.append(make_samples(plan.model, step, start, size))
            start += size
        count = make_samples(plan.model, step, 0, BATCH).num_counted
        numbers, _ = engine.run_step(batch, num_tokens=count, step=step)
        outcome.append((numbers.loss, numbers.grad_norm))
    engine.close()
    return outcome


def run_reference(model: Model) -> Outcome:
    """The same in one process, one batch, plain PyTorch."""
    training = OneProcess(model, learning_rate=LEARNING_RATE)
    return [training.step(make_samples(model, step, 0, BATCH)) for step in range(1, NUM_STEPS + 1)]


def check(names: Sequence[str], outcomes: Sequence[list[Outcome]], plans: Sequence[Plan]) -> None:
    references: dict[str, Outcome] = {}
    for name, outcome, plan in zip(names, outcomes, plans, strict=True):
        key = plan.model.model_dump_json()
        if key not in references:
            references[key] = run_reference(plan.model)
        for rank in outcome:
            for step, (found, wanted) in enumerate(zip(rank, references[key], strict=True)):
                assert found == pytest.approx(wanted, rel=1e-10, abs=0), (name, step)


def test_every_family_trains_like_one_process(ranks: Ranks) -> None:
    options = TrainOptions(data="random", num_steps=NUM_STEPS, learning_rate=LEARNING_RATE)
    jobs = [Job(plan=plan, options=options, run=run_rank) for plan in PLANS.values()]
    check(list(PLANS), ranks.run(jobs), list(PLANS.values()))


@pytest.mark.parametrize("engine", ["fsdp2", "ddp"])
def test_torch_engines_train_every_family_like_one_process(engine: str, ranks: Ranks) -> None:
    models = {"bert": BERT, "llama": PACKED, "vit": VIT}
    options = TrainOptions.model_validate(
        {"data": "random", "num_steps": NUM_STEPS, "learning_rate": LEARNING_RATE, "engine": engine}
    )
    plans = [make_plan(model, [[2, 1], [1, 2]], recompute=[True, False]) for model in models.values()]
    jobs = [Job(plan=plan, options=options, run=run_rank) for plan in plans]
    check([f"{engine}, {name}" for name in models], ranks.run(jobs), plans)
