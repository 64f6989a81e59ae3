import socket

import pytest

from rlboost_jax.learner.processes import peer_watch
from rlboost_jax.learner.processes.trainer_channel import TrainerChannel
from tests.patience import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A main thread that is slow to end is ended: with it, here, all tests of this process."""
    monkeypatch.setattr(peer_watch, "GRACE_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(peer_watch, "EXPLAIN_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def pair():
    """Two connected channels."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    both = TrainerChannel(here), TrainerChannel(there)
    yield both
    for channel in both:
        channel.close()
