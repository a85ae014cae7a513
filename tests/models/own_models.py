"""Models of one's own that are not as they must be, each in one way; `good` is."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCAB_SIZE = 260
WIDTH = 8


class First(nn.Module):
    vocab_size = VOCAB_SIZE

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB_SIZE, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.table(tokens)
        return found


class Middle(nn.Module):
    def __init__(self, change: Callable[[torch.Tensor], Any] = lambda x: x) -> None:
        super().__init__()
        self.matrix = nn.Linear(WIDTH, WIDTH)
        self.change = change

    def forward(self, x: torch.Tensor) -> Any:
        return self.change(x + torch.tanh(self.matrix(x)))


class Bare(nn.Module):
    """Owns a parameter that nothing fills."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain


class Buffered(Middle):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))


def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    wide = torch.promote_types(output.dtype, torch.float32)
    return functional.cross_entropy(output.flatten(0, 1).to(wide), targets.flatten(), reduction="sum")


def mean_loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def hungry_loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return loss(output, targets.clamp(min=0))


def units(*middle: nn.Module) -> list[nn.Module]:
    return [First(), *(middle or (Middle(), Middle())), nn.Linear(WIDTH, VOCAB_SIZE)]


class Whole:
    def units(self) -> list[nn.Module]:
        return units()


def good() -> Any:
    return Whole(), loss


def shared() -> Any:
    one = Middle()
    return units(one, one), loss


def twice() -> Any:
    unit = Middle()
    unit.again = unit.matrix
    return units(unit), loss


def frozen() -> Any:
    return units(Middle().requires_grad_(False)), loss


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "units_alone": (units, "returns a list, expected two things: the units and the loss"),
    "too_few": (lambda: (units()[:2], loss), "gives 2 units, expected a first, one or more in between, and a last"),
    "no_module": (lambda: ([First(), print, Middle()], loss), "unit 1 is a builtin_function_or_method, expected a"),
    "no_vocab": (lambda: (units()[1:], loss), "unit 0 has vocab_size None, expected the number of token ids"),
    "fails": (lambda: 1 / 0, "failed: ZeroDivisionError: division by zero"),
    "shared": (shared, "units 1 and 2 share the parameter matrix.weight"),
    "twice": (twice, "unit 1 has one parameter under two names"),
    "frozen": (frozen, "unit 1 does not train matrix.weight"),
    "buffered": (lambda: (units(Buffered()), loss), "unit 1 has the buffer seen"),
    "empty": (lambda: (units(nn.GELU()), loss), "unit 1 has no parameters"),
    "bare": (
        lambda: (units(Bare()), loss),
        "unit 1 does not fill gain: the module that owns it has no reset_parameters",
    ),
    "eager": (
        lambda: (units(nn.Linear(WIDTH, WIDTH, device="cpu")), loss),
        "unit 1 made weight on cpu although the default device is meta",
    ),
    "two_results": (lambda: (units(Middle(lambda x: (x, x))), loss), "unit 1 returns a tuple, expected one tensor"),
    "wider": (
        lambda: (units(Middle(lambda x: torch.cat((x, x), -1))), loss),
        "unit 1 returns shape [2, 6, 16], expected [2, 6, 8]",
    ),
    "not_fitting": (lambda: (units(nn.Linear(7, 7)), loss), "unit 1 failed on a tensor of the unit before: "),
    "other_dtype": (
        lambda: (units(Middle(lambda x: x.double())), loss),
        "unit 1 returns torch.float64 where its parameters are torch.float32",
    ),
    "dropout": (
        lambda: (units(Middle(lambda x: functional.dropout(x, 0.5))), loss),
        "unit 1 gives another result the second time",
    ),
    "batch_mean": (
        lambda: (units(Middle(lambda x: x - x.mean(0))), loss),
        "unit 1 gives a sample another result in another microbatch",
    ),
    "mean": (lambda: (units(), mean_loss), "the loss of three samples is not the sum of their losses"),
    "hungry": (lambda: (units(), hungry_loss), "the loss counts targets of -100"),
    "loss_of_many": (lambda: (units(), lambda output, _: output), "the loss is not one number"),
}


def __getattr__(name: str) -> Callable[[], Any]:
    if name not in WRONG:
        raise AttributeError(name)
    return WRONG[name][0]
