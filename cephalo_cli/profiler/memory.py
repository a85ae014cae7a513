"""Memory of one unit without a device: the unit runs on tensors that have shapes and lifetimes, but no bytes.

Note: what is counted
    A unit runs forward and backward on fake tensors while every storage is watched from birth to death. Counted is all
    that lives besides the parameters and their gradient buffers:

    * the unit's input and the gradient of its output, alive throughout, as they are when a block is recomputed; what
      a microbatch holds beside (tokens and targets, images) counts for the unit that reads it;
    * what autograd keeps, and every temporary tensor the operators make;
    * each parameter's gradient from the moment autograd makes it until it has been added to the unit's gradient buffer:
      at once where the buffer has the compute dtype, at the end of the microbatch's backward where it is wider.

    The output is let go between forward and backward, as the executor does: it is the next unit's input.

    Scratch space inside one operator (a matrix product's workspace, a fused kernel's accumulators) has no tensor of
    its own and is not seen; it belongs to the reserve.

Note: attention
    ``fused`` runs `scaled_dot_product_attention` as its flash kernel does: no T x T matrix exists, one float32 a head
    and token is saved beside the output. CPUs of every dtype and CUDA devices from Ampere on behave so. ``plain``
    materialises scores and probabilities, as torch's math path does where no fused kernel takes the dtype, the device
    or grouped queries.

Note: loss
    ``in-place`` is ours (`models.loss`). ``plain`` is torch's cross entropy on logits in float32, for replaying what
    other programs needed.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal
from weakref import finalize

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.models import DropoutKey, ImageBatch, TextBatch, build_unit
from cephalo_cli.profiler.attention import Attention
from cephalo_cli.profiler.inputs import random_batch
from cephalo_cli.units import DTYPE_BYTES, trained_sizes

__all__ = ["Attention", "Loss", "UnitMemory", "memory_curve", "unit_memory"]

Loss = Literal["in-place", "plain"]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitMemory:
    """Bytes of one unit and one microbatch."""

    working_bytes: int
    """Most that lives at once during forward and backward, parameters and their gradient buffers left out."""
    saved_bytes: int
    """What lives from forward to backward without recompute: autograd's tensors and the unit's input."""


def unit_memory(
    model: Model,
    *,
    seq_len: int,
    dtype: DType,
    kind: UnitKind,
    microbatch: int,
    attention: Attention = "fused",
    loss: Loss = "in-place",
) -> UnitMemory:
    """Run one unit on fake tensors and report its memory.

    Args:
        model: The model.
        seq_len: Tokens of one sample (not used for vit).
        dtype: Compute dtype of parameters and activations.
        kind: Which unit.
        microbatch: Samples.
        attention: How attention is computed on the device in question.
        loss: How the head computes the loss.

    Raises:
        UsageError: The model's shape cannot be run.
    """
    shape = (microbatch, model.tokens_per_sample(seq_len), model.hidden_size)
    with FakeTensorMode(), _default_dtype(dtype), ExitStack() as stack:
        if attention == "plain":
            stack.enter_context(_PlainAttention())
        unit = build_unit(model, kind)
        tied_VD = nn.Parameter(torch.empty(model.vocab_size or 0, model.hidden_size))
        trained = trained_sizes(model, kind)
        for name, parameter in unit.named_parameters():
            parameter.requires_grad_(name in trained)
        tied_VD.requires_grad_("matrix" in trained_sizes(model, "embedding"))
        parameters = [*unit.parameters(), tied_VD]
        kept = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in kept if DTYPE_BYTES[dtype] >= DTYPE_BYTES["float32"] else ():
            parameter.register_post_accumulate_grad_hook(_drop_gradient)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        ahead = random_batch(model, microbatch, seq_len) if kind == "block" else None
        key = DropoutKey(seed=0, step=0, unit=0, samples=tuple(range(microbatch))) if model.dropout else None
        with _LiveStorages(parameters) as live:
            below = () if kind == "embedding" else (torch.empty(shape, requires_grad=True),)
            batch = ahead or random_batch(model, microbatch, seq_len)
            last = (tied_VD if model.tie_embeddings else None) if kind == "head" else key
            run = _PlainHead(unit) if kind == "head" and loss == "plain" else unit
            return _run(run, (*below, batch, last), () if kind == "head" else shape, live)


def memory_curve(
    model: Model,
    *,
    seq_len: int,
    dtype: DType,
    kind: UnitKind,
    microbatches: Sequence[int],
    attention: Attention = "fused",
    loss: Loss = "in-place",
) -> list[UnitMemory]:
    """Report the memory of one unit at increasing microbatch sizes, running it at few of them.

    At every moment of a run the live bytes are a line in the microbatch size, so their peak is convex; and a convex
    curve that meets its chord in between is the chord. Sizes are halved until each piece is one. Raises as
    `unit_memory`.
    """
    known: dict[int, UnitMemory] = {}

    def at(index: int) -> UnitMemory:
        size = microbatches[index]
        if size not in known:
            known[size] = unit_memory(
                model, seq_len=seq_len, dtype=dtype, kind=kind, microbatch=size, attention=attention, loss=loss
            )
        return known[size]

    def fill(left: int, right: int) -> None:
        if right - left < 2:
            return
        middle = (left + right) // 2
        on_chord = _between(
            (microbatches[left], at(left)), (microbatches[right], at(right)), microbatches[middle]
        ) == at(middle)
        if not on_chord:
            fill(left, middle)
            fill(middle, right)
            return
        for index in range(left + 1, right):
            size = microbatches[index]
            known[size] = _between((microbatches[left], at(left)), (microbatches[right], at(right)), size)

    at(0)
    at(len(microbatches) - 1)
    fill(0, len(microbatches) - 1)
    return [known[size] for size in microbatches]


def _run(
    unit: nn.Module, arguments: tuple[object, ...], output_shape: tuple[int, ...], live: "_LiveStorages"
) -> UnitMemory:
    """Run forward, note what is kept once the output is let go, then run backward."""
    upstream = torch.empty(output_shape)
    output = unit(*arguments)
    graph = torch.autograd.graph.get_gradient_edge(output) if output.requires_grad else None
    del output
    saved_bytes = live.now_bytes - upstream.untyped_storage().nbytes()
    if graph is not None:  # a frozen embedding has none
        torch.autograd.backward(graph, upstream)
    return UnitMemory(working_bytes=live.peak_bytes, saved_bytes=saved_bytes)


def _between(left: tuple[int, UnitMemory], right: tuple[int, UnitMemory], size: int) -> UnitMemory:
    """Read the chord between two sizes at a third, rounded to whole bytes."""
    fraction = Fraction(size - left[0], right[0] - left[0])

    def read(low: int, high: int) -> int:
        return round(low + (high - low) * fraction)

    return UnitMemory(
        working_bytes=read(left[1].working_bytes, right[1].working_bytes),
        saved_bytes=read(left[1].saved_bytes, right[1].saved_bytes),
    )


@contextmanager
def _default_dtype(dtype: DType) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _drop_gradient(parameter: torch.Tensor) -> None:
    """Free a gradient as soon as it has been added to the unit's buffer."""
    parameter.grad = None


class _PlainHead(nn.Module):
    """A head whose loss is torch's."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head: Any = head

    def forward(self, x_BTD: torch.Tensor, batch: TextBatch | ImageBatch, tied_VD: torch.Tensor | None) -> torch.Tensor:
        logits = self.head.logits(x_BTD, tied_VD).to(torch.float32)
        return functional.cross_entropy(logits.flatten(0, -2), batch.targets.flatten(), reduction="sum")


class _PlainAttention(TorchFunctionMode):
    """Runs attention step by step instead of as one operator."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        options = kwargs or {}
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **options)
        q_BHTC, k_BHTC, v_BHTC = args[0], *(_for_every_head(kept, args[0].shape[1]) for kept in args[1:3])
        scores_BHTT = q_BHTC @ k_BHTC.transpose(-1, -2) * q_BHTC.shape[-1] ** -0.5
        if options.get("is_causal"):
            tokens = scores_BHTT.shape[-1]
            later_TT = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
            scores_BHTT = scores_BHTT.masked_fill(later_TT, float("-inf"))
        wide = torch.promote_types(scores_BHTT.dtype, torch.float32)
        chances_BHTT = functional.dropout(scores_BHTT.softmax(-1, dtype=wide), p=0.1)
        return chances_BHTT.to(v_BHTC.dtype) @ v_BHTC


def _for_every_head(kept_BKTC: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Repeat grouped keys or values for each query head."""
    repeats = num_heads // kept_BKTC.shape[1]
    return kept_BKTC if repeats == 1 else kept_BKTC.repeat_interleave(repeats, dim=1)


class _LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Watches every storage that operators make, except those of ``parameters``."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.now_bytes = 0
        self.peak_bytes = 0
        self._alive = {id(parameter.untyped_storage()): 0 for parameter in parameters}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)  # a storage keeps its Python object for as long as it lives
        if key in self._alive:
            return
        self._alive[key] = storage.nbytes()
        self.now_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)
        finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now_bytes -= self._alive.pop(key)
