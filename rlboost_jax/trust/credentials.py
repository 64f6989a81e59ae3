"""What opens a manager: its address, a bearer token and certificates.

A folder of credentials holds

token        the secret; `RLBOOST_TOKEN` in the environment takes its place
ca.pem       the run's own certificate authority, nothing else is trusted
client.pem   what the manager asks a client for
client.key
seal.pub     a public key, by which manifests of weights are known to be the trainer's

`RLBOOST_JOIN` in the environment holds `join/` in one piece, for hosts that do not see the folder.

TLS is spoken and nothing else, on loopback too: any user of a host can listen at the port of a
manager that has died. The manager proves itself in the handshake, before the token is sent.
No secret is ever shown: not in a message, not in a `repr`, not on a command line.
"""

import base64
import hmac
import json
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable, explained, read_text

TOKEN_VARIABLE: Final = "RLBOOST_TOKEN"
JOIN_VARIABLE: Final = "RLBOOST_JOIN"
TOKEN_FILE, CA_FILE = "token", "ca.pem"
MOST_TOKEN_BYTES: Final = 2**12  # of a token or key in text
MOST_PEM_BYTES: Final = 2**16  # of a key or certificate
CLIENT_CERTIFICATE, CLIENT_KEY = "client.pem", "client.key"
SEAL_CHECK: Final = "seal.pub"  # in hexadecimal digits
SEAL_CHECK_BYTES: Final = 32

JOIN_FILES: Final = (TOKEN_FILE, CA_FILE, CLIENT_CERTIFICATE, CLIENT_KEY, SEAL_CHECK)

# A run's authority certifies one manager, by this name. Clients ask for it whatever address
# they dialled, so a manager may be reached through any forwarded port or translated address.
MANAGER_NAME: Final = "manager.rlboost.internal"
# What the certificates of clients are made out to.
SERVER, TRAINER, ENVIRONMENT = "server", "trainer", "environment"
# What a connection that ends before the first answer is called, by aiohttp and by urllib.
HUNG_UP: Final = ("ServerDisconnectedError", "RemoteDisconnected", "ConnectionResetError")
# Headers of the configuration: where files are served, and over how many connections at most.
FILES_PORT: Final = "Rlboost-Files-Port"
FILES_CONNECTIONS: Final = "Rlboost-Files-Connections"
RECOVERS: Final = 503  # HTTP's word of a manager that still reads its journal
COPY_AGAIN: Final = "copy the manager's <workdir>/join again"


class CredentialsUnusable(ValueError):
    """A folder of credentials opens nothing. One line: what is wrong, what to do."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Credentials for a run's manager, and the public key of its seal.

    Attributes:
        tls: None within one process only, as in tests; what `read_credentials` gives has it.
        seal: the public key of the run's seal.
        authority: the run's certificate authority, as PEM; "" without TLS.
        chain: the client's certificate and its key, as PEM; "" without TLS.
    """

    token: str = field(repr=False)
    tls: ssl.SSLContext | None = field(default=None, compare=False)
    seal: bytes = b""
    authority: str = field(default="", repr=False)
    chain: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A manager's address and the credentials for it."""

    address: str  # HOST:PORT
    credentials: Credentials

    def url(self, path: str = "") -> str:
        return f"{'http' if self.credentials.tls is None else 'https'}://{self.address}{path}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.credentials.token}"}

    @property
    def tls(self) -> ssl.SSLContext | bool:
        """TLS context for aiohttp, which takes True for its own defaults; plain HTTP ignores it."""
        return True if self.credentials.tls is None else self.credentials.tls


class _ManagerContext(ssl.SSLContext):
    """Expects a certificate for the run's manager, not for the address that is dialled."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return super().wrap_bio(*args, **{**options, "server_hostname": MANAGER_NAME})

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return super().wrap_socket(*args, **{**options, "server_hostname": MANAGER_NAME})


def read_credentials(
    folder: Path | None, environment: Mapping[str, str] = os.environ
) -> Credentials:
    """Read a folder's credentials; the token, or all of them, may come from the environment.

    Args:
        folder: None where none was named: then the environment has them.

    Raises:
        CredentialsUnusable: something is missing, unreadable or not what it should be.
    """
    if folder is None:
        if JOIN_VARIABLE not in environment:
            raise CredentialsUnusable(
                "no credentials given; name a copy of the manager's <workdir>/join with "
                f"--join=FOLDER, or have {JOIN_VARIABLE} in the environment"
            )
        with tempfile.TemporaryDirectory(prefix="rlboost-join-") as made:  # of mode 700
            _unpack(environment[JOIN_VARIABLE], Path(made))
            try:
                return read_credentials(Path(made), environment)
            except CredentialsUnusable as error:
                said = str(error).replace(made, f"{JOIN_VARIABLE} (environment)")
                raise CredentialsUnusable(said) from None
    token, tls = _token(folder, environment), _client_tls(folder)
    pem = {name: _pem(folder / name) for name in JOIN_FILES[1:4]}
    return Credentials(
        token=token,
        tls=tls,
        seal=_seal_check(folder),
        authority=pem[CA_FILE],
        chain=pem[CLIENT_CERTIFICATE] + pem[CLIENT_KEY],
    )


def read_environment_credentials(folder: Path) -> Credentials:
    """Read a folder with the credentials for a host of environments.

    There is no seal: no weights go there.

    Raises:
        CredentialsUnusable: something is missing, unreadable or not what it should be.
    """
    files = (CA_FILE, CLIENT_CERTIFICATE, CLIENT_KEY)
    return Credentials(token=_token(folder, {}), tls=_client_tls(folder, files))


def packed(folder: Path) -> str:
    """Encode a folder of credentials as one word, for `JOIN_VARIABLE`; it is as secret.

    Raises:
        OSError: a file is missing or unreadable.
    """
    files = {name: read_text(folder / name, MOST_PEM_BYTES) for name in JOIN_FILES}
    return base64.b64encode(json.dumps(files).encode()).decode()


def bearer_of(headers: Mapping[str, str]) -> str:
    """Return the token of a request's `Authorization` header; "" if it shows no bearer token.

    Source: RFC 9110, section 11.1 (a scheme's case does not matter) and 11.4 (spaces after it).
    """
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip(" ") if scheme.lower() == "bearer" else ""


def bears(headers: Mapping[str, str], token: str) -> bool:
    """Whether a request shows this token, which is not ""; takes the same time for any guess."""
    given = bearer_of(headers).encode("utf-8", "surrogateescape")
    return bool(token) and hmac.compare_digest(given, token.encode())


def explain(error: BaseException) -> str:
    """Explain a failed connection in a line: what the other side rejected, and what to do.

    "" for what is not a matter of credentials, such as no listener.
    """
    for cause in _causes(error):
        # aiohttp has classes of its own below those of `ssl`, without their fields.
        if type(cause) is ssl.SSLCertVerificationError:
            if "expired" in cause.verify_message:
                return "the manager's certificate has expired; a manager renews it as it starts"
            return (
                f"the manager's certificate is not of this run ({cause.verify_message}); "
                f"{COPY_AGAIN}, or check the address"
            )
        if type(cause).__module__ == "ssl" and isinstance(cause, ssl.SSLError):
            reason = (cause.reason or str(cause)).replace("_", " ").lower()
            return (
                f"no TLS with what listens there ({reason}): it is not a manager; check the address"
            )
        if type(cause).__name__ in HUNG_UP:
            # With TLS 1.3 a client is refused after its own side of the handshake is done.
            return (
                "the manager hung up without an answer, as it does on a certificate of another "
                f"run or one that has expired; {COPY_AGAIN}"
            )
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, as aiohttp and urllib wrap them."""
    seen: list[BaseException] = []
    ahead: list[Any] = [error]
    while ahead:
        cause = ahead.pop(0)
        if isinstance(cause, BaseException) and cause not in seen:
            seen.append(cause)
            yield cause
            wrapped = ("certificate_error", "os_error", "reason", "__cause__", "__context__")
            ahead += [getattr(cause, name, None) for name in wrapped]


def _unpack(word: str, folder: Path) -> None:
    try:
        packed = base64.b64decode("".join(word.split()), validate=True)
        files = foreign_json.decode(packed, JOIN_VARIABLE, dict)
        for name in JOIN_FILES:
            (folder / name).write_text(str(files[name]), encoding="ascii")
    except (ValueError, KeyError):
        raise CredentialsUnusable(
            f"{JOIN_VARIABLE} (environment) is not what a provider puts there; it was cut off, or "
            "is of another release"
        ) from None


def _token(folder: Path, environment: Mapping[str, str]) -> str:
    if TOKEN_VARIABLE in environment:
        token, source = environment[TOKEN_VARIABLE].strip(), f"{TOKEN_VARIABLE} (environment)"
    else:
        source = str(folder / TOKEN_FILE)
        try:
            token = read_text(folder / TOKEN_FILE, MOST_TOKEN_BYTES, "a token").strip()
        except (OSError, Unreadable) as error:
            raise CredentialsUnusable(f"{explained(error)}; {COPY_AGAIN}") from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise CredentialsUnusable(f"{source} holds no token; {COPY_AGAIN}")
    return token


def _client_tls(folder: Path, names: Sequence[str] = JOIN_FILES[1:]) -> ssl.SSLContext:
    if missing := [name for name in names if not (folder / name).exists()]:
        raise CredentialsUnusable(
            f"{folder} lacks {', '.join(missing)}; {COPY_AGAIN} (managers of releases before there "
            "were certificates make none: install theirs here)"
        )
    context = _ManagerContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(folder / CA_FILE)
        context.load_cert_chain(folder / CLIENT_CERTIFICATE, folder / CLIENT_KEY)
    except OSError as error:  # ssl.SSLError too: not a certificate, or not of that key
        reason = error.strerror or str(error)
        raise CredentialsUnusable(
            f"cannot use the files in {folder}: {reason}; {COPY_AGAIN}"
        ) from None
    return context


def _pem(path: Path) -> str:
    """Text of a certificate or key that has just been used."""
    try:
        return read_text(path, MOST_PEM_BYTES, "a certificate or key")
    except (OSError, Unreadable) as error:
        raise CredentialsUnusable(f"{explained(error)}; {COPY_AGAIN}") from None


def _seal_check(folder: Path) -> bytes:
    try:
        key = bytes.fromhex(read_text(folder / SEAL_CHECK, MOST_TOKEN_BYTES, "a key"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CredentialsUnusable(
            f"cannot use {folder / SEAL_CHECK}: {reason}; {COPY_AGAIN}"
        ) from None
    if len(key) != SEAL_CHECK_BYTES:
        raise CredentialsUnusable(f"{folder / SEAL_CHECK} holds no key; {COPY_AGAIN}")
    return key
