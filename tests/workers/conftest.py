"""Workers that have the time to end what they have started."""

import pytest

from rlboost_jax.rewards import reward_kind
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
def patient(monkeypatch):
    """A worker that is killed before it has heard that it should end leaves its children."""
    monkeypatch.setattr(reward_kind, "END_SECONDS", PATIENCE_SECONDS)
