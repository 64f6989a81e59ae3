import socket

import pytest

from rlboost_jax.learner.processes import watch
from rlboost_jax.learner.processes.channel import Channel
from tests.patience import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A main thread that is slow to end is ended: with it, here, all tests of this process."""
    monkeypatch.setattr(watch, "GRACE_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(watch, "EXPLAIN_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def pair():
    """Two connected channels."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    both = Channel(here), Channel(there)
    yield both
    for channel in both:
        channel.close()
