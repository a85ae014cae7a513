"""Settings of Hugging Face configurations that are not supported, each with its exact message."""

from pathlib import Path
from typing import Any

import pytest

from cephalo_cli import catalog
from cephalo_cli.errors import ArtifactError
from tests.catalog.configs import BERT, GPT2, LLAMA3, MISTRAL, QWEN25, VIT, written

MIXED = ["full_attention"] * 12 + ["sliding_attention"] * 12
EXPERTS, ALIBI = "mixtures of experts are not supported", "ALiBi positions are not supported"
YARN = {"rope_type": "yarn", "factor": 4.0}
ACTIVATIONS = "gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, silu, swish"
ROPE_TYPES = "default, linear, llama3, yarn"


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        (
            GPT2,
            {"model_type": "opt"},
            "model_type: model type 'opt' is not supported, expected one of gpt2, llama, mistral, qwen2, bert, vit",
        ),
        (
            GPT2,
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx: True is not supported, expected False",
        ),
        (GPT2, {"scale_attn_weights": False}, "scale_attn_weights: False is not supported, expected True"),
        (GPT2, {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn: True is not supported, expected False"),
        (
            GPT2,
            {"activation_function": "relu"},
            f"activation_function: 'relu' is not supported, expected one of {ACTIVATIONS}",
        ),
        (GPT2, {"n_ctx": 512}, "n_ctx: differs from n_positions"),
        (
            GPT2,
            {"embd_pdrop": 0.0},
            "embd_pdrop: 0.0 differs from resid_pdrop 0.1; one dropout probability is supported",
        ),
        (GPT2, {"n_layer": "12"}, 'n_layer: found "12", expected a whole number'),
        (GPT2, {"n_embd": 100}, "n_embd: found 100, expected a multiple of num_heads, which is 12"),
        (GPT2, {"add_cross_attention": True}, "add_cross_attention: cross attention is not supported"),
        (LLAMA3, {"hidden_act": "relu2"}, f"hidden_act: 'relu2' is not supported, expected one of {ACTIVATIONS}"),
        (
            LLAMA3,
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            f"rope_scaling: rope_type: 'dynamic' is not supported, expected one of {ROPE_TYPES}",
        ),
        (
            LLAMA3,
            {"rope_scaling": {"type": "longrope", "factor": 2.0}},
            f"rope_scaling: rope_type: 'longrope' is not supported, expected one of {ROPE_TYPES}",
        ),
        (LLAMA3, {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: factor: is missing"),
        (
            LLAMA3,
            {"rope_scaling": {**YARN, "mscale": 1.0}},
            "rope_scaling: mscale: 1.0 is not supported for type 'yarn'",
        ),
        (
            LLAMA3,
            {"rope_scaling": {**YARN, "truncate": False}},
            "rope_scaling: truncate: False is not supported for type 'yarn', expected True",
        ),
        (
            LLAMA3,
            {"rope_scaling": {**YARN, "factor": 0.5}},
            "rope_scaling.factor: found 0.5, expected a number of at least 1",
        ),
        (
            LLAMA3,
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters: different positions in different layers are not supported",
        ),
        (
            LLAMA3,
            {"rope_scaling": YARN, "rope_parameters": YARN},
            "rope_scaling: says again what rope_parameters says",
        ),
        (
            LLAMA3,
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor: heads that are turned in part are not supported, expected 1.0",
        ),
        (LLAMA3, {"quantization_config": {"bits": 4}}, "quantization_config: quantised weights are not supported"),
        (LLAMA3, {"attention_dropout": 0.1}, "attention_dropout: 0.1 is not supported, expected 0.0 or None"),
        (LLAMA3, {"num_local_experts": 8}, f"num_local_experts: {EXPERTS}"),
        (LLAMA3, {"num_experts": 8}, f"num_experts: {EXPERTS}"),
        (LLAMA3, {"alibi": True}, f"alibi: {ALIBI}"),
        (
            LLAMA3,
            {"auto_map": {"AutoModel": "modeling.Mine"}},
            "auto_map: the model is code of its own, which is never run",
        ),
        (LLAMA3, {"logit_scale": 0.5}, "logit_scale: is a setting this program does not know"),
        (MISTRAL, {"sliding_window": "all"}, "sliding_window: found 'all', expected a number of tokens"),
        (
            QWEN25,
            {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 12},
            "max_window_layers: a sliding window in some layers alone is not supported, expected all or none",
        ),
        (
            QWEN25,
            {"use_sliding_window": True, "layer_types": MIXED},
            "layer_types: a sliding window in some layers alone is not supported, expected all or none",
        ),
        (
            QWEN25,
            {"layer_types": MIXED[12:] * 2},
            "layer_types: has sliding windows, but use_sliding_window is false",
        ),
        (QWEN25, {"layer_types": MIXED[:12]}, "layer_types: names 12 layers, but there are 24"),
        (QWEN25, {"use_mrope": True}, "use_mrope: True is not supported, expected False"),
        (
            BERT,
            {"position_embedding_type": "relative_key"},
            "position_embedding_type: 'relative_key' is not supported, expected 'absolute'",
        ),
        (BERT, {"type_vocab_size": 3}, "type_vocab_size: 3 is not supported, expected 2"),
        (BERT, {"is_decoder": True}, "is_decoder: encoders used as decoders are not supported"),
        (BERT, {"pruned_heads": {"0": [1]}}, "pruned_heads: pruned heads are not supported"),
        (
            VIT,
            {"problem_type": "multi_label_classification"},
            (
                "problem_type: 'multi_label_classification' is not supported, expected None or "
                "'single_label_classification'"
            ),
        ),
        (VIT, {"image_size": 225}, "image_size: found 225, expected a multiple of patch_size, which is 16"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    base: dict[str, Any], change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, {**base, **change})
    with pytest.raises(ArtifactError) as caught:
        catalog.model_from_hf_config(path)
    assert str(caught.value) == f"{path}: {message}"


def test_a_missing_setting_is_named(tmp_path: Path) -> None:
    settings = {key: value for key, value in LLAMA3.items() if key != "intermediate_size"}
    with pytest.raises(ArtifactError, match=r"config\.json: intermediate_size: is missing"):
        catalog.model_from_hf_config(written(tmp_path, settings))
