"""Files that hold no JSON object, or values no JSON object of ours may hold, each with its exact message."""

import json

import pytest

from cephalo_cli.artifacts import store
from cephalo_cli.errors import ArtifactError

NOT_JSON: list[tuple[str, bytes, str]] = [
    ("empty", b"", "f: is empty, expected a JSON object"),
    ("blank", b" \n\t", "f: is empty, expected a JSON object"),
    ("cut off in a name", b'{"kind": "clus', "f: is cut off: unterminated string at line 1, column 10"),
    ("cut off in a list", b'{"a":\n [1, 2', "f: is cut off: expecting ',' delimiter at line 2, column 7"),
    ("cut off before a value", b'{"a":', "f: is cut off: expecting value at line 1, column 6"),
    (
        "not JSON",
        b"{kind: 1}",
        "f: is not JSON: expecting property name enclosed in double quotes at line 1, column 2",
    ),
    ("two documents", b"{}{}", "f: is not JSON: extra data at line 1, column 3"),
    ("not UTF-8", b'{"name": "\xff"}', "f: is not UTF-8 text (byte 10)"),
    ("UTF-16", '{"kind": "plan"}'.encode("utf-16"), "f: is UTF-16 text, expected UTF-8 (save it as UTF-8)"),
    ("a picture", b"\x89PNG", "f: is a picture, expected JSON (give the plan, profile or report it was drawn from)"),
    ("bytes", b"\x80abc", "f: is not UTF-8 text (byte 0)"),
    ("a list", b"[{}]", "f: found a list, expected a JSON object"),
    ("a number", b"3", "f: found 3, expected a JSON object"),
    ("nested 10,000 deep", b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "f: is nested too deeply for an artifact"),
    (
        "nested 300 deep",
        b'{"kind": "cluster", "a": ' + b"[" * 300 + b"]" * 300 + b"}",
        "f: is nested too deeply for an artifact",
    ),
    ("a key twice", b'{"kind": "plan", "kind": "plan"}', "f: kind: found the same key twice, expected each key once"),
    (
        "a nested key twice",
        b'{"ranks": [{}, {"a": 1, "rank": 1, "rank": 2}]}',
        "f: ranks[1].rank: found the same key twice, expected each key once",
    ),
    (
        "half a surrogate pair",
        b'{"name": ["x", "\\ud83d"]}',
        "f: name[1]: found half of a surrogate pair, expected text",
    ),
    (
        "half a surrogate pair in a key",
        b'{"a": {"\\udc00": 1}}',
        "f: a: found half of a surrogate pair in a key, expected text",
    ),
    ("a huge float", b'{"ranks": [{"x": 1e999}]}', "f: ranks[0].x: found 1e999, expected a number that fits a float64"),
    ("a huge negative float", b'{"x": -1e999}', "f: x: found -1e999, expected a number that fits a float64"),
    (
        "an object with too many keys",
        json.dumps({"a": dict.fromkeys(map(str, range(100_001)), 0)}).encode(),
        "f: a: found an object of 100001 keys, expected at most 100000 keys",
    ),
]


@pytest.mark.parametrize(("raw", "message"), [case[1:] for case in NOT_JSON], ids=[case[0] for case in NOT_JSON])
def test_what_is_no_json_object_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        store.loads(raw, where="f")
    assert str(caught.value) == message
    assert caught.value.exit_code == 3
