"""What is read from Hugging Face configurations."""

from pathlib import Path
from typing import Any

import pytest

from cephalo_cli import catalog
from cephalo_cli.artifacts.model import RopeScaling
from cephalo_cli.catalog.data import model_records
from cephalo_cli.units import num_parameters
from tests.catalog.configs import CONFIGS, GPT2, LLAMA3, LLAMA31, QWEN25, written


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_configuration_is_the_catalogs_model(name: str, tmp_path: Path) -> None:
    read = catalog.model_from_hf_config(written(tmp_path, CONFIGS[name]))
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
    model = catalog.model_from_hf_config(written(folder, GPT2))
    assert (model.dropout, model.name, model.tie_embeddings) == (0.1, "my-gpt", True)


def test_newer_spelling_of_rotary_positions(tmp_path: Path) -> None:
    settings = {key: value for key, value in LLAMA31.items() if not key.startswith("rope")}
    settings["rope_parameters"] = {**LLAMA31["rope_scaling"], "rope_theta": 500000.0}
    newer = catalog.model_from_hf_config(written(tmp_path, settings))
    assert newer == catalog.model_from_hf_config(written(tmp_path, LLAMA31))
    assert newer.rope_theta == 500000.0


def test_scaling_without_an_original_length_means_the_longest_sequence(tmp_path: Path) -> None:
    scaled = {**QWEN25, "rope_scaling": {"type": "yarn", "factor": 4, "truncate": True}}
    scaling = catalog.model_from_hf_config(written(tmp_path, scaled)).rope_scaling
    assert scaling == RopeScaling(type="yarn", factor=4.0, original_max_seq_len=32768)


def test_biases_of_attention_alone(tmp_path: Path) -> None:
    model = catalog.model_from_hf_config(written(tmp_path, {**LLAMA3, "attention_bias": True}))
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
    assert catalog.model_from_hf_config(written(tmp_path, {**QWEN25, **change})).sliding_window == window


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
        model = catalog.model_from_hf_config(written(tmp_path, {**harmless, **settings}))
        assert model.name == "someone/model"
