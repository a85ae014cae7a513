"""The command that trains with a plan names data that its model can read."""

from pathlib import Path

import pytest

from cephalo_cli.artifacts.model import Model
from cephalo_cli.cli.launching import training_commands
from tests.cli.commands import cephalo
from tests.executor.plans import make_model, make_plan

VIT = make_model("vit", image_size=8, patch_size=4, num_classes=2, vocab_size=None, max_seq_len=None)


@pytest.mark.parametrize(
    ("model", "command"),
    [
        (make_model("bert"), "cephalo train 'my plan.json' --data python-stdlib --steps 20 -o m.json"),
        (
            VIT,
            "cephalo train 'my plan.json' --data IMAGES --steps 20 -o m.json  # IMAGES: a folder of class folders",
        ),
    ],
)
def test_text_is_on_every_machine_and_images_are_the_users_own(model: Model, command: str) -> None:
    assert training_commands(make_plan(model, [[1], [1]]), "my plan.json", output="m.json") == [command]


def test_a_command_named_next_writes_over_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = str(Path("plans/laptop-mixed.json").resolve())
    monkeypatch.chdir(tmp_path)
    for name in ("measured.json", "measured-2.json", "measured-3.json"):
        ran = cephalo("simulate", plan)
        assert ran.err.startswith(f"next: cephalo train {plan} ")
        assert ran.err.endswith(f" -o {name}\n")
        (tmp_path / name).touch()
    estimate = ("profile", "--estimate", "--gpus", "l4", "--model", "gpt2", "--seq-len", "8", "-o")
    for name in ("plan.json", "plan-2.json"):
        assert cephalo(*estimate, f"of-{name}").err.endswith(
            f"next: cephalo plan of-{name} --batch-size 32 -o {name}\n"
        )
        (tmp_path / name).touch()


def test_a_plan_that_does_not_fit_is_planned_again_not_trained(tmp_path: Path) -> None:
    text = Path("plans/laptop-mixed.json").read_text()
    full = tmp_path / "full.json"
    full.write_text(text.replace('"memory_bytes": 411041792', '"memory_bytes": 311041792'))
    ran = cephalo("simulate", str(full))
    assert ran.code == 0
    fitting, command = ran.err.splitlines()
    assert fitting.startswith("does not fit: rank 3 (cpu-20 on laptop) needs ")
    assert command == "next: cephalo plan profiles/laptop-mixed.json --batch-size 32 -o plan.json"
    what_if = cephalo("simulate", "plans/laptop-mixed.json", "--set", "device_types.cpu-20.memory_bytes=200MiB")
    assert "next:" not in what_if.err
