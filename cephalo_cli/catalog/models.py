"""Models by name, and the one door through which the command line gets a model."""

from pathlib import Path

from cephalo_cli.artifacts import store
from cephalo_cli.artifacts.base import InputFile
from cephalo_cli.artifacts.model import Model, is_own_source
from cephalo_cli.catalog.data import find, model_records
from cephalo_cli.catalog.huggingface import model_from_hf_config
from cephalo_cli.errors import ArtifactError, UsageError

__all__ = ["load_model", "model", "model_in_tables"]


def model_in_tables(name: str) -> str | None:
    """Return the id of the model that published tables of measurements call so, to the letter; None if they do not."""
    return next((key for key, record in model_records().items() if name in record.table_names), None)


def model(name: str, *, where: str = "--model") -> Model:
    """Return the shape of a model, by name or alias; ``gpt_1.3b`` and ``gpt-1.3b`` are one name.

    Six names of the reference measurements mean shapes that differ from the models of that name in vocabulary and
    positions: ``llama_7b``, written so, is ``cephalo-llama-7b``, while ``llama-7b`` is Llama as published.

    Raises:
        ArtifactError: The catalog has no such model.
    """
    key = model_in_tables(name) or find(name, model_records(), lambda record: record.aliases, what="model", where=where)
    return Model.model_validate({"name": key, **model_records()[key].shape})


def load_model(text: str) -> tuple[Model, tuple[InputFile, ...]]:
    """Get a model from what the user wrote, and the files it came from.

    ``text`` is a model artifact (``-``: from standard input), a Hugging Face ``config.json`` or a folder that holds
    one, or else a catalog name. What exists as a file is read as one.

    Raises:
        UsageError: It is a model of one's own.
        ArtifactError: There is no such file or name, or the file is not a model or has settings that are not supported.
    """
    if not text:
        raise UsageError("no model is named", where="--model", hint="cephalo catalog models lists those known")
    path = Path(text)
    if is_own_source(text) and not path.exists():
        raise UsageError(
            f"{text} is a model of one's own, which is measured: nothing is known of it to estimate or import",
            hint=f"cephalo profile CLUSTER --model {text} --seq-len N",
        )
    if path.is_dir():
        path /= "config.json"
    if text == store.STANDARD_STREAM:
        return store.read(text, Model), ()
    if path.is_file() or path.suffix == ".json":
        return _read(path), (store.input_file(path),)
    try:
        return model(text), ()
    except ArtifactError as error:
        if len(path.parts) > 1:
            raise ArtifactError("no such file", where=text, hint=_instead(path.name)) from error
        raise


def _instead(name: str) -> str:
    """What to give instead of a path that leads nowhere, such as a name of the Hugging Face hub."""
    try:
        key = model(name).name
    except ArtifactError:
        return "give a model file or a catalog name"
    return f"nothing is downloaded, but the catalog has {key!r}"


def _read(path: Path) -> Model:
    if path.name == "config.json" or "model_type" in store.read_object(path, wanted=Model):
        return model_from_hf_config(path)
    return store.read(path, Model)
