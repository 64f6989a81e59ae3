import socket

import pytest

from rlboost_jax.learner.processes.channel import Channel


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
