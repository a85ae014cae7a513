"""What a name stands for; what is not known is refused with what is."""

from pathlib import Path

import pytest

from cephalo_cli.errors import ArtifactError, CephaloError, UsageError
from cephalo_cli.executor.datasets.formats import find_files


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.txt"], "text"),
        (["a"], "text"),
        (["b/a.py", "notes.md"], "text"),
        (["a.jsonl"], "json-lines"),
        (["a.ndjson", "deep/b.JSONL"], "json-lines"),
        (["a.parquet"], "parquet"),
        (["cat/1.png", "dog/2.jpeg"], "image folder"),
        (["images.npy", "labels.npy"], "image arrays"),
    ],
)
def test_folders(tmp_path: Path, names: list[str], expected: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"some text")
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    found = find_files(str(tmp_path))
    assert found.format == expected
    assert [path.relative_to(tmp_path).as_posix() for path in found.paths] == sorted(names)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.txt", "text"), ("a.log", "text"), ("a.jsonl", "json-lines"), ("a.bin", "tokens"), ("a.NPY", "tokens")],
)
def test_files(tmp_path: Path, name: str, expected: str) -> None:
    (tmp_path / name).write_bytes(b"some text")
    found = find_files(str(tmp_path / name))
    assert (found.format, found.paths) == (expected, (tmp_path / name,))


def test_two_names_are_no_files() -> None:
    assert find_files("random").format == "noise"
    found = find_files("python-stdlib")
    assert found.format == "text"
    assert {path.suffix for path in found.paths} == {".py"}


REFUSED: dict[str, tuple[type[CephaloError], list[str], str]] = {
    "no such file or folder": (ArtifactError, [], "missing"),
    "holds no files": (ArtifactError, [".hidden"], ""),
    ".csv files are not read": (UsageError, ["a.csv"], "a.csv"),
    ".json files are not read": (UsageError, ["a.json"], "a.json"),
    "is one image, expected a folder of class folders": (UsageError, ["a.png"], "a.png"),
    "is neither text nor of a format that is read": (UsageError, ["a.zip"], "a.zip"),
    "mixes JSON-lines and text files, such as a.jsonl and b.md": (UsageError, ["a.jsonl", "b.md"], ""),
    "mixes image and text files, such as c/a.png and b.md": (UsageError, ["b.md", "c/a.png"], ""),
    "is a folder of token files, expected one .bin or .npy file": (UsageError, ["a.bin", "b.bin"], ""),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(tmp_path: Path, message: str) -> None:
    kind, names, asked = REFUSED[message]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"PK\0\0" if name.endswith(".zip") else b"x")
    with pytest.raises(kind) as refusal:
        find_files(str(tmp_path / asked))
    assert refusal.value.message == message


def test_a_refusal_says_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"\x1f\x8b\0")
    with pytest.raises(UsageError, match=r"\.jsonl with text or with prompt and completion, \.parquet") as refusal:
        find_files(str(tmp_path / "a.gz"))
    assert refusal.value.exit_code == 2
