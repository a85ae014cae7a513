"""From a Hugging Face folder through training on several ranks to a folder again."""

import json
import weakref
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from cephalo_cli.artifacts import Model
from cephalo_cli.catalog.huggingface import model_from_hf_config
from cephalo_cli.errors import ArtifactError, TrainingError, UsageError
from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.export import Export, UnitTensors
from cephalo_cli.executor.pretrained import Pretrained
from cephalo_cli.units import num_frozen_parameters
from tests.executor.fine_tuning import RATE, SHARES, SPLIT, fine_tune, with_tokenizer
from tests.executor.plans import make_plan
from tests.executor.ranks import Job, Ranks, train_job
from tests.executor.reference import write_text
from tests.executor.test_pretrained import filled_modules
from tests.models.hub import FAMILIES, empty_modules, load_folder, make_folder, some_batch, their_logits


def units_of(weights: Pretrained, model: Model) -> Iterator[UnitTensors]:
    for module in filled_modules(weights, model):
        yield dict(module.named_parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_comes_back_byte_for_byte(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = make_folder(name, tmp_path / "in", dtype=dtype)
    model = model_from_hf_config(tmp_path / "in" / "config.json")
    weights = Pretrained(tmp_path / "in", model)
    Export(tmp_path / "out", model, weights=weights, most_bytes=3000).write(units_of(weights, model))
    before = load_file(tmp_path / "in" / "model.safetensors")
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2
    after = {key: tensor for path in files for key, tensor in load_file(path).items()}
    assert after.keys() == before.keys()
    for key, tensor in before.items():
        if (name, key) != ("bert-untied", "cls.predictions.bias"):  # not used, written as the bias that is
            assert after[key].dtype == dtype
            assert torch.equal(after[key], tensor), key
    assert (tmp_path / "out" / "config.json").read_bytes() == (tmp_path / "in" / "config.json").read_bytes()
    batch = some_batch(name)
    if dtype == torch.float32:
        again = their_logits(load_folder(name, tmp_path / "out"), batch)
        assert torch.equal(again, their_logits(theirs, batch))


def test_one_unit_is_held_at_a_time(tmp_path: Path) -> None:
    make_folder("gpt2", tmp_path / "in")
    model = model_from_hf_config(tmp_path / "in" / "config.json")
    made: list[weakref.ref[torch.Tensor]] = []

    def units() -> Iterator[UnitTensors]:
        for shapes in [dict(module.named_parameters()) for module in empty_modules(model)]:
            assert all(tensor() is None for tensor in made)
            tensors = {name: torch.zeros(each.shape) for name, each in shapes.items()}
            made.extend(map(weakref.ref, tensors.values()))
            yield tensors
            del tensors

    Export(tmp_path / "out", model).write(units())
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_without_a_folder_gets_a_configuration(name: str, tmp_path: Path) -> None:
    """The architecture is written from the model alone, and transformers understands it."""
    theirs = make_folder(name, tmp_path / "in")
    model = model_from_hf_config(tmp_path / "in" / "config.json")
    Export(tmp_path / "out", model).write(units_of(Pretrained(tmp_path / "in", model), model))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == theirs.config.model_type
    batch = some_batch(name)
    again, expected = their_logits(load_folder(name, tmp_path / "out"), batch), their_logits(theirs, batch)
    assert (again - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_other_dtypes_and_what_does_not_fit_them(tmp_path: Path) -> None:
    make_folder("llama", tmp_path / "in")
    model = model_from_hf_config(tmp_path / "in" / "config.json")
    weights = Pretrained(tmp_path / "in", model)
    Export(tmp_path / "out", model, weights=weights, dtype="bfloat16").write(units_of(weights, model))
    kept = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in kept.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"

    def large() -> Iterator[UnitTensors]:
        for unit in units_of(weights, model):
            yield {name: tensor * 1e6 for name, tensor in unit.items()}

    with pytest.raises(TrainingError, match=r"model\.embed_tokens\.weight holds numbers beyond float16"):
        Export(tmp_path / "large", model, weights=weights, dtype="float16").write(large())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_a_model_that_no_configuration_describes_is_refused() -> None:
    model = Model(
        name="odd",
        family="gpt",
        num_layers=1,
        hidden_size=8,
        num_heads=2,
        ffn_size=8,
        vocab_size=9,
        max_seq_len=4,
        linear_bias=False,
    )
    with pytest.raises(
        UsageError, match=r"--export: linear_bias: a gpt2 configuration gives True, the model has False"
    ):
        Export(Path("nowhere"), model)


# Training -------------------------------------------------------------------------------------------------------------


def test_three_mixed_ranks_fine_tune_as_transformers_does(ranks: Ranks, tmp_path: Path) -> None:
    """The folder in, text through its tokenizer, a folder out; a rank without samples, and one without state."""
    text = write_text(tmp_path, 2500)
    make_folder("gpt2", tmp_path / "in", std=0.1)
    with_tokenizer(tmp_path / "in", text)
    model = model_from_hf_config(tmp_path / "in" / "config.json")
    plan = make_plan(model, SPLIT, SHARES)
    options = TrainOptions(
        data=str(text),
        tokenizer=str(tmp_path / "in"),
        num_steps=20,
        learning_rate=RATE,
        weights=str(tmp_path / "in"),
        export=str(tmp_path / "out"),
    )
    (outcome,) = ranks.run([Job(plan=plan, options=options, run=train_job)])
    tokens = Tokenizer.from_file(str(tmp_path / "in" / "tokenizer.json")).encode(text.read_text()).ids
    theirs = load_folder("gpt2", tmp_path / "in").double()
    losses = fine_tune(theirs, tokens, num_steps=20)
    assert outcome[0].losses == pytest.approx(losses, rel=1e-10, abs=0)
    assert losses[-1] < 0.9 * losses[0]
    batch = some_batch("gpt2")
    exported = load_folder("gpt2", tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (tmp_path / "in" / "tokenizer.json").read_bytes()
    expected = their_logits(theirs.float(), batch)
    assert (their_logits(exported, batch) - expected).abs().max() <= 1e-5 * expected.abs().max()
    (file,) = outcome[0].result.report.inputs
    assert file.path == str(tmp_path / "in" / "model.safetensors")
    assert file.sha256 == sha256((tmp_path / "in" / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("schedule", ["layer-major", "replicated"])
def test_what_is_not_trained_comes_back_unchanged(schedule: str, ranks: Ranks, tmp_path: Path) -> None:
    """Weights that are frozen, and stored in 16 bits, are the same bits after training, from any split of the state."""
    make_folder("llama", tmp_path / "in", dtype=torch.bfloat16)
    whole = model_from_hf_config(tmp_path / "in" / "config.json")
    model = whole.model_copy(update={"frozen": ("block.*",), "frozen_dtype": "bfloat16"})
    shares = [1.0, 1.0, 1.0] if schedule == "replicated" else SHARES
    plan = make_plan(
        model,
        [[2, 1], [1], [1]],
        shares,
        schedule=schedule,
        dtype="float32",
        num_frozen_parameters=num_frozen_parameters(model),
    )
    options = TrainOptions(
        data="random", num_steps=2, weights=str(tmp_path / "in"), export=str(tmp_path / "out"), learning_rate=0.1
    )
    (outcome,) = ranks.run([Job(plan=plan, options=options, run=train_job)])
    assert not isinstance(outcome[0], Exception), outcome
    before = load_file(tmp_path / "in" / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed == {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"}


def test_all_ranks_refuse_a_bad_folder_together(ranks: Ranks, tmp_path: Path) -> None:
    make_folder("gpt2", tmp_path / "in")
    tensors = load_file(tmp_path / "in" / "model.safetensors")
    save_file(
        tensors | {"lm_head.weight": tensors["transformer.wte.weight"] + 1}, tmp_path / "in" / "model.safetensors"
    )
    plan = make_plan(model_from_hf_config(tmp_path / "in" / "config.json"), SPLIT, SHARES)
    options = TrainOptions(data="random", num_steps=1, weights=str(tmp_path / "in"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    taken = TrainOptions(data="random", num_steps=1, export=str(tmp_path / "full"))
    jobs = [Job(plan=plan, options=each, run=train_job) for each in (options, taken)]
    copies, full = ranks.run(jobs)
    for errors, message in (
        (copies, "lm_head.weight: differs from transformer.wte.weight, but the model has one tensor for both"),
        (full, "full: exists already (--force replaces it)"),
    ):
        assert len({str(error) for error in errors}) == 1
        assert all(isinstance(error, ArtifactError) and message in str(error) for error in errors), errors


def test_a_checkpoint_wins_over_the_folder(ranks: Ranks, tmp_path: Path) -> None:
    """A restarted job keeps its command line; and with no step left to do it still exports."""
    make_folder("gpt2", tmp_path / "in")
    plan = make_plan(model_from_hf_config(tmp_path / "in" / "config.json"), SPLIT, SHARES, dtype="float32")
    options = TrainOptions(
        data="random",
        num_steps=2,
        weights=str(tmp_path / "in"),
        checkpoint_dir=str(tmp_path / "run"),
        export=str(tmp_path / "one"),
    )
    again = options.model_copy(update={"resume": "latest", "export": str(tmp_path / "two")})
    jobs = [Job(plan=plan, options=each, run=train_job) for each in (options, again)]
    _, resumed = ranks.run(jobs)
    notice = f"the weights are those of {tmp_path / 'run' / 'step-00000002'}, not of {tmp_path / 'in'}"
    assert notice in resumed[0].notices
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("in", "one", "two")]
    assert files[0] != files[1] == files[2]
