"""O04: a shared block called twice in one forward."""

import json
from itertools import combinations
from pathlib import Path

import pytest

from cephalo_cli.artifacts import store
from cephalo_cli.catalog import load_model
from cephalo_cli.errors import ArtifactError
from cephalo_cli.models import build_unit
from cephalo_cli.units import model_units
from tests.executor.plans import make_model


def test_o04_a_block_that_is_used_twice_cannot_be_asked_for(tmp_path: Path) -> None:
    """O04: every unit of a model has weights of its own; a file that asks for shared blocks is refused."""
    model = make_model(num_layers=4)
    modules = [build_unit(model, unit.kind) for unit in model_units(model)]
    for one, other in combinations(modules, 2):
        assert not {id(parameter) for parameter in one.parameters()} & {id(each) for each in other.parameters()}
    asking = json.loads(store.dumps(model)) | {"shared_layers": [[1, 3]]}
    with pytest.raises(ArtifactError, match="shared_layers"):
        store.loads(json.dumps(asking).encode(), where="model.json")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "albert", "num_hidden_groups": 1, "num_hidden_layers": 4}))
    with pytest.raises(ArtifactError, match="albert"):
        load_model(str(config))
