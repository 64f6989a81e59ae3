"""Sources of pieces that no other server gives: the trainer's file server, or the store."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from http import HTTPStatus
from typing import Protocol

import aiohttp

from rlboost_jax.messages import FileEntry
from rlboost_jax.platform.object_store import ObjectStore, StoreFailed
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.stored_versions import FOLDER


class OutsideSource(Protocol):
    """A source that has all pieces."""

    def chunks(self, pieces: range) -> AsyncGenerator[bytes, None]:
        """Bytes of pieces that follow each other.

        Raises:
            WeightsError: they cannot be had there, however often one asks.
            aiohttp.ClientError, TimeoutError, ConnectionError: another attempt may help.
        """
        ...


class TrainerPieces:
    """The file server of the run.

    Args:
        url: of all files, one behind the other.
        session: to it.
    """

    def __init__(
        self, url: str, files: Sequence[FileEntry], session: aiohttp.ClientSession
    ) -> None:
        self._url, self._session = url, session
        self._begins = [0]
        for entry in files:
            self._begins.append(self._begins[-1] + entry.size)

    async def chunks(self, pieces: range) -> AsyncGenerator[bytes, None]:
        first, end = self._begins[pieces[0]], self._begins[pieces[-1] + 1]
        headers = {"Accept-Encoding": "identity"}
        if end > first:  # else all are empty, and no range is
            headers["Range"] = f"bytes={first}-{end - 1}"
        else:
            yield b""
            return
        async with self._session.get(self._url, headers=headers) as response:
            status = response.status
            if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
                raise aiohttp.ClientConnectionError(f"HTTP {status}")
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                response.raise_for_status()
            if status != HTTPStatus.PARTIAL_CONTENT:
                raise WeightsError(f"{response.url}: HTTP {status} {response.reason}")
            async for data in response.content.iter_any():
                yield data


class StorePieces:
    """An object store."""

    def __init__(self, files: Sequence[FileEntry], store: ObjectStore) -> None:
        self._files, self._store = files, store

    async def chunks(self, pieces: range) -> AsyncGenerator[bytes, None]:
        for number in pieces:
            entry = self._files[number]
            blocks = iter(self._store.blocks(f"{FOLDER}/{entry.sha256}", entry.size))
            try:
                while (data := await asyncio.to_thread(next, blocks, None)) is not None:
                    yield data
            except StoreFailed as error:
                raise WeightsError(f"{entry.path}: {error}") from None
