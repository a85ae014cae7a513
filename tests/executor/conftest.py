from collections.abc import Iterator

import pytest

from tests.executor.ranks import Ranks

NUM_PROCESSES = 4


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    processes = Ranks(NUM_PROCESSES)
    yield processes
    processes.close()
