"""The smallest change under which something fits, tried before it is proposed."""

from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.profile import Basis
from cephalo_cli.errors import InfeasibleError, UsageError
from cephalo_cli.planner.frugal import Shortage, find_shortage, state_fits
from cephalo_cli.planner.problem import Problem, make_problem
from cephalo_cli.planner.variants import with_card
from cephalo_cli.quantities import format_bytes

__all__ = ["fits", "infeasible", "largest_batch"]

MOST_CARDS = 512
"""How many more cards of one type are tried."""
TERMS = {
    "state": "weights, gradients and optimizer",
    "buffers": "parameters gathered for use, and a gradient",
    "working": "tensors of the largest microbatch",
    "saved": "activations kept for backward",
    "reserve": "what the runtime takes or is to stay free",
    "start-up": "the weights when training starts",
}
"""What the memory terms of a shortage are."""


def infeasible(problem: Problem, reason: str | None = None) -> InfeasibleError:
    """Say what is missing, and the smallest repair that works.

    Args:
        problem: The problem nothing fits.
        reason: What is missing, where a strategy other than cephalo says it; found here when absent.
    """
    message = reason
    if message is None:
        shortage = find_shortage(problem)
        if shortage is None:
            raise AssertionError("something fits after all")
        message = _in_words(problem, shortage)
    repair = _smaller_reserve(problem) or _repair(problem)
    return InfeasibleError(
        message, where="no plan fits", hint=repair or f"{MOST_CARDS} more cards of a type do not suffice"
    )


def _in_words(problem: Problem, shortage: Shortage) -> str:
    over = f"{format_bytes(shortage.over_bytes)} ({shortage.over_bytes} bytes)"
    if shortage.everywhere:
        return (
            f"state: the training state of {format_bytes(problem.state_bytes)} is {over} more than all ranks can hold "
            f"beside their samples; rank {shortage.rank} ({shortage.device}) has the least memory"
        )
    limit = next(group.limit_bytes for group in problem.groups if group.name == shortage.device)
    return (
        f"rank {shortage.rank} ({shortage.device}) is {over} over its limit of {format_bytes(limit)}; "
        f"the term that breaks it is {shortage.term} ({TERMS[shortage.term]})"
    )


def _smaller_reserve(problem: Problem) -> str | None:
    """What to look at where the reserve alone is over a rank's limit: no smaller batch and no more cards help there."""
    settings = problem.settings
    for group in problem.groups:
        if group.reserve_bytes <= group.limit_bytes:
            continue
        capacity = problem.basis.cluster.device_types[group.name].memory_bytes or 0
        reserve, limit, whole = (format_bytes(each) for each in (group.reserve_bytes, group.limit_bytes, capacity))
        if settings.reserve_bytes is not None and capacity > problem.basis.devices[group.name].reserve_bytes:
            return f"give a lower --reserve: {reserve} is more than the {limit} that a rank on {group.name} may use"
        if group.reserve_bytes <= capacity:
            return (
                f"raise --memory-fraction: {settings.memory_fraction:g} of the {whole} of {group.name} is less than "
                f"the reserve of {reserve}"
            )
        return f"check memory_bytes of device type {group.name}: {whole} is less than the reserve of {reserve} alone"
    return None


def _repair(problem: Problem) -> str | None:
    settings = problem.settings
    options: list[tuple[str, dict[str, object]]] = []
    if settings.recompute == "off":
        options.append(("--recompute auto", {"recompute": "auto"}))
    if settings.offload == "off":
        options.append(("--offload auto", {"offload": "auto"}))
    if settings.recompute == "off" and settings.offload == "off":
        options.append(("--recompute auto --offload auto", {"recompute": "auto", "offload": "auto"}))
    if isinstance(settings.keep_unsharded, int) and settings.keep_unsharded:
        options.append(("--keep-unsharded auto", {"keep_unsharded": "auto"}))
    if settings.microbatch_size is not None and settings.microbatch_size > 1:
        options.append(("--microbatch-size 1", {"microbatch_size": 1}))
    if not settings.optimizer_in_backward:
        options.append(("--optimizer-in-backward", {"optimizer_in_backward": True}))
    for words, change in options:
        if fits(problem.basis, PlanSettings.model_validate(settings.model_dump() | change), problem.batch_size):
            return f"{words} fits"
    batch = largest_batch(problem.basis, settings, problem.batch_size - 1)
    if batch:
        return f"--batch-size {batch} fits"
    return _more_cards(problem)


def _more_cards(problem: Problem) -> str | None:
    """The fewest more cards of one type under which something fits: doubled until it does, then bisected."""

    def enough(name: str, count: int) -> bool:
        basis = problem.basis
        for _ in range(count):
            basis = with_card(basis, name)
        return fits(basis, problem.settings, problem.batch_size)

    most = 1
    while most <= MOST_CARDS:
        for name in sorted(group.name for group in problem.groups):
            if enough(name, most):
                low, high = most // 2 + 1, most
                while low < high:
                    middle = (low + high) // 2
                    low, high = (low, middle) if enough(name, middle) else (middle + 1, high)
                return f"one more {name} fits" if high == 1 else f"{high} more {name} fit"
        most *= 2
    return None


def fits(basis: Basis, settings: PlanSettings, batch_size: int) -> bool:
    """Whether some plan fits; not where the settings ask for what a device or the model cannot do."""
    try:
        return state_fits(make_problem(basis, settings, batch_size))
    except UsageError:
        return False


def largest_batch(basis: Basis, settings: PlanSettings, most: int) -> int:
    """Largest batch size up to ``most`` that fits where all smaller ones do; 0 where none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(basis, settings, middle) else (low, middle - 1)
    return low
