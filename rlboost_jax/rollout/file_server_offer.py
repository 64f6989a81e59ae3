"""Address of a run's file server, as far as a server knows it before it has joined."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlboost_jax.trust.credentials import FILES_CONNECTIONS, FILES_PORT, Endpoint
from rlboost_jax.weights.pieces import MOST_CONNECTIONS


@dataclass(frozen=True, kw_only=True)
class FileServerOffer:
    """A manager's information on its file server, sent with the configuration.

    Attributes:
        port: 0: not said.
        connections: that this server may use there at a time.
    """

    port: int = 0
    connections: int = MOST_CONNECTIONS


def read_offer(headers: Mapping[str, str]) -> FileServerOffer:
    """Read the offer in a response's headers; a value that is no number counts as missing."""
    connections = _number(headers.get(FILES_CONNECTIONS, ""))
    return FileServerOffer(
        port=_number(headers.get(FILES_PORT, "")),
        connections=min(connections or MOST_CONNECTIONS, MOST_CONNECTIONS),
    )


def file_server(manager: Endpoint, weights: str, port: int) -> Endpoint | None:
    """Endpoint of the file server; None if the manager names none.

    Args:
        weights: HOST:PORT of the command line, which goes before; "" for the manager's host.
    """
    host = manager.address.rpartition(":")[0]
    address = weights or (f"{host}:{port}" if port else "")
    return replace(manager, address=address) if address else None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
