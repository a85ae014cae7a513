"""Options of ``cephalo plan`` that do not go together, or are out of range: one line for each."""

import math
from typing import TYPE_CHECKING

from cephalo_cli.errors import UsageError

if TYPE_CHECKING:
    from cephalo_cli.cli.planning import Question

__all__ = ["refuse_contradictions"]


def refuse_contradictions(question: "Question", *, to_standard_output: bool) -> None:
    """Refuse the first contradiction among the options.

    Args:
        question: The options.
        to_standard_output: Whether the plan goes there instead of to a file.

    Raises:
        UsageError: There is one.
    """
    one_size = question.has_one_size
    searches = question.drop_devices or question.objective == "cost" or not one_size
    for contradicts, message, hint in (
        (
            question.profile is None and question.gpus is None,
            "no PROFILE given",
            "or name devices: --gpus rtx-3090:2,p40",
        ),
        (
            question.profile is not None and question.gpus is not None,
            "PROFILE and --gpus exclude each other",
            "leave one out",
        ),
        (question.gpus is not None and question.model is None, "--gpus needs --model", "such as --model llama-7b"),
        (
            question.gpus is None
            and (question.model or question.seq_len or question.dtype or question.lora) is not None,
            "--model, --seq-len, --dtype and --lora go with --gpus; a profile has its own",
            "leave them out",
        ),
        (question.batch_size is None, "--batch-size is missing", "a number, auto or max"),
        (
            question.max_batch_size is not None and one_size,
            "--max-batch-size goes with --batch-size auto or max",
            "leave it out",
        ),
        (
            searches and question.strategy != "cephalo",
            "--batch-size auto or max, --drop-devices and --objective cost are searches of strategy cephalo",
            "leave out --strategy",
        ),
        (
            (question.drop_devices or question.objective == "cost") and question.time_limit is not None,
            "--drop-devices and --objective cost take no --time-limit",
            "leave it out",
        ),
        (
            not one_size and (question.drop_devices or question.objective == "cost"),
            "--drop-devices and --objective cost need one batch size",
            "give --batch-size a number",
        ),
        (
            not 0.0 < question.memory_fraction <= 1.0,
            f"--memory-fraction is {question.memory_fraction:g}, expected a number above 0 and at most 1",
            f"{question.memory_fraction / 100:g} is {question.memory_fraction:g} %"
            if question.memory_fraction > 1
            else None,
        ),
        (
            question.time_limit is not None and not 0.0 < question.time_limit < math.inf,
            f"--time-limit is {question.time_limit}, expected seconds above 0",
            None,
        ),
        (not 0.0 <= question.momentum < 1.0, f"--momentum is {question.momentum:g}, expected 0 or more, below 1", None),
        (question.momentum > 0 and question.optimizer != "sgd", "--momentum is for --optimizer sgd", "leave it out"),
        (
            question.recompute == "off" and question.offload == "on",
            "--offload on needs recompute",
            "leave out --recompute off",
        ),
        (
            question.recompute == "blocks" and question.offload == "on",
            "--offload on needs recompute of all blocks",
            "leave out --recompute blocks",
        ),
        (
            (question.recompute == "blocks" or question.keep_unsharded != "off")
            and question.strategy not in ("cephalo", "all"),
            "--recompute blocks and --keep-unsharded are for strategy cephalo",
            "leave them out",
        ),
        (
            question.strategy == "all" and to_standard_output,
            "--strategy all writes several files",
            "give -o a file name",
        ),
    ):
        if contradicts:
            raise UsageError(message, hint=hint)
