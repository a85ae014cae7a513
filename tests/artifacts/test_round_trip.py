"""What is written reads back as the same value and the same bytes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cephalo_cli.artifacts import Model, Report, store
from cephalo_cli.artifacts.report import StepReport
from cephalo_cli.errors import ArtifactError
from tests.artifacts.documents import changed, document

KINDS = sorted(store.KINDS)
finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_round_trips_byte_identically(kind: str) -> None:
    artifact = store.loads(json.dumps(document(kind)).encode(), where="x")
    text = store.dumps(artifact)
    again = store.loads(text.encode(), where="x")
    assert type(again) is store.KINDS[kind]
    assert again == artifact
    assert store.dumps(again) == text


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_document_is_lost(kind: str) -> None:
    def is_within(part: object, whole: object) -> bool:
        if isinstance(part, dict) and isinstance(whole, dict):
            return all(key in whole and is_within(value, whole[key]) for key, value in part.items())
        if isinstance(part, list) and isinstance(whole, list):
            return len(part) == len(whole) and all(map(is_within, part, whole))
        return part == whole

    written = json.loads(store.dumps(store.loads(json.dumps(document(kind)).encode(), where="x")))
    assert is_within(document(kind), written)


def test_the_text_is_laid_out_for_people() -> None:
    model = Model.model_validate_json(json.dumps(document("model")))
    assert store.dumps(model) == (
        "{\n"
        '  "kind": "model",\n'
        '  "schema_version": "1.0",\n'
        '  "inputs": [],\n'
        '  "name": "mini",\n'
        '  "family": "gpt",\n'
        '  "num_layers": 2,\n'
        '  "hidden_size": 8,\n'
        '  "num_heads": 2,\n'
        '  "ffn_size": 32,\n'
        '  "vocab_size": 50,\n'
        '  "max_seq_len": 16,\n'
        '  "tie_embeddings": false,\n'
        '  "dropout": 0.0\n'
        "}\n"
    )


def test_short_lists_stay_on_one_line_and_text_stays_readable() -> None:
    text = store.dumps(store.loads(json.dumps(document("profile")).encode(), where="x"))
    assert '"microbatch": [1, 2, 4],\n' in text
    assert '"path": "clusters/é.json"' in text


@given(loss=finite, seconds=st.floats(min_value=0, allow_infinity=False), tokens=st.integers(0, 2**63 - 1))
def test_numbers_come_back_to_the_last_bit(loss: float, seconds: float, tokens: int) -> None:
    report = Report.model_validate_json(json.dumps(document("report")))
    step = StepReport(step=1, loss=loss, grad_norm=None, tokens=tokens, step_s=seconds)
    report = report.model_copy(update={"steps": (step,)})
    again = store.loads(store.dumps(report).encode(), where="x")
    assert isinstance(again, Report)
    assert again.steps == (step,)


@given(name=st.text(st.characters(codec="utf-8"), min_size=1), device=st.text(st.characters(codec="utf-8")))
def test_any_text_survives(name: str, device: str) -> None:
    whole = changed("cluster", "name", to=name)
    whole["device_types"][device] = whole["device_types"]["small"]
    text = store.dumps(store.loads(json.dumps(whole).encode(), where="x"))
    assert json.loads(text)["name"] == name
    assert device in json.loads(text)["device_types"]
    assert store.dumps(store.loads(text.encode(), where="x")) == text


def test_a_byte_order_mark_is_read_over() -> None:
    raw = b"\xef\xbb\xbf" + json.dumps(document("model")).encode()
    assert store.loads(raw, where="x").kind == "model"


def test_a_newer_minor_version_is_read() -> None:
    whole = changed("model", "schema_version", to="1.7")
    assert store.loads(json.dumps(whole).encode(), where="x").schema_version == "1.7"


def test_a_document_by_hand_may_leave_the_version_out() -> None:
    whole = document("model")
    del whole["schema_version"]
    assert store.loads(json.dumps(whole).encode(), where="x").schema_version == "1.0"


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_describes_every_field(kind: str) -> None:
    schema = store.json_schema(kind)
    objects = [schema, *schema.get("$defs", {}).values()]
    fields = [field for part in objects for field in part.get("properties", {}).items()]
    assert fields
    assert [name for name, field in fields if not field.get("description")] == []
    assert schema["properties"]["kind"]["const"] == kind


def test_an_unknown_kind_has_no_schema() -> None:
    with pytest.raises(ArtifactError) as caught:
        store.json_schema("profil")
    assert str(caught.value) == (
        "found kind \"profil\", expected 'cluster', 'model', 'profile', 'plan' or 'report' (did you mean 'profile'?)"
    )
