"""The catalog: listed, searched, looked up with the source of every number, and forgiving about names."""

import json

import pytest

from cephalo_cli.catalog import model
from cephalo_cli.catalog.data import device_records, model_records
from tests.cli.commands import cephalo


@pytest.mark.parametrize("kind", ["devices", "models"])
def test_the_list_names_everything_in_eighty_columns(kind: str) -> None:
    ran = cephalo("catalog", kind)
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= 80
    assert not [line for line in ran.out.splitlines() if line.endswith(" ")]
    known = device_records() if kind == "devices" else model_records()
    firsts = {line.split()[0] for line in ran.out.splitlines() if line}
    assert set(known) <= firsts
    listed = json.loads(cephalo("catalog", kind, "--json").out)[kind]
    assert [row[kind.removesuffix("s")] for row in listed] == list(known)


def test_a_word_that_several_entries_share_is_searched() -> None:
    rows = json.loads(cephalo("catalog", "devices", "ampere", "--json").out)["devices"]
    assert {row["architecture"] for row in rows} == {"ampere", "ampere-dc"}
    assert "llama-7b" in cephalo("catalog", "models", "7B").out


def test_every_number_of_a_device_has_its_source() -> None:
    text = cephalo("catalog", "devices", "P40").out
    assert "p40: NVIDIA Tesla P40 24 GB" in text
    assert "peak in float16           11.8 TFLOP/s  [2]" in text
    assert "[1] NVIDIA Tesla P40 datasheet (2016)" in text
    for name, record in device_records().items():
        told = json.loads(cephalo("catalog", "devices", name, "--json").out)
        numbers = {number["quantity"]: number for number in told["numbers"]}
        assert {"memory_bytes", "memory_bandwidth_bytes_per_s"} < set(numbers)
        assert {f"peak_flops.{dtype}" for dtype in record.peak_flops} < set(numbers)
        assert all(number["source"] for number in numbers.values())
        assert numbers["memory_bytes"]["value"] == record.memory_bytes


def test_an_alias_leads_to_its_entry() -> None:
    assert json.loads(cephalo("catalog", "devices", "3090", "--json").out)["id"] == "rtx-3090"


def test_a_name_that_means_one_entry_tells_of_the_others_it_is_part_of() -> None:
    text = cephalo("catalog", "devices", "a100").out
    assert text.startswith("a100-80gb: ")
    assert " ".join(text.split()).endswith("See also a100-40gb, a100-pcie-40gb, a100-pcie-80gb.")
    told = json.loads(cephalo("catalog", "devices", "a100", "--json").out)
    assert told["others"] == ["a100-40gb", "a100-pcie-40gb", "a100-pcie-80gb"]
    assert "See also" not in cephalo("catalog", "devices", "t4").out


@pytest.mark.parametrize("name", ["llama_7b", "llama-7b", "bert_large", "Llama_7B"])
def test_a_models_name_means_what_it_means_to_other_commands(name: str) -> None:
    told = json.loads(cephalo("catalog", "models", name, "--json").out)
    assert told["id"] == model(name).name
    assert (name in told["table_names"]) == told["id"].startswith("cephalo-")


def test_a_model_of_published_tables_says_how_they_call_it() -> None:
    assert "in tables       llama_7b\n" in cephalo("catalog", "models", "llama_7b").out


def test_a_model_tells_shape_count_state_and_source() -> None:
    text = cephalo("catalog", "models", "llama-7b").out
    for words in ("6.74 G parameters (6738415616)", "100 GiB (16 bytes a parameter)", "arXiv", "hidden size"):
        assert words in text
    told = json.loads(cephalo("catalog", "models", "llama-7b", "--json").out)
    assert (told["num_parameters"], told["num_layers"]) == (6738415616, 32)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ("devices", "rtx-3900"),
            3,
            "catalog devices: the catalog has no device 'rtx-3900' (did you mean 'rtx-3090'?)",
        ),
        (("models", "lamma-7b"), 3, "catalog models: the catalog has no model 'lamma-7b' (did you mean 'llama-7b'?)"),
        (("device",), 2, "found 'device', expected 'devices' or 'models' (did you mean 'devices'?)"),
        ((), 2, "Missing argument 'devices|models' (cephalo catalog --help lists the options)"),
    ],
)
def test_what_is_not_there(arguments: tuple[str, ...], code: int, message: str) -> None:
    ran = cephalo("catalog", *arguments)
    assert (ran.code, ran.out, ran.err) == (code, "", f"cephalo: error: {message}\n")
