"""What to give instead of a file that is not there, or is not what it should be."""

import difflib
import re
from collections.abc import Collection, Mapping
from pathlib import Path

__all__ = ["OF_A_MANIFEST", "OTHER_FORMATS", "inside", "neighbour", "of_checkpoint"]

OF_A_MANIFEST = frozenset({"step", "position", "state_dtype"})
"""Keys by which the manifest of a checkpoint is known."""
OTHER_FORMATS: Mapping[str, str] = {
    ".csv": "a table of latencies is for cephalo profile --from-table, with --memory-table",
    ".jsonl": "it has one object a line; give the report that was written with it",
    ".yaml": "write it as JSON",
    ".yml": "write it as JSON",
    ".toml": "write it as JSON",
}
"""What to do with files that are not JSON, by their ending."""
BYTES_THAT_TELL = 4096
"""Within so many first bytes a file says its kind, if this program wrote it."""
_KIND = re.compile(rb'^\s*\{[^{\[]*?"kind"\s*:\s*"(\w+)"')


def neighbour(path: Path, kinds: Collection[str] | None) -> str | None:
    """Propose the file whose name comes nearest: an artifact of one of these kinds, or else one of the same ending."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"the folder {path.parent} does not exist"
    close = difflib.get_close_matches(path.name, names, n=len(names) or 1, cutoff=0.6)
    fitting = (path.parent / name for name in close if _may_be(path.parent / name, kinds, path.suffix))
    near = next(fitting, None)
    return None if near is None else f"did you mean {str(near)!r}?"


def _may_be(path: Path, kinds: Collection[str] | None, suffix: str) -> bool:
    """Tell from its first bytes whether a file is of a kind; hand-written ones may begin with anything."""
    if path.is_dir():
        return False
    if kinds is None:
        return path.suffix == suffix
    try:
        with path.open("rb") as file:
            begin = file.read(BYTES_THAT_TELL)
    except OSError:
        return False
    found = _KIND.search(begin)
    return found[1].decode() in kinds if found else "model" in kinds and b'"model_type"' in begin


def inside(folder: Path) -> str:
    """What to do with a folder that was given for a file."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return "give a file"
    if "manifest.json" in names or any((folder / name / "manifest.json").exists() for name in names):
        return f"it holds a checkpoint: {of_checkpoint(folder)}"
    documents = [name for name in names if name.endswith(".json")]
    return f"give a file in it, such as {folder / documents[0]}" if documents else "there is no JSON file in it"


def of_checkpoint(folder: Path) -> str:
    """What to do with a checkpoint."""
    return f"cephalo export {folder} DIR writes it for transformers, train --resume goes on"
