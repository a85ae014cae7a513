"""The same ranks as the executor's tests."""

from tests.executor.conftest import ranks

__all__ = ["ranks"]
