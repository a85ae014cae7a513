"""What a model of one's own must be, and what is said where it is not."""

import json
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from cephalo_cli.artifacts import Model
from cephalo_cli.catalog import load_model
from cephalo_cli.errors import UsageError
from cephalo_cli.models import build_unit, initialise_
from cephalo_cli.models.own import check_own, describe_own
from cephalo_cli.units import model_units, num_parameters
from tests.models.own_models import WIDTH, WRONG

GOOD = "tests.models.own_models:good"
EXAMPLE = "examples.own_model:model"
SEQ_LEN = 6


def test_a_model_is_described_by_its_shapes() -> None:
    model = describe_own(EXAMPLE, SEQ_LEN, "float32")
    assert Model.model_validate_json(model.model_dump_json(exclude_none=True)) == model
    assert (model.family, model.name, model.num_layers, model.hidden_size) == ("own", EXAMPLE, 3, 32)
    assert (model.vocab_size, model.max_seq_len) == (260, 64)
    assert model.own is not None
    assert model.own.units == (0, 1, 2, 1, 3)
    units = model_units(model)
    assert [unit.name for unit in units] == ["embedding", "block.0", "block.1", "block.2", "head"]
    sizes = [sum(parameter.numel() for parameter in built.parameters()) for built in built_units(model)]
    assert [unit.num_parameters for unit in units] == sizes
    assert num_parameters(model) == sum(sizes)


def built_units(model: Model) -> list[torch.nn.Module]:
    with torch.device("meta"):
        return [build_unit(model, unit.kind, unit.index) for unit in model_units(model)]


def test_starting_weights_depend_on_seed_and_unit_alone() -> None:
    model = describe_own(GOOD, SEQ_LEN, "float32")

    def draw(index: int, seed: int) -> torch.Tensor:
        unit = build_unit(model, "block", index)
        initialise_(unit, model, index, seed)
        return torch.cat([parameter.detach().flatten() for parameter in unit.parameters()])

    before = torch.random.get_rng_state()
    first = draw(1, 5)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(draw(1, 5), first)
    assert not torch.equal(draw(1, 6), first)
    assert not torch.equal(draw(2, 5), first)
    assert first.abs().max() <= WIDTH**-0.5  # as torch fills a linear layer


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    source = f"tests.models.own_models:{name}"
    with pytest.raises(UsageError) as refused:
        describe_own(source, SEQ_LEN, "float32")
    assert refused.value.message.startswith(WRONG[name][1])
    assert refused.value.where == f"--model {source}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "tests.models.nowhere:good",
            "cannot be imported: ModuleNotFoundError: No module named 'tests.models.nowhere'",
        ),
        ("tests.models.own_models:nothing", "cannot be imported: AttributeError: nothing"),
    ],
)
def test_what_cannot_be_imported_is_said(source: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        describe_own(source, SEQ_LEN, "float32")
    assert refused.value.message == message


def test_sequences_beyond_the_longest_are_refused() -> None:
    with pytest.raises(UsageError, match="unit 0 takes at most 64 tokens"):
        describe_own(EXAMPLE, 65, "float32")


def test_a_plan_for_other_shapes_is_refused() -> None:
    described = describe_own(GOOD, SEQ_LEN, "float32").model_dump(mode="json", exclude_none=True)
    other = describe_own(EXAMPLE, SEQ_LEN, "float32")
    check_own(other, SEQ_LEN, "float32")
    assert other.own is not None
    changed = other.model_copy(update={"own": other.own.model_copy(update={"source": GOOD})})
    with pytest.raises(
        UsageError, match=r"the plan was made for tests\.models\.own_models:good with parameters of digest"
    ):
        check_own(changed, SEQ_LEN, "float32")
    described["own"]["layouts"][0]["table.weight"] = [261, WIDTH]
    with pytest.raises(ValidationError, match="the digest of the shapes"):
        Model.model_validate_json(json.dumps(described))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dropout": 0.1}, "no dropout"),
        ({"num_layers": 3}, "found 3, but there are 4 units"),
        ({"frozen": ["*"]}, "is not for family 'own'"),
        ({"own": None}, "is missing, family 'own' needs it"),
    ],
)
def test_an_artifact_that_contradicts_itself_is_refused(change: dict[str, Any], message: str) -> None:
    described = describe_own(GOOD, SEQ_LEN, "float32").model_dump(mode="json", exclude_none=True)
    with pytest.raises(ValidationError, match=message):
        Model.model_validate_json(json.dumps(described | change))


def test_nothing_is_known_to_estimate_it() -> None:
    with pytest.raises(UsageError, match="which is measured"):
        load_model(GOOD)
