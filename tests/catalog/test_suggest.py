"""What a wrong name may have meant: near in words and numbers, or nothing at all."""

import pytest

from cephalo_cli.catalog.data import device_records, model_records
from cephalo_cli.catalog.suggest import suggestion

MODELS = {other: key for key, record in model_records().items() for other in (key, *record.aliases)}
DEVICES = {other: key for key, record in device_records().items() for other in (key, *record.aliases)}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llama-1b", "did you mean 'llama-3.2-1b'?"),
        ("llama-9b", "cephalo catalog models llama lists names like it"),
        ("lamma-7b", "did you mean 'llama-7b'?"),
        ("qwen-7b", "did you mean 'qwen2.5-7b'?"),
        ("meta-llama/llama-3.2-3b", "did you mean 'llama-3.2-3b'?"),
        ("gpt3", "cephalo catalog models gpt lists names like it"),
        ("opt-6.7b", "cephalo catalog models 6.7b lists names like it"),
        ("", "cephalo catalog models lists them"),
        ("x" * 5000, "cephalo catalog models lists them"),
    ],
)
def test_a_model_of_another_size_is_no_misspelling(name: str, said: str) -> None:
    assert suggestion(name, MODELS, kind="models") == said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("m2-max", "cephalo catalog devices lists them"),
        ("h300", "cephalo catalog devices lists them"),
        ("rtx-3900", "did you mean 'rtx-3090'?"),
        ("rtx-309", "did you mean 'rtx-3090'?"),
        ("rtxx-4090", "did you mean 'rtx-4090'?"),
        ("mi300", "did you mean 'mi300x'?"),
        ("p400", "did you mean 'p40'?"),
        ("a100-80", "did you mean 'a100-pcie-80gb' or 'a100-80gb'?"),
        ("v100-sxm3", "cephalo catalog devices v100 lists names like it"),
    ],
)
def test_a_device_is_suggested_only_for_one_slip(name: str, said: str) -> None:
    assert suggestion(name, DEVICES, kind="devices") == said
