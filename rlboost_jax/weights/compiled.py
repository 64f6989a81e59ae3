"""Compiled programs on their way from the owner's hosts to servers: sealed, listed, fetched.

A program that is read from a cache is machine code that runs. So it is made on the owner's own
hosts only (the trainer's, or one where `rlboost compile` was run), listed with its digest in an
index that the run's trainer has sealed, and never taken from a server. What a server cannot fetch,
or what is not as the index says, it compiles by itself: a bad entry costs a compile, never a run.

`<workdir>/compiled/` holds `index` and, named by their digests, the entries.
"""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rlboost_jax.messages import FileEntry
from rlboost_jax.platform import durable
from rlboost_jax.trust.credentials import Endpoint
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.arrivals import ByteCounter, FileSource
from rlboost_jax.weights.connections import Connections
from rlboost_jax.weights.download import download
from rlboost_jax.weights.pieces import MOST_CONNECTIONS

FOLDER: Final = "compiled"
INDEX: Final = "index"
URL: Final = "/compiled"
MAX_INDEX_BYTES: Final = 2**22
MAX_ENTRY_BYTES: Final = 2**29
MAX_BYTES: Final = 2**31  # of one kind
FETCH_SECONDS: Final = 60.0  # for all of them; compiling takes no longer, as a rule
# What is sealed: no seal of weights passes for one of these.
CONTEXT: Final = b"rlboost-jax: compiled programs, 1"

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class CompiledIndex(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of JAX's cache by the kind of host and device that they were made on and for."""

    kinds: dict[str, tuple[FileEntry, ...]]
    seal: str = ""  # the trainer's signature of all else, in hexadecimal digits


_decode = msgspec.msgpack.Decoder(CompiledIndex).decode


def offer(
    folder: Path, kind: str, cache: Path, names: Iterable[str], key: Ed25519PrivateKey
) -> int:
    """Put entries of a cache where servers find them, in place of others of that kind.

    Args:
        cache: that JAX keeps them in.
        names: of files there.

    Returns:
        How many bytes they are.

    Raises:
        OSError: the disk does not take them.
    """
    durable.make_folder(folder, mode=0o700)
    entries = []
    for name in sorted(set(names)):
        try:
            data = (cache / name).read_bytes()
        except FileNotFoundError:
            continue  # it was not worth keeping
        digest = hashlib.sha256(data).hexdigest()
        if not (folder / digest).exists():
            durable.write(folder / digest, data, mode=0o600)
        entries.append(FileEntry(path=name, size=len(data), sha256=digest))
    known = dict(_known(folder / INDEX, key))
    index = CompiledIndex(kinds={**known, kind: tuple(entries)})
    durable.write(folder / INDEX, msgspec.msgpack.encode(sealed_index(index, key)), mode=0o600)
    return sum(entry.size for entry in entries)


def sealed_index(index: CompiledIndex, key: Ed25519PrivateKey) -> CompiledIndex:
    return msgspec.structs.replace(index, seal=key.sign(_content(index)).hex())


def read_index(data: bytes, public: bytes) -> CompiledIndex:
    """Decode an index and verify that this run's trainer sealed it.

    Raises:
        WeightsError: it has not, or names what it must not.
    """
    try:
        index = _decode(data)
        key = Ed25519PublicKey.from_public_bytes(public)
        key.verify(bytes.fromhex(index.seal), _content(index))
    except (msgspec.DecodeError, InvalidSignature, ValueError):
        raise WeightsError("compiled programs: not sealed by this run's trainer") from None
    for entries in index.kinds.values():
        for entry in entries:
            if "/" in entry.path or not entry.path.isprintable() or entry.path.startswith("."):
                raise WeightsError(f"compiled programs: unsafe file name {entry.path!r}")
            if not 0 <= entry.size <= MAX_ENTRY_BYTES:
                raise WeightsError(f"compiled programs: {entry.path} has {entry.size} bytes")
    return index


async def fetch_compiled(
    server: Endpoint,
    kind: str,
    cache: Path,
    connections: int = MOST_CONNECTIONS,
    *,
    seconds: float = FETCH_SECONDS,
) -> str:
    """Fetch the run's programs for this kind of host into the cache; existing entries stay.

    Args:
        server: that serves files of the run.
        connections: to it, at a time.

    Returns:
        A line for the server's log. Nothing that goes wrong is raised: it compiles, then.
    """
    try:
        lines = Connections(most=connections)
        async with asyncio.timeout(seconds), lines.to(server) as (session, retries):
            data = await _get(session, URL, MAX_INDEX_BYTES)
            index = read_index(data, server.credentials.seal)
            entries = index.kinds.get(kind, ())
            if sum(entry.size for entry in entries) > MAX_BYTES:
                raise WeightsError(f"compiled programs: over {MAX_BYTES:,} bytes")
            missing = [entry for entry in entries if not (cache / entry.path).exists()]
            sources = [
                FileSource(url=f"{URL}/{entry.sha256}", files=(entry,), wanted={entry.path})
                for entry in missing
            ]
            await download(sources, session, _CacheEntries(cache), ByteCounter(), retries)
    except (WeightsError, aiohttp.ClientError, TimeoutError, OSError) as error:
        return f"no compiled programs of the run ({error or type(error).__name__}): compiling"
    if not entries:
        return "the run has no compiled programs for this kind of host: compiling"
    size = sum(entry.size for entry in missing) / 1e6
    return f"{len(missing)} of {len(entries)} compiled programs fetched, {size:.1f} MB"


class _CacheEntries:
    """An intake of entries of a cache: each spares its compile, whatever becomes of the others."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._coming: dict[str, bytearray] = {}

    def room(self, entry: FileEntry) -> memoryview:
        self._coming[entry.path] = bytearray(entry.size)
        return memoryview(self._coming[entry.path])

    def verified(self, entry: FileEntry) -> None:
        with tempfile.NamedTemporaryFile(dir=self._cache, prefix=".fetched-", delete=False) as file:
            file.write(self._coming.pop(entry.path))
        os.replace(file.name, self._cache / entry.path)


async def _get(session: aiohttp.ClientSession, url: str, most: int) -> bytes:
    async with session.get(url) as response:
        if response.status != 200:
            raise WeightsError(f"HTTP {response.status}")
        data = bytearray()
        async for part in response.content.iter_any():
            data += part
            if len(data) > most:
                raise WeightsError(f"{url}: more than {most:,} bytes")
        return bytes(data)


def _known(path: Path, key: Ed25519PrivateKey) -> Mapping[str, tuple[FileEntry, ...]]:
    """Entries of the existing index by kind; none if it is missing, damaged or of another run."""
    try:
        return read_index(path.read_bytes(), key.public_key().public_bytes_raw()).kinds
    except (OSError, WeightsError):
        return {}


def _content(index: CompiledIndex) -> bytes:
    return CONTEXT + _encode(msgspec.structs.replace(index, seal=""))
