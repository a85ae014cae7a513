"""Units and their sizes, against the parameter counts that are published for well-known models."""

from typing import Any

import pytest

from cephalo_cli.artifacts import Model
from cephalo_cli.units import DTYPE_BYTES, boundary_bytes, model_units, num_parameters


def gpt2(**more: Any) -> Model:
    shape: dict[str, Any] = {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "ffn_size": 3072}
    text = {"vocab_size": 50257, "max_seq_len": 1024, "tie_embeddings": True}
    return Model(**{"name": "gpt2", "family": "gpt", **shape, **text, **more})


def llama(**more: Any) -> Model:
    return Model(**{"name": "llama", "family": "llama", **more})


def vit_b16() -> Model:
    return Model(
        name="vit-b-16",
        family="vit",
        num_layers=12,
        hidden_size=768,
        num_heads=12,
        ffn_size=3072,
        image_size=224,
        patch_size=16,
        num_classes=1000,
    )


@pytest.mark.parametrize(
    ("model", "published"),
    [
        # Hugging Face's count of gpt2
        (gpt2(), 124_439_808),
        # and of gpt2-xl
        (gpt2(num_layers=48, hidden_size=1600, num_heads=25, ffn_size=6400), 1_557_611_200),
        # Touvron et al. 2023: Llama 2 7B
        (
            llama(num_layers=32, hidden_size=4096, num_heads=32, ffn_size=11008, vocab_size=32000, max_seq_len=4096),
            6_738_415_616,
        ),
        # Llama 3 8B: grouped key and value heads
        (
            llama(
                num_layers=32,
                hidden_size=4096,
                num_heads=32,
                num_kv_heads=8,
                ffn_size=14336,
                vocab_size=128256,
                max_seq_len=8192,
            ),
            8_030_261_248,
        ),
        # Llama 3.2 1B: the same with a tied head
        (
            llama(
                num_layers=16,
                hidden_size=2048,
                num_heads=32,
                num_kv_heads=8,
                ffn_size=8192,
                vocab_size=128256,
                max_seq_len=131072,
                tie_embeddings=True,
            ),
            1_235_814_400,
        ),
        # Qwen2 0.5B: biases at query, key and value only
        (
            llama(
                num_layers=24,
                hidden_size=896,
                num_heads=14,
                num_kv_heads=2,
                ffn_size=4864,
                vocab_size=151936,
                max_seq_len=131072,
                tie_embeddings=True,
                qkv_bias=True,
            ),
            494_032_768,
        ),
        # Hugging Face's BertForMaskedLM, bert-base-uncased
        (
            Model(
                name="bert-base",
                family="bert",
                num_layers=12,
                hidden_size=768,
                num_heads=12,
                ffn_size=3072,
                vocab_size=30522,
                max_seq_len=512,
                tie_embeddings=True,
            ),
            109_514_298,
        ),
        # torchvision's vit_b_16
        (vit_b16(), 86_567_656),
    ],
    ids=["gpt2", "gpt2-xl", "llama-2-7b", "llama-3-8b", "llama-3.2-1b", "qwen2-0.5b", "bert-base", "vit-b-16"],
)
def test_published_parameter_counts(model: Model, published: int) -> None:
    assert num_parameters(model) == published
    assert sum(unit.num_parameters for unit in model_units(model)) == published


def test_units_are_listed_in_forward_order() -> None:
    units = model_units(gpt2(num_layers=2))
    assert [unit.name for unit in units] == ["embedding", "block.0", "block.1", "head"]
    assert [unit.kind for unit in units] == ["embedding", "block", "block", "head"]
    assert [unit.index for unit in units] == [0, 1, 2, 3]


def test_a_tied_head_borrows_the_embedding_and_stores_no_matrix() -> None:
    tied, untied = model_units(gpt2()), model_units(gpt2(tie_embeddings=False))
    assert [unit.borrows for unit in tied] == [None] * 13 + [0]
    assert [unit.borrows for unit in untied] == [None] * 14
    assert untied[-1].num_parameters - tied[-1].num_parameters == 50257 * 768
    assert tied[-1].num_parameters == 2 * 768


def test_one_block_by_hand() -> None:
    # 2 norms of weight and bias, 4 projections h x h and the MLP's h x f and f x h, all with biases
    hidden, ffn = 8, 20
    by_hand = 2 * 2 * hidden + 4 * (hidden * hidden + hidden) + (hidden * ffn + ffn) + (ffn * hidden + hidden)
    model = gpt2(num_layers=1, hidden_size=hidden, num_heads=2, ffn_size=ffn)
    assert model_units(model)[1].num_parameters == by_hand
    without = gpt2(num_layers=1, hidden_size=hidden, num_heads=2, ffn_size=ffn, linear_bias=False)
    assert model_units(without)[1].num_parameters == by_hand - 5 * hidden - ffn


def test_heads_of_their_own_width() -> None:
    # queries 4 x 6, keys and values 2 x 6 each, from and to a stream of 8; gated MLP; two RMS norms
    model = llama(
        num_layers=1,
        hidden_size=8,
        num_heads=4,
        num_kv_heads=2,
        head_size=6,
        ffn_size=5,
        vocab_size=3,
        max_seq_len=4,
    )
    assert model_units(model)[1].num_parameters == 8 * 24 + 2 * 8 * 12 + 24 * 8 + 3 * 8 * 5 + 2 * 8


def test_boundaries() -> None:
    assert boundary_bytes(gpt2(), 512, "float32", 3) == 3 * 512 * 768 * 4
    assert boundary_bytes(gpt2(), 512, "bfloat16", 3) == 3 * 512 * 768 * 2
    assert boundary_bytes(gpt2(), 512, "float64", 0) == 0
    assert boundary_bytes(vit_b16(), 1, "float16", 2) == 2 * 197 * 768 * 2


def test_bytes_of_every_dtype() -> None:
    assert dict(DTYPE_BYTES) == {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
