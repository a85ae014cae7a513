"""Memory on fake tensors is what the real allocator sees."""

from collections.abc import Iterator

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from cephalo_cli.artifacts import Model
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.models import build_unit, initialise_
from cephalo_cli.profiler.inputs import random_batch
from cephalo_cli.profiler.memory import memory_curve, unit_memory

SEQ_LEN = 128
KINDS: tuple[UnitKind, ...] = ("embedding", "block", "head")
GPT = Model(
    name="tied",
    family="gpt",
    num_layers=2,
    hidden_size=128,
    num_heads=4,
    ffn_size=512,
    vocab_size=1000,
    max_seq_len=256,
    tie_embeddings=True,
)
LLAMA = Model(
    name="grouped",
    family="llama",
    num_layers=2,
    hidden_size=128,
    num_heads=4,
    num_kv_heads=2,
    ffn_size=384,
    vocab_size=1000,
    max_seq_len=256,
)
BERT = Model(
    name="encoder",
    family="bert",
    num_layers=2,
    hidden_size=128,
    num_heads=4,
    ffn_size=512,
    vocab_size=1000,
    max_seq_len=256,
)
VIT = Model(
    name="images",
    family="vit",
    num_layers=2,
    hidden_size=128,
    num_heads=4,
    ffn_size=512,
    image_size=32,
    patch_size=4,
    num_classes=10,
)


@pytest.fixture
def default_dtype() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


def _allocator_peak_bytes(model: Model, kind: UnitKind, microbatch: int) -> int:
    unit = build_unit(model, kind)
    initialise_(unit, model, 0, 0)
    tied_VD = torch.nn.Parameter(torch.zeros(model.vocab_size or 0, model.hidden_size))
    tied = (tied_VD,) if model.tie_embeddings else ()
    parameters = [*unit.parameters(), tied_VD]
    if tied_VD.dtype == torch.float32:
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(lambda done: setattr(done, "grad", None))  # type: ignore[no-untyped-call]
    shape = (microbatch, model.tokens_per_sample(SEQ_LEN), model.hidden_size)
    ahead = random_batch(model, microbatch, SEQ_LEN)

    def run() -> None:
        below = () if kind == "embedding" else (torch.zeros(shape, requires_grad=True),)
        batch = ahead if kind == "block" else random_batch(model, microbatch, SEQ_LEN)
        upstream = torch.ones(()) if kind == "head" else torch.ones(shape)
        end = torch.autograd.graph.get_gradient_edge(unit(*below, batch, *(tied if kind == "head" else ())))
        torch.autograd.backward(end, upstream)
        for parameter in parameters:
            parameter.grad = None

    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    results = recorded.profiler.kineto_results
    now_bytes = peak_bytes = 0
    for event in sorted(results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            now_bytes += event.nbytes()
            peak_bytes = max(peak_bytes, now_bytes)
    return peak_bytes


@pytest.mark.parametrize("model", [GPT, LLAMA, BERT, VIT], ids=lambda model: model.name)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("microbatch", [1, 3])
def test_working_memory_is_exactly_what_the_cpu_allocator_sees(model: Model, kind: UnitKind, microbatch: int) -> None:
    counted = unit_memory(model, seq_len=SEQ_LEN, dtype="float32", kind=kind, microbatch=microbatch)
    assert counted.working_bytes == _allocator_peak_bytes(model, kind, microbatch)


@pytest.mark.usefixtures("default_dtype")
@pytest.mark.parametrize("model", [GPT, LLAMA, BERT], ids=lambda model: model.name)
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_differs_by_the_scratch_inside_cpu_kernels_only(model: Model, kind: UnitKind) -> None:
    counted = unit_memory(model, seq_len=SEQ_LEN, dtype="bfloat16", kind=kind, microbatch=3)
    torch.set_default_dtype(torch.bfloat16)
    measured = _allocator_peak_bytes(model, kind, 3)
    assert 0.85 * measured <= counted.working_bytes <= measured


@pytest.mark.parametrize("model", [GPT, LLAMA, BERT, VIT], ids=lambda model: model.name)
def test_saved_memory_is_what_autograd_packs(model: Model) -> None:
    unit = build_unit(model, "block")
    initialise_(unit, model, 0, 0)
    own = {parameter.untyped_storage().data_ptr() for parameter in unit.parameters()}
    packed: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            packed[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x_BTD = torch.zeros(2, model.tokens_per_sample(SEQ_LEN), model.hidden_size, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = unit(x_BTD, random_batch(model, 2, SEQ_LEN))
    packed[x_BTD.untyped_storage().data_ptr()] = x_BTD.untyped_storage().nbytes()
    counted = unit_memory(model, seq_len=SEQ_LEN, dtype="float32", kind="block", microbatch=2)
    assert kept.requires_grad
    assert counted.saved_bytes == sum(packed.values())


@pytest.mark.parametrize("attention", ["fused", "plain"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_curve_read_from_few_runs_equals_running_every_size(kind: UnitKind, attention: str) -> None:
    sizes = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16]
    chosen = {"fused": "fused", "plain": "plain"}[attention]
    options = {"seq_len": SEQ_LEN, "dtype": "float32", "kind": kind, "attention": chosen}
    curve = memory_curve(GPT, microbatches=sizes, **options)  # type: ignore[arg-type]
    assert curve == [unit_memory(GPT, microbatch=size, **options) for size in sizes]  # type: ignore[arg-type]


def test_plain_attention_saves_the_score_matrix() -> None:
    fused = unit_memory(GPT, seq_len=SEQ_LEN, dtype="float32", kind="block", microbatch=2)
    plain = unit_memory(GPT, seq_len=SEQ_LEN, dtype="float32", kind="block", microbatch=2, attention="plain")
    num_scores = 2 * GPT.num_heads * SEQ_LEN * SEQ_LEN
    assert (
        plain.saved_bytes - fused.saved_bytes >= (4 + 1 + 4) * num_scores
    )  # probabilities, mask, what is left of them


def test_dropout_masks_are_counted() -> None:
    dropping = GPT.model_copy(update={"dropout": 0.1})
    options: dict[str, object] = {"seq_len": SEQ_LEN, "dtype": "float32", "kind": "block", "microbatch": 2}
    without, with_masks = (unit_memory(model, **options).saved_bytes for model in (GPT, dropping))  # type: ignore[arg-type]
    assert with_masks - without == 2 * (2 * SEQ_LEN * GPT.hidden_size)  # two masks of a byte an element


def test_nothing_is_left_behind() -> None:
    unit_memory(GPT, seq_len=SEQ_LEN, dtype="bfloat16", kind="block", microbatch=1)
    assert torch.get_default_dtype() == torch.float32
    assert type(torch.empty(1)) is torch.Tensor
