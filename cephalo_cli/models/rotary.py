"""Rotary positions: queries and keys are turned by angles that grow with their position.

The angle of position t and pair i is ``t * f_i`` with ``f_i = theta**(-2i/C)`` (Su et al., RoFormer, arXiv 2104.09864).
To reach further than a model was trained, the slow frequencies are divided by a factor, the fast ones kept:

    f_i' = f_i * (k_i + (1 - k_i) / factor)

    linear   k_i = 0 (Chen et al., arXiv 2306.15595)
    llama3   k_i from 0 to 1 as the turns of a pair in the original length go from ``low_freq_factor`` to
             ``high_freq_factor`` (Llama 3.1's published code)
    yarn     k_i from 1 to 0 between the pairs that turn ``beta_fast`` and ``beta_slow`` times in the original length;
             cosine and sine are multiplied by ``0.1 ln(factor) + 1`` (Peng et al., YaRN, arXiv 2309.00071)
"""

import math

import torch

from cephalo_cli.artifacts.model import Model, RopeScaling

__all__ = ["rotate", "turns"]


def turns(
    model: Model, tokens: int, positions_BT: torch.Tensor | None, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every position's angles, ``[T, C/2]``, or ``[B, 1, T, C/2]`` where positions are given.

    They are made anew in every call: the work is ``T * C/2`` elements, small beside a block's, and no unit has to keep
    them.
    """
    width, theta = model.width_of_head, model.rope_theta or 10_000.0
    dtype = torch.promote_types(like.dtype, torch.float32)
    pairs = torch.arange(0, width, 2, dtype=dtype, device=like.device)
    frequencies_C = theta ** (-pairs / width)
    if model.rope_scaling is not None:
        frequencies_C = frequencies_C * _slowed(model.rope_scaling, frequencies_C, theta, width)
    if positions_BT is None:
        angles = torch.outer(torch.arange(tokens, dtype=dtype, device=like.device), frequencies_C)
    else:
        angles = positions_BT[:, None, :, None].to(dtype) * frequencies_C
    cos, sin = angles.cos(), angles.sin()
    gain = _gain(model.rope_scaling)
    if gain != 1.0:
        cos, sin = cos * gain, sin * gain
    return cos.to(like.dtype), sin.to(like.dtype)


def rotate(x_BHTC: torch.Tensor, cos_TC: torch.Tensor, sin_TC: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + C/2) of every head, the layout of Hugging Face's Llama."""
    first, second = x_BHTC.chunk(2, dim=-1)
    return torch.cat((first * cos_TC - second * sin_TC, second * cos_TC + first * sin_TC), dim=-1)


def _slowed(scaling: RopeScaling, frequencies_C: torch.Tensor, theta: float, width: int) -> torch.Tensor:
    """What each frequency is multiplied by: ``k + (1 - k) / factor``."""
    kept_C = torch.zeros_like(frequencies_C)
    length = scaling.original_max_seq_len
    if scaling.type == "llama3" and length and scaling.low_freq_factor and scaling.high_freq_factor:
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept_C = ((length / (2 * math.pi) * frequencies_C - low) / (high - low)).clamp(0.0, 1.0)
    elif scaling.type == "yarn" and length:
        fast = _pair_that_turns(scaling.beta_fast or 32.0, length, theta, width)
        slow = _pair_that_turns(scaling.beta_slow or 1.0, length, theta, width)
        first, last = max(math.floor(fast), 0), min(math.ceil(slow), width - 1)
        places_C = torch.arange(len(frequencies_C), dtype=frequencies_C.dtype, device=frequencies_C.device)
        kept_C = 1.0 - ((places_C - first) / max(last - first, 0.001)).clamp(0.0, 1.0)
    return kept_C + (1.0 - kept_C) / scaling.factor


def _pair_that_turns(count: float, length: int, theta: float, width: int) -> float:
    """Index of the pair that turns ``count`` times over ``length`` positions."""
    return width * math.log(length / (count * 2 * math.pi)) / (2 * math.log(theta))


def _gain(scaling: RopeScaling | None) -> float:
    """What cosine and sine are multiplied by."""
    if scaling is None or scaling.type != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
