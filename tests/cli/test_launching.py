"""The command that trains with a plan names data that its model can read."""

import pytest

from cephalo_cli.artifacts.model import Model
from cephalo_cli.cli.launching import training_commands
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
