"""Models from names, files and Hugging Face configurations."""

import json
from pathlib import Path
from typing import Any

import pytest

from cephalo_cli import catalog
from cephalo_cli.artifacts import Model, store
from cephalo_cli.artifacts.model import RopeScaling
from cephalo_cli.catalog.data import model_records
from cephalo_cli.errors import ArtifactError
from cephalo_cli.units import num_parameters

GPT2: dict[str, Any] = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
LLAMA3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
LLAMA31: dict[str, Any] = {
    **LLAMA3,
    "eos_token_id": [128001, 128008, 128009],
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
MISTRAL: dict[str, Any] = {
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
QWEN25: dict[str, Any] = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN25_7B: dict[str, Any] = {
    **QWEN25,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}
BERT: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
VIT: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.0,
    "encoder_stride": 16,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 768,
    "id2label": {str(label): f"class {label}" for label in range(1000)},
    "image_size": 224,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "model_type": "vit",
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_hidden_layers": 12,
    "patch_size": 16,
    "qkv_bias": True,
}
CONFIGS = {
    "gpt2": GPT2,
    "llama-3-8b": LLAMA3,
    "llama-3.1-8b": LLAMA31,
    "mistral-7b": MISTRAL,
    "qwen2.5-0.5b": QWEN25,
    "qwen2.5-7b": QWEN25_7B,
    "bert-base-uncased": BERT,
    "vit-base": VIT,
}


def _write(folder: Path, settings: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_configuration_is_the_catalogs_model(name: str, tmp_path: Path) -> None:
    read = catalog.model_from_hf_config(_write(tmp_path, CONFIGS[name]))
    known = catalog.model(name)
    assert num_parameters(read) == model_records()[name].num_parameters
    for field in ("family", "hidden_size", "kv_heads", "width_of_head", "ffn_size", "max_seq_len", "eps"):
        assert getattr(read, field) == getattr(known, field), field
    assert (read.mlp_activation, read.sliding_window, read.rope_scaling) == (
        known.mlp_activation,
        known.sliding_window,
        known.rope_scaling,
    )
    assert (read.rope_theta or 10_000.0) == (known.rope_theta or 10_000.0)


def test_dropout_comes_along_and_the_name_is_the_folders(tmp_path: Path) -> None:
    folder = tmp_path / "my-gpt"
    folder.mkdir()
    model = catalog.model_from_hf_config(_write(folder, GPT2))
    assert (model.dropout, model.name, model.tie_embeddings) == (0.1, "my-gpt", True)


def test_newer_spelling_of_rotary_positions(tmp_path: Path) -> None:
    settings = {key: value for key, value in LLAMA31.items() if not key.startswith("rope")}
    settings["rope_parameters"] = {**LLAMA31["rope_scaling"], "rope_theta": 500000.0}
    newer = catalog.model_from_hf_config(_write(tmp_path, settings))
    assert newer == catalog.model_from_hf_config(_write(tmp_path, LLAMA31))
    assert newer.rope_theta == 500000.0


def test_scaling_without_an_original_length_means_the_longest_sequence(tmp_path: Path) -> None:
    scaled = {**QWEN25, "rope_scaling": {"type": "yarn", "factor": 4, "truncate": True}}
    scaling = catalog.model_from_hf_config(_write(tmp_path, scaled)).rope_scaling
    assert scaling == RopeScaling(type="yarn", factor=4.0, original_max_seq_len=32768)


def test_biases_of_attention_alone(tmp_path: Path) -> None:
    model = catalog.model_from_hf_config(_write(tmp_path, {**LLAMA3, "attention_bias": True}))
    assert (model.has_qkv_bias, model.has_attention_out_bias, model.has_linear_bias) == (True, True, False)


@pytest.mark.parametrize(
    ("change", "window"),
    [
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 0}, 4096),
        ({"use_sliding_window": True, "sliding_window": 32768, "max_window_layers": 0}, None),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 24}, None),
        ({"use_sliding_window": True, "sliding_window": 64, "layer_types": ["sliding_attention"] * 24}, 64),
        ({"use_sliding_window": False, "layer_types": ["full_attention"] * 24}, None),
        ({"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 0}, None),
    ],
)
def test_the_sliding_window_of_qwen2(change: dict[str, Any], window: int | None, tmp_path: Path) -> None:
    assert catalog.model_from_hf_config(_write(tmp_path, {**QWEN25, **change})).sliding_window == window


def test_settings_of_files_tokenizers_and_generating_are_known_by_name(tmp_path: Path) -> None:
    harmless = {
        "_name_or_path": "someone/model",
        "torch_dtype": "float16",
        "use_cache": True,
        "id2label": {"0": "LABEL_0"},
        "pruned_heads": {},
        "is_decoder": False,
        "quantization_config": None,
        "temperature": 0.7,
    }
    for settings in CONFIGS.values():
        model = catalog.model_from_hf_config(_write(tmp_path, {**harmless, **settings}))
        assert model.name == "someone/model"


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
    path = _write(tmp_path, {**base, **change})
    with pytest.raises(ArtifactError) as caught:
        catalog.model_from_hf_config(path)
    assert str(caught.value) == f"{path}: {message}"


def test_a_missing_setting_is_named(tmp_path: Path) -> None:
    settings = {key: value for key, value in LLAMA3.items() if key != "intermediate_size"}
    with pytest.raises(ArtifactError, match=r"config\.json: intermediate_size: is missing"):
        catalog.model_from_hf_config(_write(tmp_path, settings))


def test_one_door_takes_names_artifacts_configurations_and_folders(tmp_path: Path) -> None:
    named, no_files = catalog.load_model("gpt2")
    assert no_files == ()
    artifact = tmp_path / "shape.json"
    store.write(named, artifact)
    assert catalog.load_model(str(artifact))[0] == named
    config = _write(tmp_path, GPT2)
    renamed = tmp_path / "other.json"
    renamed.write_text(config.read_text())
    for text in (str(config), str(tmp_path), str(renamed)):
        model, files = catalog.load_model(text)
        assert num_parameters(model) == num_parameters(named)
        assert [Path(file.path).name for file in files] == [renamed.name if text == str(renamed) else "config.json"]


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"the catalog has no model 'gpt3' \(cephalo catalog models gpt lists"):
        catalog.load_model("gpt3")
    with pytest.raises(ArtifactError, match=r"no such file \(nothing is downloaded, but the catalog has 'lla"):
        catalog.load_model("meta-llama/Llama-3.2-1B")
    with pytest.raises(ArtifactError, match="no such file"):
        catalog.load_model(str(tmp_path / "gone.json"))
    with pytest.raises(ArtifactError, match="no such file"):
        catalog.load_model(str(tmp_path))
    cluster = tmp_path / "cluster.json"
    store.write(catalog.cluster_from_gpus("l4"), cluster)
    with pytest.raises(ArtifactError, match="found a cluster, expected a model"):
        catalog.load_model(str(cluster))
    assert isinstance(catalog.load_model("gpt2")[0], Model)
