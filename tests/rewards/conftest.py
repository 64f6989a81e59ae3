"""Workers that have the time to end what they have started."""

import pytest

from rlboost_jax.rewards import concurrent, pool
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
def patient(monkeypatch):
    """A worker that is killed before it has heard that it should end leaves its children."""
    for module in (pool, concurrent):
        monkeypatch.setattr(module, "END_SECONDS", PATIENCE_SECONDS)
