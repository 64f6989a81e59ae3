"""The port at which a server serves pieces of weights to others, where it can be reached at all."""

import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rlboost_jax.messages import PeerOffer
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.weights_config import WeightsConfig
from rlboost_jax.trust.credentials import Endpoint
from rlboost_jax.trust.transfers import new_transfer_keys
from rlboost_jax.weights.file_server.file_server_process import FileServer, listening_socket
from rlboost_jax.weights.peers.exchange import PeerExchange
from rlboost_jax.weights.peers.held_pieces import HeldPieces
from rlboost_jax.weights.peers.piece_orders import PieceOrder, PiecesSetup, piece_order_frame
from rlboost_jax.weights.peers.shared_blocks import SharedBlock, has_shared_blocks, send_blocks

PROGRAM: Final = "rlboost_jax.weights.peers"
NONE: Final = "none"  # of --peers
MEGABYTE: Final = 1_000_000


@dataclass(frozen=True)
class PeerPort:
    """A server's part in the exchange of weights.

    Attributes:
        exchange: None: it takes no part.
        offer: for its Hello.
    """

    exchange: PeerExchange | None = None
    offer: PeerOffer | None = None


@contextlib.asynccontextmanager
async def peer_port(
    weights: WeightsConfig,
    manager: Endpoint,
    address: str,
    say: Callable[[str], None],
    command: tuple[str, ...] | None = None,
) -> AsyncIterator[PeerPort]:
    """Take part in the exchange of weights, if the run has one.

    A server that cannot listen takes part without an address: it fetches only.

    Args:
        address: of --peers.
        say: prints a line.
        command: that starts the process; None: the usual.

    Raises:
        ConfigError: nobody can listen at the address.
    """
    if not weights.peers:
        yield PeerPort()
        return
    chain = manager.credentials.chain
    if address == NONE:
        exchange = PeerExchange(HeldPieces(), chain=chain)
        yield PeerPort(exchange, PeerOffer(address="", key=b"", certificate=b""))
        return
    if not has_shared_blocks():
        raise ConfigError(
            "weights.peers=True: this system has no memory without a name (memfd), in which Linux "
            "shares weights with the process that serves them; use --peers=none"
        )
    host, _, port = address.rpartition(":") if ":" in address else (address, "", "")
    try:
        # An address that others know need not be one of this host's.
        here = ("::" if host.startswith("[") else "0.0.0.0") if host else _own_address(manager)
        if not 0 <= (number := int(port or 0)) < 2**16:
            raise ValueError(f"port {number} is not in 0..65535")
        listener = listening_socket(here.strip("[]"), number)
        host = host or here
    except (OSError, ValueError) as error:
        raise ConfigError(f"--peers={address!r}: {error}; use HOST:PORT, HOST, or none") from None
    # Kept for all processes that are started, one after the other.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    keys, tls = new_transfer_keys(), manager.credentials.tls is not None
    setup = PiecesSetup(
        key=keys.key,
        certificate=keys.certificate if tls else b"",
        private=keys.private,
        authority=manager.credentials.authority,
        line=theirs.fileno(),
        bytes_per_second=weights.peer_megabytes_per_second * MEGABYTE,
    )
    process: FileServer | None = None

    def framed(order: PieceOrder, blocks: Sequence[SharedBlock]) -> bytes:
        # A process that lacks blocks ends, starts anew and is sent all of them.
        with contextlib.suppress(OSError):
            send_blocks(ours, blocks)
        return piece_order_frame(order)

    def tell(order: PieceOrder, blocks: Sequence[SharedBlock]) -> None:
        if process is not None and process.pid is not None:
            process.order(framed(order, blocks))

    held = HeldPieces(tell)

    def orders() -> Iterator[bytes]:
        yield piece_order_frame(setup)
        yield from itertools.starmap(framed, held.orders())

    process = FileServer(
        listener,
        orders,
        say,
        lambda error: say(f"serves no weights to other servers any more: {error!r}"),
        program=PROGRAM,
        at_once=True,  # many will ask at the same moment, and ask elsewhere if they have to wait
        what="the process that serves weights to other servers",
        command=command,
        inherited=(theirs.fileno(),),
    )
    where = f"{host}:{process.port}"
    say(f"serves weights to other servers at {where}")
    offer = PeerOffer(address=where, key=keys.key, certificate=setup.certificate)
    try:
        yield PeerPort(PeerExchange(held, chain=chain), offer)
    finally:
        await process.close()
        ours.close()
        theirs.close()


def _own_address(manager: Endpoint) -> str:
    """Address of this host on its way to the manager. Nothing is sent. Raises OSError."""
    host, _, port = manager.address.rpartition(":")
    family, kind, _, _, address = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        found = str(probe.getsockname()[0])
    return f"[{found}]" if ":" in found else found
