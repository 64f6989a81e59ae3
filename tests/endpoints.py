"""A manager without TLS, as its clients know it."""

from rlboost_jax.credentials import Credentials, Endpoint


def endpoint(address: str, token: str = "secret") -> Endpoint:
    return Endpoint(address=address, credentials=Credentials(token=token))
