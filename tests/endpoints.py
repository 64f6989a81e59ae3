"""A manager without TLS, as its clients within one process know it."""

from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rlboost_jax.credentials import Credentials, Endpoint
from rlboost_jax.weights.seal import public_of

SEAL: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))  # of its run


def endpoint(address: str, token: str = "secret") -> Endpoint:
    return Endpoint(address=address, credentials=Credentials(token=token, seal=public_of(SEAL)))
