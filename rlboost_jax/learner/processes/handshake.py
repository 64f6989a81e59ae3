"""The listener of process 0: a connection must show the key of this start to be heard.

Process 0 makes a key and a certificate for each start and has a collective take both to the other
processes. Both sides show that certificate and trust nothing else, so that nobody else says more
than half a handshake: not a byte of theirs is taken for a frame. Each connection is heard in
a thread of its own, for seconds; of too many the oldest is closed first: it takes more than open
connections to keep the others out.
"""

import contextlib
import datetime
import itertools
import os
import queue
import socket
import ssl
import tempfile
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlboost_jax.learner.processes.trainer_channel import TrainerChannel
from rlboost_jax.platform.closing import Closing
from rlboost_jax.trust.authority import VALID_FROM
from rlboost_jax.trust.gate import HANDSHAKE_SECONDS, MAX_NEWCOMERS
from rlboost_jax.trust.listener_limits import ListenerLimits

NAME: Final = "trainer.rlboost.internal"  # in the certificate
FIRST_BYTES: Final = 256  # of the frame that says who comes, and what for
# The weakest who gets anywhere is nobody: who has the key is another process of this trainer.
LIMITS: Final = ListenerLimits(
    name="port of a trainer's other processes",
    connections=1_024,
    credential_connections=1_024,
    newcomers=MAX_NEWCOMERS,
    newcomer_seconds=2 * HANDSHAKE_SECONDS,
    handshake_seconds=HANDSHAKE_SECONDS,
    idle_seconds=2 * HANDSHAKE_SECONDS,
    message_bytes=FIRST_BYTES,
    credential_bytes=MAX_NEWCOMERS * FIRST_BYTES,
    total_bytes=MAX_NEWCOMERS * FIRST_BYTES,
)
_LIFE: Final = datetime.timedelta(days=3650)  # of a key that goes with its processes
_PAUSE_SECONDS: Final = 0.2  # where there is no descriptor for one more


@dataclass(frozen=True)
class Key:
    """Key and certificate of one start, in PEM."""

    private: str = field(repr=False)
    certificate: str


def new_key() -> Key:
    # Trainers of one process, nearly all of them, do without these imports.
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, now = Ed25519PrivateKey.generate(), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID_FROM)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, None)
    )
    pem, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(pem, kind, serialization.NoEncryption())
    return Key(private.decode(), certificate.public_bytes(pem).decode())


def tls_of(key: Key, *, listens: bool) -> ssl.SSLContext:
    """TLS context for one of the two sides."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    if listens:
        context.num_tickets = 0  # what the other side never reads would cut off its last words
    with tempfile.TemporaryDirectory(prefix="rlboost-key-") as folder:  # this user's alone
        place = Path(folder) / "both.pem"
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(key.private + key.certificate)
        context.load_cert_chain(place)
    context.load_verify_locations(cadata=key.certificate)
    return context


class Handshakes(Closing):
    """Takes connections from the start of its context to the end.

    Args:
        listener: closed at the end.
        limits: `handshake_seconds` to show the key, and again to say who one is.
    """

    def __init__(
        self,
        listener: socket.socket,
        key: Key,
        *,
        limits: ListenerLimits = LIMITS,
    ) -> None:
        self._listener, self._tls = listener, tls_of(key, listens=True)
        self._limits = limits
        self._arrived: queue.Queue[tuple[Any, TrainerChannel]] = queue.Queue()
        self._lock = threading.Lock()  # of the two below
        self._newcomers: OrderedDict[int, ssl.SSLSocket] = OrderedDict()  # by number
        self._closed = False

    def __enter__(self) -> "Handshakes":
        threading.Thread(target=self._accept, name="handshakes", daemon=True).start()
        return super().__enter__()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for connection in self._newcomers.values():
                _hang_up(connection)
        _hang_up(self._listener)  # a waiter in `accept` hears of it
        self._listener.close()
        # Nobody arrives from now on: who does so looks at `_closed`, and has the lock until then.
        with contextlib.suppress(TimeoutError):
            while True:
                self.arrived(0.0)[1].close()

    def arrived(self, seconds: float) -> tuple[Any, TrainerChannel]:
        """Wait for the next peer with the key; return its first message and its channel.

        Raises:
            TimeoutError: nobody came in that time.
        """
        try:
            return self._arrived.get(timeout=max(seconds, 0.0))
        except queue.Empty:
            raise TimeoutError from None

    def _accept(self) -> None:
        number = 0
        while not self._closed:
            try:
                plain, _ = self._listener.accept()
                plain.settimeout(self._limits.handshake_seconds)
                connection = self._tls.wrap_socket(
                    plain, server_side=True, do_handshake_on_connect=False
                )
            except ConnectionError:  # gone before it was taken
                continue
            except OSError:  # closed, or no descriptor is left
                time.sleep(0.0 if self._closed else _PAUSE_SECONDS)
                continue
            number += 1
            with self._lock:
                if self._closed:
                    connection.close()
                    return
                self._newcomers[number] = connection
                if len(self._newcomers) > self._limits.newcomers:
                    _hang_up(self._newcomers.popitem(last=False)[1])
            threading.Thread(
                target=self._hear, args=(number, connection), name="newcomer", daemon=True
            ).start()

    def _hear(self, number: int, connection: ssl.SSLSocket) -> None:
        """Do one handshake in a thread, until the peer has proved itself or its time is over."""
        try:
            connection.do_handshake()
            channel = TrainerChannel(connection)
            limits = self._limits
            said = channel.receive(
                seconds=limits.handshake_seconds, most_bytes=limits.message_bytes
            )
        except (OSError, ValueError):  # a stranger, PeerGone, or hung up on
            connection.close()
            return
        finally:
            with self._lock:
                self._newcomers.pop(number, None)
        with self._lock:
            if not self._closed:
                self._arrived.put((said, channel))
                return
        channel.close()


def dial(
    address: tuple[str, int], tls: ssl.SSLContext, word: list[Any], seconds: float
) -> TrainerChannel:
    """Connect to process 0 and wait until it has accepted the connection.

    It is dialled again for as long as it ends before that: where there is a crowd, process 0
    hangs up on whom it has not heard out.

    Args:
        tls: of `tls_of`.
        word: who comes, and what for; for the how manieth time, from 1 on, is added.
        seconds: in all.

    Raises:
        OSError: nobody who has the key answers there.
    """
    deadline = time.monotonic() + seconds
    for attempt in itertools.count(1):
        left = max(deadline - time.monotonic(), 1e-3)
        try:
            connection = socket.create_connection(address, timeout=left)
            try:
                channel = TrainerChannel(tls.wrap_socket(connection, server_hostname=NAME))
                channel.send([*word, attempt])
                channel.receive(seconds=left, most_bytes=FIRST_BYTES)
            except BaseException:  # whatever it was, it goes on upwards
                connection.close()
                raise
            return channel
        except ssl.SSLCertVerificationError:
            raise  # somebody else listens there
        except OSError:
            if time.monotonic() + _PAUSE_SECONDS >= deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
    raise AssertionError("it counts for ever")


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
