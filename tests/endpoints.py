"""Addresses of tests: a manager without TLS, as its clients in one process know it, and ports."""

import contextlib
import random
import socket
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rlboost_jax.trust.credentials import Credentials, Endpoint
from rlboost_jax.trust.seal import public_of

SEAL: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))  # of its run


def endpoint(address: str, token: str = "secret") -> Endpoint:
    return Endpoint(address=address, credentials=Credentials(token=token, seal=public_of(SEAL)))


def free_port() -> int:
    """Draw a free port of the loopback address, to be known before it listens.

    It is none of those that the system gives to others.
    """
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
