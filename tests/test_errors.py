"""What users are told: one class an exit code, one line a message, the same after a trip between processes."""

import pickle

import pytest

from cephalo_cli import errors
from cephalo_cli.errors import (
    ArtifactError,
    CephaloError,
    ConditionError,
    InfeasibleError,
    InterruptedRunError,
    TimeLimitError,
    TrainingError,
    UsageError,
)

CODES = {
    CephaloError: 1,
    UsageError: 2,
    ArtifactError: 3,
    InfeasibleError: 4,
    TimeLimitError: 5,
    TrainingError: 6,
    ConditionError: 7,
    InterruptedRunError: 130,
}


def test_every_class_has_its_documented_exit_code() -> None:
    assert {kind: kind("x").exit_code for kind in CODES} == CODES
    assert {getattr(errors, name) for name in errors.__all__} == set(CODES)


def test_an_interrupted_run_ends_with_128_and_the_signal() -> None:
    assert InterruptedRunError("x").exit_code == 130
    assert InterruptedRunError("x", signal_number=15).exit_code == 143
    assert InterruptedRunError("x").exit_code == 130, "one run's signal is not the next one's"


@pytest.mark.parametrize(
    ("where", "hint", "line"),
    [
        (None, None, "is wrong"),
        ("plan.json: ranks[2]", None, "plan.json: ranks[2]: is wrong"),
        (None, "try -o", "is wrong (try -o)"),
        ("plan.json", "try -o", "plan.json: is wrong (try -o)"),
    ],
)
def test_a_message_is_place_fault_and_hint(where: str | None, hint: str | None, line: str) -> None:
    assert str(UsageError("is wrong", where=where, hint=hint)) == line


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_survive_pickling(kind: type[CephaloError], protocol: int) -> None:
    error = kind("is wrong", where="plan.json", hint="try -o")
    again = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301  (made one line above)
    assert type(again) is kind
    assert (again.message, again.where, again.hint) == ("is wrong", "plan.json", "try -o")
    assert str(again) == str(error)
    assert again.exit_code == error.exit_code


def test_pickling_keeps_the_signal_and_what_was_added() -> None:
    error = InterruptedRunError("saved step 5", signal_number=15, where="run")
    error.add_note("rank 2")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  (made two lines above)
    assert (again.signal_number, again.exit_code, again.where) == (15, 143, "run")
    assert again.__notes__ == ["rank 2"]
