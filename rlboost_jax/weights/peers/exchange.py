"""Bring a version's pieces here, from servers near and far and from the trainer.

Each piece is checked against its digest of the sealed manifest before it counts, and is served to
others from then on. A source that breaks off, stalls or lies costs the pieces that it has not
completed: it is asked no more, the manager hears of it, and others bring them.
"""

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Final

import aiohttp

from rlboost_jax.messages import (
    MAX_OUTCOMES,
    FetchFrom,
    PieceSource,
    SourceFault,
    SourceOutcome,
    SourcesUsed,
)
from rlboost_jax.platform.congestion import dialling_socket
from rlboost_jax.platform.thread_calls import ended
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.trust.transfers import fetching_tls
from rlboost_jax.weights.arrivals import ByteCounter
from rlboost_jax.weights.connections import Retries
from rlboost_jax.weights.peers.held_pieces import HeldPieces, HeldVersion
from rlboost_jax.weights.peers.incoming import IncomingPieces
from rlboost_jax.weights.peers.outside_pieces import OutsideSource
from rlboost_jax.weights.peers.swarm import OUTSIDE, Fetching, Swarm

SLOTS: Final = 4  # requests at a time to a server, and to all of them where they are many
STRIKES: Final = 3  # times that others were faster, after which a source counts as slow
ALONE_SLOTS: Final = 16  # to the outside, where no server is to be asked
OUTSIDE_SLOTS: Final = 4  # of this server and those near it together
SOURCES_SECONDS: Final = 1.0  # for the manager to name sources, after its announcement
LOOK_SECONDS: Final = 0.1  # between two looks at what is slow
DIAL_SECONDS: Final = 3.0
WATCH_SECONDS: Final = 0.1  # between two questions for what a source has
BUSY_SECONDS: Final = 0.2  # until a source is asked again that had enough to do
PATIENT: Final = 50  # times as many failures of the trainer while servers may have the pieces
FAILURES: Final = 3  # in a row, after which a source counts as unreachable


class _Busy(aiohttp.ClientError):
    """The source has as many requests as it takes."""


class _NotThere(aiohttp.ClientError):
    """The source does not have this."""


class PeerExchange:
    """One server's fetching from others. To be used in one event loop.

    Args:
        held: what this server serves; each piece is added as it becomes complete.
        chain: this server's certificate and key, as PEM; "" without TLS, within tests.
        sources_seconds: to wait for the manager's word on sources.

    Attributes:
        say: is given what sources were good for; set by the client of a manager.
    """

    def __init__(
        self, held: HeldPieces, *, chain: str = "", sources_seconds: float = SOURCES_SECONDS
    ) -> None:
        self.held, self._chain, self._sources_seconds = held, chain, sources_seconds
        self.say: Callable[[SourcesUsed], None] = lambda message: None
        self._heard: FetchFrom | None = None
        self._news = asyncio.Event()

    def fetch_from(self, message: FetchFrom) -> None:
        """Take the manager's word on where a version's pieces are."""
        self._heard = message
        self._news.set()

    async def bring(
        self,
        version: HeldVersion,
        counter: ByteCounter,
        outside: OutsideSource,
        retries: Retries,
    ) -> int:
        """Bring the pieces that the version lacks; returns the bytes from near servers.

        Raises:
            WeightsError: the trainer, or the store, does not have them, or other bytes.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._sources_seconds):
                while self._sources_of(version) is None:
                    self._news.clear()
                    await self._news.wait()
        return await _Bringing(self, version, counter, outside, retries).run()

    def _sources_of(self, version: HeldVersion) -> FetchFrom | None:
        heard = self._heard
        return heard if heard is not None and heard.root == version.root else None


class _Bringing:
    """One version on its way."""

    def __init__(
        self,
        exchange: PeerExchange,
        version: HeldVersion,
        counter: ByteCounter,
        outside: OutsideSource,
        retries: Retries,
    ) -> None:
        self._exchange, self._version, self._counter = exchange, version, counter
        self._files, self._outside, self._retries = version.files, outside, retries
        sizes = [entry.size for entry in version.files]
        start = secrets.randbelow(max(1, len(sizes)))
        missing = {version.numbers[entry.path] for entry in version.lacking()}
        self._swarm = Swarm(sizes, missing, start=start, outside_slots=ALONE_SLOTS)
        self._incoming = IncomingPieces(version.files, version.leaves)
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._near: set[str] = set()
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._tasks: dict[Fetching, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._fetched: Counter[str] = Counter()  # bytes, by source, since it was said
        self._seconds: Counter[str] = Counter()  # the same, in milliseconds
        self._failures: Counter[str] = Counter()  # in a row
        self._outpaced: Counter[str] = Counter()
        self._near_bytes = self._wasted = self._outside_bytes = 0
        self._known: FetchFrom | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        try:
            while not self._swarm.complete:
                self._update()
                for fetching in self._swarm.next_ones(loop.time()):
                    self._tasks[fetching] = asyncio.create_task(self._fetch(fetching))
                await self._wait()
                now = loop.time()
                for name in self._swarm.silent(now):
                    self._fault(name, "slow")
                for fetching in self._swarm.outpaced():
                    self._end(fetching)
                    self._outpaced[fetching.source] += fetching.source != OUTSIDE
                    if self._outpaced[fetching.source] >= STRIKES:
                        self._fault(fetching.source, "slow")
            self._say([self._outcome(name) for name in self._fetched if name != OUTSIDE])
            return self._near_bytes
        finally:
            await ended(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        for task in (running := (*self._tasks.values(), *self._watching.values())):
            task.cancel()
        await asyncio.gather(*running, *self._closing, return_exceptions=True)
        for session in self._sessions.values():
            await session.close()
        await self._incoming.close()

    async def _wait(self) -> None:
        """Wait until something has come, or for a while. Raises what ended the pull."""
        news = asyncio.create_task(self._exchange._news.wait())
        try:
            done, _ = await asyncio.wait(
                {*self._tasks.values(), news},
                timeout=LOOK_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            news.cancel()
        self._exchange._news.clear()
        for fetching, task in list(self._tasks.items()):
            if task in done:
                del self._tasks[fetching]
                task.result()

    def _update(self) -> None:
        """Follow the manager's word on sources."""
        heard = self._exchange._sources_of(self._version)
        if heard is None or heard is self._known:
            return
        self._known = heard
        self._swarm.bring(heard.parts)
        named = {source.name: source for source in heard.sources}
        for name in self._swarm.sources:
            if name not in named:
                self._drop(name)
        for source in named.values():
            if source.name not in self._sessions:
                self._add(source)
        slots = max(1, OUTSIDE_SLOTS // len(self._near)) if self._near else ALONE_SLOTS
        self._swarm.outside(slots)  # few, so that the first can be passed on early
        self._swarm.share(SLOTS)

    def _add(self, source: PieceSource) -> None:
        chain, tls = self._exchange._chain, None
        try:
            tls = fetching_tls(source.certificate, chain) if chain else None
        except (OSError, ValueError):  # no certificate; also ssl.SSLError
            self._fault(source.name, "unreachable")
            return
        silence = self._retries.silence_seconds
        self._sessions[source.name] = aiohttp.ClientSession(
            f"{'http' if tls is None else 'https'}://{source.address}",
            headers={"Authorization": f"Bearer {source.token}", "Accept-Encoding": "identity"},
            connector=aiohttp.TCPConnector(
                limit=SLOTS + 1, ssl=True if tls is None else tls, socket_factory=dialling_socket
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=DIAL_SECONDS, sock_read=silence),
            read_bufsize=2**20,
        )
        if source.near:
            self._near.add(source.name)
        self._swarm.add(source.name, near=source.near, slots=SLOTS)
        self._watching[source.name] = asyncio.create_task(self._watch(source.name))

    def _drop(self, name: str) -> None:
        for fetching in self._swarm.drop(name):
            self._end(fetching)
        self._near.discard(name)
        if (watching := self._watching.pop(name, None)) is not None:
            watching.cancel()
            self._closing.add(watching)

    def _fault(self, name: str, fault: SourceFault) -> None:
        """Stop using a source, and tell the manager why."""
        self._drop(name)
        self._say([self._outcome(name, fault)])

    def _outcome(self, name: str, fault: SourceFault = "") -> SourceOutcome:
        size, seconds = self._fetched[name], self._seconds[name] / 1000
        self._fetched[name] = self._seconds[name] = 0
        return SourceOutcome(source=name, fetched_bytes=size, seconds=seconds, fault=fault)

    def _say(self, outcomes: list[SourceOutcome]) -> None:
        self._exchange.say(
            SourcesUsed(
                root=self._version.root,
                outcomes=tuple(outcomes[:MAX_OUTCOMES]),
                outside_bytes=self._outside_bytes,
                wasted_bytes=self._wasted,
            )
        )
        self._outside_bytes = self._wasted = 0

    def _end(self, fetching: Fetching) -> None:
        if (task := self._tasks.pop(fetching, None)) is not None:
            task.cancel()
            self._closing.add(task)

    async def _watch(self, name: str) -> None:
        """Keep up with which pieces a source has, until it has all."""
        session, known, total = self._sessions[name], -1, len(self._files)
        url = f"/held/{self._version.root}"
        while known < total:
            try:
                params = {"known": known} if known >= 0 else None
                async with session.get(url, params=params) as response:
                    if response.status == 200:
                        bitmap = await response.content.read((total + 7) // 8)
                        known = self._swarm.holds(name, bitmap)
                        self._failures[name] = 0
                        self._exchange._news.set()
            except (aiohttp.ClientError, TimeoutError, OSError):
                if self._failed(name):
                    return
            await asyncio.sleep(WATCH_SECONDS)

    def _failed(self, name: str) -> bool:
        """Whether a failure of a source is one too many."""
        self._failures[name] += 1
        if self._failures[name] < FAILURES or name not in self._swarm.sources:
            return False
        watching = self._watching.pop(name, None)  # which may be who found out
        if watching is not None and watching is not asyncio.current_task():
            watching.cancel()
        if watching is not None:
            self._closing.add(watching)
        self._fault(name, "unreachable")
        return True

    async def _fetch(self, fetching: Fetching) -> None:
        """Bring some pieces from one source. Raises WeightsError of the outside only."""
        loop, name = asyncio.get_running_loop(), fetching.source
        began, come, brought, useful = loop.time(), 0, 0, 0
        try:
            if name == OUTSIDE:
                chunks = self._outside.chunks(fetching.pieces)
            else:
                chunks = self._chunks(name, fetching.pieces)
            incoming = self._incoming.take(fetching.pieces, chunks, name)
            async with contextlib.aclosing(incoming):
                async for number, size in incoming:
                    fetching.moved_at = loop.time()
                    if number is None:
                        self._count(name, size)
                        come += size
                        continue
                    brought += size
                    if self._swarm.arrived(number):
                        useful += size
                        self._exchange.held.add(self._version, [self._files[number]])
            self._failures[name] = 0
        except WeightsError:
            if name == OUTSIDE:
                raise
            self._fault(name, "wrong")
        except _Busy:
            self._swarm.pause(name, loop.time() + BUSY_SECONDS)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            self._swarm.pause(name, loop.time() + self._retries.first_backoff_seconds)
            if name == OUTSIDE:
                self._failures[name] += 1
                attempts = self._retries.attempts * (PATIENT if self._swarm.sources else 1)
                if self._failures[name] >= attempts:
                    raise WeightsError(
                        f"{attempts} attempts failed; last: {type(error).__name__}: {error}"
                    ) from None
            else:
                self._failed(name)
        finally:
            now = loop.time()
            self._wasted += come - useful
            self._swarm.ended(fetching, brought, now)
            self._fetched[name] += brought
            self._seconds[name] += int(1000 * (now - began))

    async def _chunks(self, name: str, pieces: range) -> AsyncGenerator[bytes, None]:
        url = f"/pieces/{self._version.root}/{pieces[0]}-{pieces[-1]}"
        async with self._sessions[name].get(url) as response:
            if response.status in (429, 503):
                raise _Busy(f"HTTP {response.status}")
            if response.status != 200:
                raise _NotThere(f"HTTP {response.status}")
            async for data in response.content.iter_any():
                yield data
            yield b""  # an answer may have no bytes at all

    def _count(self, name: str, num_bytes: int) -> None:
        self._counter.add(num_bytes)
        if name == OUTSIDE:
            self._outside_bytes += num_bytes
        elif name in self._near:
            self._near_bytes += num_bytes
