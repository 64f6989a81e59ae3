"""Permission for one server to fetch one version's pieces from another one.

A server that listens makes a key and a certificate as it starts, and gives the manager both. For
each server that is to fetch from it, the manager makes a *transfer token*: an HMAC of the fetching
server's name and the version, under the source's key. So a source needs no list of who may ask:
it checks the token, and that the client has a certificate of the run. A token opens nothing but
that version at that source, and nothing at all once the source holds another version.

The source's certificate is its own and signed by nobody. The manager hands it on, so a client
trusts exactly the listener that the manager means, and no server can pass for the manager.
"""

import datetime
import hmac
import os
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

KEY_BYTES: Final = 32
LIFE: Final = datetime.timedelta(days=3650)  # of a certificate; its key ends with its process
_BEGINS: Final = datetime.datetime(1990, 1, 1, tzinfo=datetime.UTC)  # a host's clock may be wrong
_CONTEXT: Final = b"rlboost-jax: transfer of weights, 1"


@dataclass(frozen=True, kw_only=True)
class TransferKeys:
    """What a server listens with.

    Attributes:
        key: of the tokens.
        certificate: DER.
        private: PEM of the certificate's key; it stays in this process and its child.
    """

    key: bytes = field(repr=False)
    certificate: bytes
    private: str = field(repr=False)


def new_transfer_keys() -> TransferKeys:
    """Make a key for tokens, and a certificate that its own key signs."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rlboost-jax peer")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGINS)
        .not_valid_after(datetime.datetime.now(datetime.UTC) + LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(encoding, kind, serialization.NoEncryption())
    return TransferKeys(
        key=os.urandom(KEY_BYTES),
        certificate=certificate.public_bytes(serialization.Encoding.DER),
        private=private.decode(),
    )


def transfer_token(key: bytes, puller: str, root: str) -> str:
    """Return the token with which a server may fetch a version from the key's owner."""
    said = b"\0".join((_CONTEXT, puller.encode(), root.encode()))
    return f"{puller}:{hmac.digest(key, said, 'sha256').hex()}"


def puller_of(token: str, key: bytes, root: str) -> str | None:
    """Return the name of the server that a token is for; None: it does not open this version."""
    puller, _, _ = token.rpartition(":")
    given = token.encode("utf-8", "surrogateescape")
    right = transfer_token(key, puller.encode("utf-8", "replace").decode(), root).encode()
    return puller if hmac.compare_digest(given, right) else None


def listening_tls(certificate: bytes, private: str, ca: str) -> ssl.SSLContext:
    """TLS context of a server that listens for others, which show a certificate of the run.

    Args:
        certificate: DER.
        private: PEM.
        ca: PEM of the run's authority.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=ca)
    _load_chain(context, private + ssl.DER_cert_to_PEM_cert(certificate))
    return context


def fetching_tls(certificate: bytes, chain: str) -> ssl.SSLContext:
    """TLS context that trusts one listener only, and shows this server's own certificate.

    Args:
        certificate: DER, of that listener.
        chain: PEM of this server's certificate and its key, as `Credentials` have it.

    Raises:
        ssl.SSLError: the listener's is no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate is known, whatever its address
    context.load_verify_locations(cadata=certificate)
    _load_chain(context, chain)
    return context


def _load_chain(context: ssl.SSLContext, chain: str) -> None:
    with tempfile.TemporaryDirectory(prefix="rlboost-key-") as folder:  # this user's alone
        place = Path(folder) / "both.pem"
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(chain)
        context.load_cert_chain(place)
