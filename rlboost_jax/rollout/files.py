"""Where the files of a run are served, as far as a server knows before it has joined."""

from dataclasses import replace

from rlboost_jax.credentials import Endpoint


def file_server(manager: Endpoint, weights: str, port: int) -> Endpoint | None:
    """None where its manager says nothing of it.

    Args:
        weights: HOST:PORT of the command line, which goes before; "" for the manager's host.
    """
    host = manager.address.rpartition(":")[0]
    address = weights or (f"{host}:{port}" if port else "")
    return replace(manager, address=address) if address else None


def port_said(text: str) -> int:
    """In a header; 0 of what is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
