"""Artifacts on disk: what cannot be read or written, and writing whole or not at all."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cephalo_cli.artifacts import Cluster, Model, Plan, Report, store
from cephalo_cli.errors import ArtifactError
from tests.artifacts.documents import document


def model() -> Model:
    return Model.model_validate_json(json.dumps(document("model")))


@contextmanager
def refused(message: str) -> Iterator[None]:
    with pytest.raises(ArtifactError) as caught:
        yield
    assert str(caught.value) == message
    assert caught.value.exit_code == 3


@pytest.fixture(autouse=True)
def in_own_folder(in_project_root: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001  (after the shared one)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


# Reading --------------------------------------------------------------------------------------------------------------


def test_a_written_artifact_is_read_back() -> None:
    store.write(model(), "m.json")
    assert store.read("m.json", Model) == model()
    assert store.read_any(Path("m.json")) == model()


def test_an_input_is_named_with_its_digest() -> None:
    store.write(model(), "m.json")
    artifact, source = store.read_input("m.json", Model)
    assert artifact == model()
    assert source == store.input_file("m.json")
    assert source.path == "m.json"
    assert source.sha256 == hashlib.sha256(Path("m.json").read_bytes()).hexdigest()


def test_a_file_of_another_kind_is_refused() -> None:
    store.write(model(), "m.json")
    with refused("m.json: found a model, expected a plan (give a plan file here)"):
        store.read("m.json", Plan)
    with refused("m.json: found a model, expected a cluster (give a cluster file here)"):
        store.read_input("m.json", Cluster)


def test_a_missing_file_names_its_neighbour() -> None:
    Path("plans").mkdir()
    store.write(model(), "plans/laptop-mixd.js")
    Path("plans/laptop-mixed.trace.json").write_text('{"traceEvents": [], "kind": "plan"}')
    Path("plans/laptop-mixd").mkdir()
    with refused("plans/laptop-mixd.json: no such file"):
        store.read("plans/laptop-mixd.json", Plan)
    store.write(store.loads(json.dumps(document("plan")).encode(), where="plan"), "plans/laptop-mixed.json")
    with refused("plans/laptop-mixd.json: no such file (did you mean 'plans/laptop-mixed.json'?)"):
        store.read("plans/laptop-mixd.json", Plan)
    with refused("plans/laptop-mixd.json: no such file (did you mean 'plans/laptop-mixed.json'?)"):
        store.read_input("plans/laptop-mixd.json", Plan)
    with refused("plans/laptop-mix.json: no such file (did you mean 'plans/laptop-mixd.js'?)"):
        store.read("plans/laptop-mix.json", Model)
    with refused("plans/latency.csv: no such file"):
        store.read_text("plans/latency.csv")
    Path("plans/latencies.csv").write_text("model\n")
    with refused("plans/latency.csv: no such file (did you mean 'plans/latencies.csv'?)"):
        store.read_text("plans/latency.csv")
    with refused("plans/zzz: no such file"):
        store.read("plans/zzz", Plan)
    with refused("plan/laptop-mixed.json: no such file (the folder plan does not exist)"):
        store.read("plan/laptop-mixed.json", Plan)


def test_a_folder_for_files_is_tried_and_not_left_behind() -> None:
    store.check_folder("new/checkpoints", where="--checkpoint-dir new/checkpoints")
    assert not Path("new").exists()
    Path("here").mkdir()
    store.check_folder("here", where="--checkpoint-dir here")
    assert list(Path("here").iterdir()) == []


def test_what_is_no_file_is_refused() -> None:
    Path("folder").mkdir()
    Path("file").touch()
    Path("loop").symlink_to("loop")
    with refused("folder: is a folder, expected a file (there is no JSON file in it)"):
        store.read("folder", Plan)
    with refused("file/plan.json: cannot be read: not a directory"):
        store.read("file/plan.json", Plan)
    with refused("loop: cannot be read: too many levels of symbolic links"):
        store.read("loop", Plan)
    with refused(f"{'x' * 300}: cannot be read: file name too long"):
        store.read("x" * 300, Plan)
    with refused("file: is empty, expected a JSON object"):
        store.read("file", Plan)


def test_a_file_of_200_megabytes_is_refused_by_its_size() -> None:
    with Path("big.json").open("wb") as file:
        file.truncate(200_000_000)
    with refused("big.json: is larger than 64 MiB, the most an artifact may have"):
        store.read("big.json", Plan)


def test_an_endless_device_is_refused() -> None:
    with refused("/dev/zero: is larger than 64 MiB, the most an artifact may have"):
        store.read("/dev/zero", Plan)


def test_a_large_sound_file_is_read() -> None:
    whole = document("report")
    whole["steps"] = [whole["steps"][0]] * 60_000
    Path("r.json").write_text(json.dumps(whole))
    report = store.read("r.json", Report)
    assert len(report.steps) == 60_000


def test_a_pipe_is_read() -> None:
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_text(store.dumps(model())), daemon=True)
    writer.start()
    assert store.read("pipe", Model) == model()
    writer.join(timeout=30)


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = store.dumps(model()).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    artifact, source = store.read_input("-", Model)
    assert artifact == model()
    assert (source.path, source.sha256) == ("-", hashlib.sha256(raw).hexdigest())


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "standard input: is empty, expected a JSON object"),
        (b"{", "standard input: is cut off: expecting property name enclosed in double quotes at line 1, column 2"),
        (b" " * (2**26 + 1), "standard input: is larger than 64 MiB, the most an artifact may have"),
    ],
    ids=["empty", "cut off", "too large"],
)
def test_standard_input_is_checked_as_files_are(raw: bytes, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    with refused(message):
        store.read("-", Model)


def test_another_programs_object_is_read_with_the_same_care() -> None:
    Path("config.json").write_text('{"n_layer": 12, "anything": null}')
    assert store.read_object("config.json") == {"n_layer": 12, "anything": None}
    Path("config.json").write_text('{"n_layer": {"x": NaN}}')
    with refused("config.json: n_layer.x: found NaN, expected a finite number"):
        store.read_object("config.json")


def test_a_file_name_that_is_no_text_can_be_an_input() -> None:
    name = os.fsdecode(b"m\xff.json")
    Path(name).write_text(store.dumps(model()))
    assert store.input_file(name).path == "m\ufffd.json"


# Writing --------------------------------------------------------------------------------------------------------------


def test_an_existing_file_is_kept_unless_forced() -> None:
    Path("m.json").write_text("mine")
    with refused("m.json: exists already (--force overwrites it)"):
        store.write(model(), "m.json")
    with refused("m.json: exists already (--force overwrites it)"):
        store.check_writable("m.json")
    assert Path("m.json").read_text() == "mine"
    store.check_writable("m.json", force=True)
    store.write(model(), "m.json", force=True)
    assert Path("m.json").read_text() == store.dumps(model())


def test_a_new_folder_is_made_but_not_by_the_check() -> None:
    store.check_writable("new/deep/m.json")
    assert not Path("new").exists()
    store.write(model(), "new/deep/m.json")
    assert store.read("new/deep/m.json", Model) == model()


def test_what_cannot_be_written_is_refused_before_and_after() -> None:
    Path("folder").mkdir()
    Path("file").touch()
    Path("loop").symlink_to("loop")
    here = Path.cwd()
    for path, message in {
        "folder": "folder: is a folder, expected a file name (give a file name)",
        "file/m.json": f"file/m.json: cannot be written: {here}/file is not a writable folder (give another path)",
        "x" * 300: f"{'x' * 300}: cannot be written: file name too long (give another path)",
    }.items():
        for force in (False, True):
            with refused(message):
                store.check_writable(path, force=force)
            with refused(message):
                store.write(model(), path, force=force)
    with pytest.raises(ArtifactError, match=r"^loop: cannot be written: "):
        store.write(model(), "loop")
    assert sorted(entry.name for entry in here.iterdir()) == ["file", "folder", "loop"]


def test_a_folder_where_nothing_can_be_made_is_refused() -> None:
    reason = r"(no such file or directory|/proc is not a writable folder)"  # the second to a user other than root
    with pytest.raises(ArtifactError, match=rf"^/proc/nowhere/m\.json: cannot be written: {reason} \(give another"):
        store.write(model(), "/proc/nowhere/m.json")


def test_a_folder_without_permission_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("locked").mkdir()
    asked: list[tuple[Path, int]] = []

    def access(path: Path, mode: int) -> bool:  # as a user other than root sees it
        asked.append((path, mode))
        return False

    monkeypatch.setattr(os, "access", access)
    here = Path.cwd()
    with refused(f"locked/m.json: cannot be written: {here}/locked is not a writable folder (give another path)"):
        store.check_writable("locked/m.json")
    assert asked == [(here / "locked", os.W_OK | os.X_OK)]


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
def test_a_fault_in_the_middle_leaves_the_old_file(fault: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("m.json").write_text("old")

    def fail(_: int) -> None:
        raise fault

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((ArtifactError, KeyboardInterrupt)) as caught:
        store.write(model(), "m.json", force=True)
    if isinstance(fault, OSError):
        assert str(caught.value) == "m.json: cannot be written: no space left on device (give another path)"
    assert Path("m.json").read_text() == "old"
    assert os.listdir() == ["m.json"]  # noqa: PTH208  (names are all it takes)


def test_a_killed_writer_leaves_the_old_file() -> None:
    Path("m.json").write_text("old")
    kill = f"import os; os.fsync = lambda _: os.kill(os.getpid(), {int(signal.SIGKILL)})"
    write = "from cephalo_cli.artifacts import store; store.write_text('new', 'm.json', force=True)"
    root = Path(store.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", f"{kill}; {write}"], env={**os.environ, "PYTHONPATH": str(root)}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert Path("m.json").read_text() == "old"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_file_mode_honours_the_umask(mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        store.write(model(), "m.json")
    finally:
        os.umask(before)
    assert Path("m.json").stat().st_mode & 0o777 == mode


@pytest.mark.usefixtures("usual_umask")
def test_a_link_stays_and_its_file_is_written() -> None:
    Path("real").mkdir()
    Path("real/m.json").write_text("old")
    Path("latest.json").symlink_to("real/m.json")
    with refused("latest.json: exists already (--force overwrites it)"):
        store.write(model(), "latest.json")
    store.write(model(), "latest.json", force=True)
    assert Path("latest.json").is_symlink()
    assert store.read("real/m.json", Model) == model()
    Path("new.json").symlink_to("real/new.json")
    store.write(model(), "new.json")
    assert Path("new.json").is_symlink()
    assert store.read("real/new.json", Model) == model()


def test_a_pipe_is_written_in_place() -> None:
    os.mkfifo("pipe")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(Path("pipe").read_text()), daemon=True)
    reader.start()
    store.write(model(), "pipe")
    reader.join(timeout=30)
    assert got == [store.dumps(model())]
    assert Path("pipe").is_fifo()


def test_standard_output_gets_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    store.check_writable("-")
    store.write(model(), "-")
    assert capsys.readouterr().out == store.dumps(model())
    assert not Path("-").exists()
