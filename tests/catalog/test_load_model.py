"""Models from names, files and Hugging Face configurations."""

import json
from pathlib import Path
from typing import Any

import pytest

from cephalo_cli import catalog
from cephalo_cli.artifacts import Model, store
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
    "mistral-7b": MISTRAL,
    "qwen2.5-0.5b": QWEN25,
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
    assert read.mlp_activation == known.mlp_activation
    assert (read.rope_theta or 10_000.0) == (known.rope_theta or 10_000.0)


def test_dropout_comes_along_and_the_name_is_the_folders(tmp_path: Path) -> None:
    folder = tmp_path / "my-gpt"
    folder.mkdir()
    model = catalog.model_from_hf_config(_write(folder, GPT2))
    assert (model.dropout, model.name, model.tie_embeddings) == (0.1, "my-gpt", True)


def test_newer_spelling_of_rotary_positions(tmp_path: Path) -> None:
    settings = {key: value for key, value in LLAMA3.items() if not key.startswith("rope")}
    settings["rope_parameters"] = {"rope_type": "default", "rope_theta": 500000.0}
    assert catalog.model_from_hf_config(_write(tmp_path, settings)).rope_theta == 500000.0


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        (GPT2, {"model_type": "opt"}, "model_type: model type 'opt' is not supported, expected one of gpt2, llama, "),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: True is not supported"),
        (GPT2, {"activation_function": "relu"}, "activation_function: 'relu' is not supported, expected one of gelu"),
        (GPT2, {"embd_pdrop": 0.0}, "embd_pdrop: 0.0 differs from resid_pdrop 0.1"),
        (GPT2, {"n_layer": "12"}, 'n_layer: found "12", expected a whole number'),
        (GPT2, {"n_embd": 100}, "n_embd: found 100, expected a multiple of num_heads, which is 12"),
        (LLAMA3, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling: 'llama3' is not supported"),
        (LLAMA3, {"quantization_config": {"bits": 4}}, "quantization_config: is a setting this program does not know"),
        (LLAMA3, {"attention_bias": True}, "attention_bias: True is supported together with an equal mlp_bias"),
        (LLAMA3, {"attention_dropout": 0.1}, "attention_dropout: 0.1 is not supported, expected 0.0"),
        (LLAMA3, {"num_local_experts": 8}, "num_local_experts: is a setting this program does not know"),
        (BERT, {"position_embedding_type": "relative_key"}, "position_embedding_type: 'relative_key' is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    base: dict[str, Any], change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = _write(tmp_path, {**base, **change})
    with pytest.raises(ArtifactError) as caught:
        catalog.model_from_hf_config(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


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
    with pytest.raises(ArtifactError, match=r"the catalog has no model 'gpt3'.*did you mean 'gpt2'"):
        catalog.load_model("gpt3")
    with pytest.raises(ArtifactError, match="no such file"):
        catalog.load_model(str(tmp_path / "gone.json"))
    with pytest.raises(ArtifactError, match="no such file"):
        catalog.load_model(str(tmp_path))
    cluster = tmp_path / "cluster.json"
    store.write(catalog.cluster_from_gpus("l4"), cluster)
    with pytest.raises(ArtifactError, match="found a cluster, expected a model"):
        catalog.load_model(str(cluster))
    assert isinstance(catalog.load_model("gpt2")[0], Model)
