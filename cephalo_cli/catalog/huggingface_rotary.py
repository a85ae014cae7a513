"""Rotary positions and sliding windows in a Hugging Face ``config.json``.

Two spellings of rotary positions: ``rope_theta`` beside ``rope_scaling`` (until 2025), or both in ``rope_parameters``.
"""

from typing import Any

from cephalo_cli.catalog.huggingface_parts import Settings, refuse

__all__ = ["ROTARY", "layers_with_windows", "rotary", "windowed"]

ROTARY = frozenset({"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"})
"""Settings that `rotary` reads."""
WINDOWED = ("sliding_attention", "full_attention")
_ORIGINAL = "original_max_position_embeddings"
_NAMES = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", _ORIGINAL}),
    "yarn": frozenset({"factor", "beta_fast", "beta_slow", "attention_factor", _ORIGINAL}),
}
"""What each type of scaling may say."""
_DEFAULTS = {"partial_rotary_factor": (None, 1.0), "truncate": (None, True)}
"""What any type may say if it changes nothing."""


def rotary(settings: Settings, where: str) -> Settings:
    """Read ``rope_theta`` and ``rope_scaling``.

    Raises:
        ArtifactError: The positions are of a type that is not supported, or say something unknown.
    """
    if settings.get("partial_rotary_factor") not in (None, 1.0):
        raise refuse("heads that are turned in part are not supported, expected 1.0", where, "partial_rotary_factor")
    given = [name for name in ("rope_scaling", "rope_parameters") if settings.get(name)]
    if len(given) > 1:
        raise refuse("says again what rope_parameters says", where, "rope_scaling")
    theta, scaling = settings.get("rope_theta"), None
    for name in given:
        parameters = settings[name]
        if not isinstance(parameters, dict):
            raise refuse(f"found {parameters!r}, expected an object", where, name)
        theta = parameters.get("rope_theta", theta)
        scaling = _scaling(parameters, settings, f"{where}: {name}")
    return {"rope_theta": float(theta) if isinstance(theta, int) else theta, "rope_scaling": scaling}


def windowed(settings: Settings, window: Any, where: str) -> int | None:
    """Give the sliding window; one as long as the longest sequence changes nothing.

    Raises:
        ArtifactError: It is not a number of tokens.
    """
    longest = settings.get("max_position_embeddings")
    if window is None:
        return None
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        raise refuse(f"found {window!r}, expected a number of tokens", where, "sliding_window")
    return None if isinstance(longest, int) and window >= longest else window


def layers_with_windows(settings: Settings, where: str) -> bool:
    """Say whether the layers of a qwen2 model have the window: all of them, or none.

    Raises:
        ArtifactError: Some have it and others have not.
    """
    uses, num_layers = settings.get("use_sliding_window", False), settings.get("num_hidden_layers")
    types, first = settings.get("layer_types"), settings.get("max_window_layers", 28)
    name = "max_window_layers" if types is None else "layer_types"
    if types is None and isinstance(first, int) and isinstance(num_layers, int):
        types = [WINDOWED[not (uses and layer >= first)] for layer in range(num_layers)]
    if not isinstance(types, list) or any(kind not in WINDOWED for kind in types):
        raise refuse(f"expected a list of {' and '.join(WINDOWED)}", where, name)
    if len(types) != num_layers:
        raise refuse(f"names {len(types)} layers, but there are {num_layers}", where, name)
    if len(set(types)) > 1:
        raise refuse("a sliding window in some layers alone is not supported, expected all or none", where, name)
    has_window = WINDOWED[0] in types
    if has_window and not uses:
        raise refuse("has sliding windows, but use_sliding_window is false", where, name)
    return has_window


def _scaling(parameters: Settings, settings: Settings, where: str) -> Settings | None:
    kind: Any = parameters.get("rope_type", parameters.get("type", "default"))
    _check(parameters, kind, where)
    if kind == "default":
        return None
    fields = {name: value for name, value in parameters.items() if name in _NAMES[kind] - {_ORIGINAL}}
    scaling = {name: float(value) if isinstance(value, int) else value for name, value in fields.items()}
    if _ORIGINAL in _NAMES[kind]:
        scaling["original_max_seq_len"] = parameters.get(_ORIGINAL, settings.get("max_position_embeddings"))
    return {"type": kind, **{name: value for name, value in scaling.items() if value is not None}}


def _check(parameters: Settings, kind: Any, where: str) -> None:
    """Look at every parameter of the positions."""
    if any(isinstance(value, dict) for value in parameters.values()):
        raise refuse("different positions in different layers are not supported", *where.rsplit(": ", 1))
    if not isinstance(kind, str) or kind not in _NAMES:
        raise refuse(f"{kind!r} is not supported, expected one of {', '.join(_NAMES)}", where, "rope_type")
    for name, value in parameters.items():
        is_default = name in _DEFAULTS and value in _DEFAULTS[name]
        if not is_default and name not in _NAMES[kind] | {"rope_type", "type", "rope_theta"}:
            expected = f", expected {_DEFAULTS[name][-1]}" if name in _DEFAULTS else ""
            raise refuse(f"{value!r} is not supported for type {kind!r}{expected}", where, name)
    for name in ("factor", "low_freq_factor", "high_freq_factor"):
        if name in _NAMES[kind] and parameters.get(name) is None:
            raise refuse("is missing", where, name)
