"""Hugging Face ``config.json`` as a model: every setting is understood, or known not to matter, or refused by name.

Note: what is read otherwise than written
    * A sliding window as long as the longest sequence changes nothing and is left out.
    * ``attn_pdrop`` and its like may equal the other dropout probabilities; attention probabilities are never dropped
      here (see `models.dropout`), the other two places are.
"""

import json
from pathlib import Path
from typing import cast

from cephalo_cli.artifacts import store
from cephalo_cli.artifacts.model import Model
from cephalo_cli.catalog.huggingface_parts import Settings, refuse, refuse_unsupported, setting
from cephalo_cli.catalog.huggingface_types import LAYOUTS
from cephalo_cli.errors import ArtifactError

__all__ = ["model_from_hf_config"]


def model_from_hf_config(path: str | Path) -> Model:
    """Read a Hugging Face ``config.json`` of type gpt2, llama, mistral, qwen2, bert or vit.

    Args:
        path: The file.

    Raises:
        ArtifactError: The file cannot be read, or has a setting that is unknown, missing or not supported; the message
            names the file and the setting.
    """
    where = str(path)
    settings = store.read_object(path)
    kind = settings.pop("model_type", None)
    if not isinstance(kind, str) or kind not in LAYOUTS:
        raise refuse(f"model type {kind!r} is not supported, expected one of {', '.join(LAYOUTS)}", where, "model_type")
    layout = LAYOUTS[kind]
    refuse_unsupported(settings, layout, where)
    fields = {name: setting(settings, *source, where) for name, source in layout.fields.items()}
    fields |= layout.special(settings, where)
    values = {name: value for name, value in fields.items() if value is not None}
    document = {"kind": "model", "name": _name(settings, Path(path)), "family": layout.family, **values}
    try:
        return cast("Model", store.loads(json.dumps(document).encode(), where=where))
    except ArtifactError as error:
        ours = (error.where or where).removeprefix(f"{where}: ")
        theirs = layout.fields[ours][0] if ours in layout.fields else ours
        raise refuse(error.message, where, theirs) from error


def _name(settings: Settings, path: Path) -> str:
    written = settings.get("_name_or_path")
    if isinstance(written, str) and written.strip("/. "):
        return written
    return path.resolve().parent.name or "model"
