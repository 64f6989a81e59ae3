"""A manifest that only the run's trainer can have made.

The manifest names the digest of a list with the digest of every file, so its seal covers a whole
snapshot: nobody in between can announce foreign weights. It travels with the manifest, from the
trainer that makes it through the manager to every server that pulls.

The seal is an Ed25519 signature. Its key stays in `trainer/`; what servers hold only checks it, so
that a server's host which falls into other hands cannot seal weights for the other servers.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rlboost_jax.messages import Manifest
from rlboost_jax.platform import durable
from rlboost_jax.platform.bounded_files import read_text
from rlboost_jax.trust.credentials import MOST_TOKEN_BYTES, SEAL_CHECK
from rlboost_jax.trust.snapshot_names import WeightsError

SEAL_KEY: Final = "seal.key"  # in hexadecimal digits
# What is sealed: should the key ever seal something else, neither passes for the other.
CONTEXT: Final = b"rlboost-jax: manifest of weights, 3"

_encode = msgspec.msgpack.Encoder().encode


def sealed(manifest: Manifest, key: Ed25519PrivateKey) -> Manifest:
    """Return the manifest with the run's seal.

    Args:
        key: the trainer's.
    """
    return msgspec.structs.replace(manifest, seal=key.sign(_content(manifest)).hex())


def check_seal(manifest: Manifest, public: bytes) -> None:
    """Raise WeightsError if the manifest was not sealed with that key, or changed since."""
    try:
        key = Ed25519PublicKey.from_public_bytes(public)
        key.verify(bytes.fromhex(manifest.seal), _content(manifest))
    except (InvalidSignature, ValueError):
        raise WeightsError(
            f"manifest of version {manifest.version}: not sealed by this run's trainer; somebody "
            "in between has changed it, or this server has the credentials of another run"
        ) from None


def root_of(manifest: Manifest) -> str:
    """SHA-256 of all that is sealed: no two versions have the same, of whatever number."""
    return hashlib.sha256(_content(manifest)).hexdigest()


def public_of(key: Ed25519PrivateKey) -> bytes:
    """Raw public key, which verifies the seals of `key`."""
    return key.public_key().public_bytes_raw()


def prepare_seal(trainer: Path, others: Iterable[Path]) -> None:
    """Create the trainer's key unless it has one, and put the public key into all folders."""
    try:
        key = read_seal_key(trainer)
    except (OSError, ValueError) as error:
        gone = isinstance(error, FileNotFoundError) or durable.is_lost(error)
        if isinstance(error, OSError) and not gone:
            raise  # it may be sound
        key = Ed25519PrivateKey.generate()
        _replace(trainer / SEAL_KEY, key.private_bytes_raw().hex())
    for folder in (trainer, *others):
        _replace(folder / SEAL_CHECK, public_of(key).hex())


def read_seal_key(trainer: Path) -> Ed25519PrivateKey:
    """The key in a trainer's folder. Raises OSError, ValueError."""
    text = read_text(trainer / SEAL_KEY, MOST_TOKEN_BYTES, "a key")
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))


def _content(manifest: Manifest) -> bytes:
    """Encoding of the manifest without its seal: the bytes that are signed."""
    return CONTEXT + _encode(msgspec.structs.replace(manifest, seal=""))


def _replace(path: Path, content: str) -> None:
    """Replace a file durably, readable by its owner only from its first byte on."""
    durable.keep(path, content.encode("ascii"), mode=0o600)
