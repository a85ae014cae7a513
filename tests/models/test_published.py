"""Models as the Hub's configurations describe them, built without memory."""

import json
from pathlib import Path

import pytest
import torch

from cephalo_cli import catalog
from cephalo_cli.catalog.data import model_records
from cephalo_cli.models import build_unit
from cephalo_cli.units import model_units
from tests.catalog.configs import CONFIGS


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_configuration_builds_with_the_published_number_of_parameters(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[name]))
    model = catalog.model_from_hf_config(path)
    total = 0
    with torch.device("meta"):
        for unit in model_units(model):
            total += sum(parameter.numel() for parameter in build_unit(model, unit.kind).parameters())
    assert total == model_records()[name].num_parameters
