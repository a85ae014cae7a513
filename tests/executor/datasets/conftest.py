from pathlib import Path

import pytest

from tests.executor.datasets.tokenizers_made import make_bpe, make_wordpiece


@pytest.fixture(scope="session")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bpe(tmp_path_factory.mktemp("bpe"))


@pytest.fixture(scope="session")
def wordpiece(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wordpiece(tmp_path_factory.mktemp("wordpiece"))
