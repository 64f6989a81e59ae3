"""Bring files here over HTTP, in pieces, over as many connections as the line needs."""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Final

import aiohttp

from rlboost_jax.platform.thread_calls import in_thread
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.arrivals import ArrivingFiles, ByteCounter, FileSource, Intake
from rlboost_jax.weights.connections import RETRIES, Retries
from rlboost_jax.weights.pieces import (
    FIRST_CONNECTIONS,
    GROWTH,
    GROWTH_SECONDS,
    Piece,
    PiecePlan,
    grown,
)

REASON_LETTERS: Final = 200  # of what a server answers in place of bytes


async def download(
    sources: Sequence[FileSource],
    session: aiohttp.ClientSession,
    intake: Intake,
    counter: ByteCounter,
    retries: Retries = RETRIES,
) -> None:
    """Fetch files over HTTP by several connections in the order of `PiecePlan`, each byte once.

    Args:
        session: its connector bounds the connections.
        intake: of the files.
        counter: of what comes.

    Raises:
        WeightsError: refused by the server, failed `retries.attempts` times in a row, or not what
            was announced.
    """
    threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="check")
    files = [ArrivingFiles(source, intake, threads) for source in sources]
    gaps = [(number, *gap) for number, known in enumerate(files) for gap in known.gaps()]
    carriers = _Carriers(files, session, PiecePlan(gaps, retries.first_backoff_seconds), retries)
    try:
        await carriers.run(counter)
        for known in files:
            await known.checked()
    finally:
        for known in files:
            known.close()
        threads.shutdown(wait=False, cancel_futures=True)
        await in_thread(threads.shutdown)


class _Carriers:
    """Tasks that bring pieces, one a connection."""

    def __init__(
        self,
        files: Sequence[ArrivingFiles],
        session: aiohttp.ClientSession,
        plan: PiecePlan,
        retries: Retries,
    ) -> None:
        self._files, self._session, self._plan, self._retries = files, session, plan, retries
        assert session.connector is not None
        self._most = session.connector.limit
        self._fetches: dict[Piece, set[asyncio.Task[None]]] = {}
        self._moved = 0  # bytes since the last look
        self._refused = False  # a connection was, for there being too many
        self._changed = asyncio.Event()  # there may be another piece

    async def run(self, counter: ByteCounter) -> None:
        """Fetch until everything has arrived. Raises what a carrier task raises."""
        clock = asyncio.get_running_loop().time
        self._counter = counter
        carriers: set[asyncio.Task[None]] = set()
        wanted = min(FIRST_CONNECTIONS, self._most, self._plan.useful_connections())
        looked = clock()
        before = 0.0  # bytes per second when there were fewer
        try:
            while not self._plan.complete:
                while len(carriers) < wanted:
                    carriers.add(asyncio.create_task(self._carry(carriers)))
                done, _ = await asyncio.wait(
                    carriers, timeout=GROWTH_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                for carrier in done:
                    carrier.result()
                carriers -= done
                for known in self._files:
                    known.raise_if_wrong()
                self._changed.set()  # by now something may have stalled
                rate, self._moved = self._moved / max(clock() - looked, 1e-9), 0
                looked = clock()
                useful = self._plan.useful_connections()
                more = min(self._most, grown(len(carriers), useful, before, rate))
                self._plan.full = rate < GROWTH * before
                if self._refused:
                    wanted = len(carriers)
                elif more > wanted:
                    wanted, before = more, rate
            await asyncio.gather(*carriers)
        finally:
            for carrier in carriers:
                carrier.cancel()
            await asyncio.gather(*carriers, return_exceptions=True)

    async def _carry(self, carriers: set[asyncio.Task[None]]) -> None:
        """Bring piece after piece, until none is missing."""
        clock = asyncio.get_running_loop().time
        rate = 0.0
        while not self._plan.complete:
            for known in self._files:
                await known.caught_up()
            if self._plan.complete:  # by others meanwhile: there is no news to wait for
                return
            piece = self._plan.next_piece(clock(), rate, len(carriers))
            if piece is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            at, began = piece.at, clock()
            fetch = asyncio.create_task(self._fetch(piece))
            self._fetches.setdefault(piece, set()).add(fetch)
            try:
                await asyncio.wait({fetch})
            finally:
                fetch.cancel()
                await asyncio.wait({fetch})
                self._plan.ended(piece)
                self._fetches[piece].discard(fetch)
                if not self._fetches[piece]:
                    del self._fetches[piece]
            if not fetch.cancelled():  # by the other carrier, which had the last byte
                error = fetch.exception()
                if isinstance(error, _TooMany) and len(carriers) > 1:
                    self._refused = True
                    carriers.discard(asyncio.current_task())
                    return  # the others go on
                self._settle(piece, error, piece.at - at)
            rate = (piece.at - at) / max(clock() - began, 1e-9)
            self._changed.set()

    def _settle(self, piece: Piece, error: BaseException | None, brought: int) -> None:
        """Continue after a failed attempt, or raise an error that no retry can mend."""
        if error is None:
            return
        if not isinstance(error, aiohttp.ClientError | TimeoutError | ConnectionError):
            raise error
        now = asyncio.get_running_loop().time()
        if self._plan.failed(piece, brought, now) >= self._retries.attempts:
            broken = f"{type(error).__name__}: {error}"
            if isinstance(error, aiohttp.ClientConnectorError):
                broken += "; a server must reach this port as well as the manager's"
            raise WeightsError(
                f"{self._files[piece.source].url}: {self._retries.attempts} attempts failed with "
                f"{piece.missing} bytes of a piece missing; last: {broken}"
            )

    async def _fetch(self, piece: Piece) -> None:
        """Fetch one piece; raises what aiohttp raises when the connection breaks."""
        files, clock = self._files[piece.source], asyncio.get_running_loop().time
        at = piece.at
        # Identity: a Range counts bytes of the string itself.
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={at}-{piece.end - 1}"}
        async with self._session.get(files.url, headers=headers) as response:
            await _refuse_other(response)
            if response.status == HTTPStatus.OK:
                at = 0  # ranges are not known there: it begins with the first byte
            async for data in response.content.iter_any():
                upto = at + len(data)
                first, last = self._plan.arrived(piece, upto, clock())
                if first < last and first >= at:
                    files.write(first, memoryview(data)[first - at : last - at])
                    self._moved += last - first
                    self._counter.add(last - first)
                at = upto
                if not piece.missing:
                    break
            if piece.missing:
                raise ConnectionError("the answer ended early")
            if at > piece.end:
                response.close()  # the rest is another's by now
        for other in self._fetches[piece] - {asyncio.current_task()}:
            other.cancel()


class _TooMany(aiohttp.ClientError):
    """The server has as many connections as it takes."""


async def _refuse_other(response: aiohttp.ClientResponse) -> None:
    """Raise unless the response carries bytes: ClientError where another attempt may help."""
    status = response.status
    if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        return
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        raise _TooMany(f"HTTP {status} {response.reason}")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        response.raise_for_status()
    said = (await response.content.read(REASON_LETTERS)).decode(errors="replace")
    line = " ".join(filter(str.isprintable, said.split()))
    raise WeightsError(f"{response.url}: HTTP {status} {response.reason}: {line}")
