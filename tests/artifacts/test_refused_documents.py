"""Documents of a wrong form, each with its exact message: file, path of the value, what was found and expected."""

import json
from typing import Any

import pytest

from cephalo_cli.artifacts import store
from cephalo_cli.errors import ArtifactError
from tests.artifacts.documents import changed, document, renamed, without

KINDS = "'cluster', 'model', 'profile', 'plan' or 'report'"
LONG = 10**399


def both(first: dict[str, Any], **more: object) -> dict[str, Any]:
    return first | more


WRONG: list[tuple[str, dict[str, Any], str]] = [
    # kind and version
    ("no kind", without("plan", "kind"), f"f: kind: is missing, expected {KINDS}"),
    ("null kind", changed("plan", "kind", to=None), f"f: kind: found null, expected {KINDS}"),
    (
        "unknown kind",
        changed("plan", "kind", to="clutser"),
        f"f: kind: found \"clutser\", expected {KINDS} (did you mean 'cluster'?)",
    ),
    ("a number for the kind", changed("plan", "kind", to=7), f"f: kind: found 7, expected {KINDS}"),
    (
        "newer version",
        changed("plan", "schema_version", to="2.0"),
        "f: schema_version: found version 2.0, expected at most 1.0 (upgrade cephalo)",
    ),
    (
        "malformed version",
        changed("plan", "schema_version", to="one"),
        "f: schema_version: found \"one\", expected a version such as '1.0'",
    ),
    (
        "a version with three parts",
        changed("plan", "schema_version", to="1.0.0"),
        "f: schema_version: found \"1.0.0\", expected a version such as '1.0'",
    ),
    (
        "a number for the version",
        changed("plan", "schema_version", to=1.0),
        "f: schema_version: found 1.0, expected a version such as '1.0'",
    ),
    (
        "malformed version inside",
        changed("plan", "model", "schema_version", to="v1"),
        "f: model.schema_version: found \"v1\", expected a version such as '1.0'",
    ),
    (
        "wrong kind inside",
        changed("plan", "model", "kind", to="cluster"),
        "f: model.kind: found \"cluster\", expected 'model'",
    ),
    # keys
    (
        "unknown key",
        both(document("plan"), golbal_batch=64),
        "f: golbal_batch: unknown key (did you mean 'global_batch_size'?)",
    ),
    (
        "unknown key far from all",
        both(document("model"), zzzz=64),
        "f: zzzz: unknown key (cephalo show --schema model lists every field)",
    ),
    (
        "unknown nested key",
        changed("plan", "ranks", 1, "microbatch_size", to=[4]),
        "f: ranks[1].microbatch_size: unknown key (did you mean 'microbatch_sizes'?)",
    ),
    (
        "misspelt nested key, which is then missing",
        renamed("plan", "ranks", 2, "state_share", to="state_shares"),
        "f: ranks[2].state_shares: unknown key (did you mean 'state_share'?)",
    ),
    (
        "misspelt key inside a choice",
        renamed("cluster", "network", "latency_s", to="latency"),
        "f: network.latency: unknown key (did you mean 'latency_s'?)",
    ),
    (
        "unknown dtype as a key",
        changed("cluster", "device_types", "big", "peak_flops", "bflot16", to=1),
        "f: device_types.big.peak_flops.bflot16: unknown key (did you mean 'bfloat16'?)",
    ),
    (
        "unknown unit",
        renamed("profile", "devices", "big", "units", "block", to="blok"),
        "f: devices.big.units.blok: unknown key (did you mean 'block'?)",
    ),
    (
        "unknown key in a newer minor version",
        both(changed("model", "schema_version", to="1.3"), num_experts=8),
        "f: num_experts: unknown key (the file is version 1.3, this program knows 1.0: upgrade cephalo)",
    ),
    (
        "an odd key",
        changed("cluster", "device_types", "big\nred \x1b[31m.", to={}),
        "f: device_types[\"big\\nred \\u001b[31m.\"]: has neither 'catalog' nor 'memory_bytes', expected one of them",
    ),
    (
        "missing field",
        without("plan", "expected"),
        "f: expected: is missing (cephalo show --schema plan lists every field)",
    ),
    (
        "missing nested field",
        without("plan", "ranks", 0, "memory", "limit_bytes"),
        "f: ranks[0].memory.limit_bytes: is missing (cephalo show --schema plan lists every field)",
    ),
    (
        "missing field inside a choice",
        without("profile", "network", "all_gather", "latency_s"),
        "f: network.all_gather.latency_s: is missing (cephalo show --schema profile lists every field)",
    ),
    # types
    (
        "true for a number",
        changed("model", "num_layers", to=True),
        "f: num_layers: found true, expected a whole number",
    ),
    (
        "true for a share",
        changed("plan", "ranks", 0, "state_share", to=True),
        "f: ranks[0].state_share: found true, expected a number",
    ),
    (
        "text for a whole number",
        changed("plan", "ranks", 1, "microbatch_sizes", to=["4"]),
        'f: ranks[1].microbatch_sizes[0]: found "4", expected a whole number',
    ),
    (
        "3.0 for a whole number",
        changed("model", "num_layers", to=3.0),
        "f: num_layers: found 3.0, expected a whole number",
    ),
    ("a number for text", changed("model", "name", to=3), "f: name: found 3, expected text"),
    ("empty text", changed("model", "name", to=""), 'f: name: found "", expected text that is not empty'),
    ("1 for true", changed("model", "tie_embeddings", to=1), "f: tie_embeddings: found 1, expected true or false"),
    (
        "an object for a list",
        changed("plan", "ranks", 0, "microbatch_sizes", to={"0": 1}),
        "f: ranks[0].microbatch_sizes: found an object, expected a list",
    ),
    (
        "a list for an object",
        changed("cluster", "device_types", to=[1]),
        "f: device_types: found a list, expected an object",
    ),
    ("null for an object", changed("plan", "cluster", to=None), "f: cluster: found null, expected an object"),
    ("an empty list", changed("cluster", "nodes", to=[]), "f: nodes: found [], expected at least 1 value"),
    (
        "a choice of names",
        changed("model", "family", to="lama"),
        "f: family: found \"lama\", expected 'gpt', 'llama', 'bert', 'vit' or 'own' (did you mean 'llama'?)",
    ),
    (
        "a digest that is none",
        changed("plan", "inputs", 0, "sha256", to="beef"),
        'f: inputs[0].sha256: found "beef", expected 64 hexadecimal digits',
    ),
    (
        "long text is cut",
        changed("model", "family", to="x" * 1000),
        f"f: family: found \"{'x' * 56}..., expected 'gpt', 'llama', 'bert', 'vit' or 'own'",
    ),
    # an object or a word
    (
        "another word",
        changed("cluster", "network", to="fast"),
        "f: network: found \"fast\", expected an object or 'ideal'",
    ),
    (
        "a misspelt word",
        changed("cluster", "network", to="idael"),
        "f: network: found \"idael\", expected an object or 'ideal' (did you mean 'ideal'?)",
    ),
    ("neither", changed("profile", "network", to=[1]), "f: network: found a list, expected an object or 'ideal'"),
    (
        "a wrong value in the object",
        changed("cluster", "network", "latency_s", to="1ms"),
        'f: network.latency_s: found "1ms", expected a number',
    ),
    (
        "a wrong value deep in the object",
        changed("plan", "network", "all_gather", "points", 0, "shares", 1, to=-0.25),
        "f: network.all_gather.points[0].shares[1]: found -0.25, expected a number of at least 0",
    ),
    # numbers
    (
        "NaN",
        changed("plan", "ranks", 2, "state_share", to=float("nan")),
        "f: ranks[2].state_share: found NaN, expected a finite number",
    ),
    (
        "infinity",
        changed("plan", "expected", "step_s", to=float("inf")),
        "f: expected.step_s: found Infinity, expected a finite number",
    ),
    (
        "minus infinity",
        changed("cluster", "network", "latency_s", to=float("-inf")),
        "f: network.latency_s: found -Infinity, expected a finite number",
    ),
    (
        "an integer of 400 digits",
        changed("plan", "ranks", 0, "memory", "state_bytes", to=LONG),
        "f: ranks[0].memory.state_bytes: found an integer of 400 digits, expected at most 19 digits",
    ),
    (
        "an integer of 2^63",
        changed("model", "num_layers", to=2**63),
        "f: num_layers: found 9223372036854775808, expected a number below 9.22337e+18",
    ),
    ("zero layers", changed("model", "num_layers", to=0), "f: num_layers: found 0, expected a number of at least 1"),
    (
        "negative share",
        changed("plan", "ranks", 1, "state_share", to=-0.1),
        "f: ranks[1].state_share: found -0.1, expected a number of at least 0",
    ),
    (
        "share above one",
        changed("plan", "ranks", 1, "state_share", to=1.5),
        "f: ranks[1].state_share: found 1.5, expected a number of at most 1",
    ),
    ("dropout of one", changed("model", "dropout", to=1.0), "f: dropout: found 1.0, expected a number below 1"),
    (
        "no bandwidth",
        changed("cluster", "network", "bandwidth_bytes_per_s", to=0),
        "f: network.bandwidth_bytes_per_s: found 0, expected a number above 0",
    ),
    (
        "a step number of zero",
        changed("report", "steps", 0, "step", to=0),
        "f: steps[0].step: found 0, expected a number of at least 1",
    ),
]


@pytest.mark.parametrize(("whole", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_what_breaks_the_contract_is_refused(whole: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        store.loads(json.dumps(whole).encode(), where="f")
    assert str(caught.value) == message
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("key", ["Link", "NetworkProfile", "function-after", "literal['ideal']", "DeviceType", "[key]"])
def test_a_name_that_looks_like_the_validators_own_stays_in_the_path(key: str) -> None:
    whole = changed("cluster", "device_types", key, to={"memory_bytes": -1})
    with pytest.raises(ArtifactError) as caught:
        store.loads(json.dumps(whole).encode(), where="f")
    assert key in str(caught.value.where)
    assert caught.value.message == "found -1, expected a number of at least 1"


def test_a_message_is_one_short_line_whatever_the_document_holds() -> None:
    for odd in ("line\nbreak", "\x1b[2J", "x" * 10**6, "\u202e", [[1] * 10**5], {"a": "b" * 10**6}):
        for whole in (changed("model", "family", to=odd), changed("cluster", "network", to=odd), {"kind": odd}):
            with pytest.raises(ArtifactError) as caught:
                store.loads(json.dumps(whole).encode(), where="f")
            assert str(caught.value).isprintable()
            assert len(str(caught.value)) < 250


def test_a_list_full_of_wrong_values_is_refused_at_the_first() -> None:
    whole = changed("plan", "ranks", 0, "microbatch_sizes", to=["x"] * 300_000)
    with pytest.raises(ArtifactError) as caught:
        store.loads(json.dumps(whole).encode(), where="f")
    assert str(caught.value) == 'f: ranks[0].microbatch_sizes[0]: found "x", expected a whole number'
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.error_count() <= 2  # type: ignore[attr-defined]  # the validator's error
