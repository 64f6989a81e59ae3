"""Child processes that compile as this one does."""

import os

import pytest

from tests import unoptimized


@pytest.fixture
def child_unoptimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test's child processes compile takes a quarter of the time."""
    flags = os.environ.get("XLA_FLAGS", "")
    for name, value in unoptimized.environment(flags).items():
        monkeypatch.setenv(name, value)
