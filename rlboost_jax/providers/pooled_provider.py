"""Several pools, each with a provider of its own, as one provider.

An instance is asked for in the pool that the request names, and known by its name afterwards: the
manager calls it after its pool. No pool waits for another: a call that raises or does not come
back, or a stream of events that breaks, is that pool's trouble alone. Its requests are refused for
a while; then its provider is opened anew and asked what there is.

What a provider lists too late to be adopted, or grants after its request was abandoned, is ended.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from rlboost_jax.platform.backoff import backoff_seconds
from rlboost_jax.providers.base import (
    ANY_POOL,
    Exited,
    Granted,
    Listed,
    Provider,
    ProviderEvent,
    Refused,
    Started,
    Withdrawn,
)
from rlboost_jax.providers.event_queue import EventQueue

REQUEST_SECONDS = 300.0  # for a request to return; providers bound their own steps
LIST_SECONDS = 60.0  # that pools are waited for at first, from when one has answered
CLOSE_SECONDS = 180.0
LAST_WORDS_SECONDS = 1.0  # for the events of a provider that is closed to be read
FIRST_REOPEN_SECONDS, LAST_REOPEN_SECONDS = 1.0, 60.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Known:
    """An instance that was requested from a pool, or listed by it, and is not over."""

    pool: str
    nonce: str
    granted: bool = False
    late: bool = False  # it was reported as refused, or not at all
    terminated: bool = False


@dataclass
class _Pool:
    name: str
    open: Callable[[], Provider]
    provider: Provider
    reader: asyncio.Task[None] | None = None
    trouble: str = ""  # "": it works
    failures: int = 0
    lists: list[asyncio.Task[tuple[Listed, ...]]] = field(default_factory=list)


class PooledProvider:
    """Provider that hands each call to the provider of a pool.

    Args:
        pools: opens the provider of each, by name. Where no pool is named the first is asked.
        request_seconds, list_seconds, close_seconds: that one pool may take for such a call.
    """

    def __init__(
        self,
        pools: Mapping[str, Callable[[], Provider]],
        *,
        request_seconds: float = REQUEST_SECONDS,
        list_seconds: float = LIST_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
        first_reopen_seconds: float = FIRST_REOPEN_SECONDS,
    ) -> None:
        self._request_seconds, self._list_seconds = request_seconds, list_seconds
        self._close_seconds, self._first_reopen_seconds = close_seconds, first_reopen_seconds
        self._pools = {name: _Pool(name, opens, opens()) for name, opens in pools.items()}
        self._events = EventQueue()
        self._known: dict[str, _Known] = {}
        self._nonces: set[str] = set()
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def request(self, name: str, nonce: str, pool: str) -> None:
        if nonce in self._nonces:
            return
        self._nonces.add(nonce)
        chosen = self._pools.get(next(iter(self._pools)) if pool == ANY_POOL else pool)
        if chosen is None:
            known = ", ".join((ANY_POOL, *self._pools))
            self._events.put(Refused(name, nonce, f"there is no pool {pool!r}, only {known}"))
            return
        if self._closing or chosen.trouble:
            reason = "the run is over" if self._closing else f"{chosen.name}: {chosen.trouble}"
            self._events.put(Refused(name, nonce, reason))
            return
        self._listen(chosen)
        self._known[name] = instance = _Known(chosen.name, nonce)
        try:
            async with asyncio.timeout(self._request_seconds):
                await chosen.provider.request(name, nonce, ANY_POOL)
        except TimeoutError:
            self._abandon(name, instance, f"no answer in {self._request_seconds:g} s")
        except Exception as error:
            log.exception("pool %s: a request has failed", chosen.name)
            self._abandon(name, instance, f"its provider has failed: {error!r}")

    async def terminate(self, name: str, grace_seconds: float) -> None:
        instance = self._known.get(name)
        if instance is None:
            return
        instance.terminated = True
        pool = self._pools[instance.pool]
        try:
            await pool.provider.terminate(name, grace_seconds)
        except Exception as error:
            log.exception("pool %s: %s cannot be ended", pool.name, name)
            self._fail(pool, error)

    async def list(self) -> tuple[Listed, ...]:
        asked = {asyncio.create_task(pool.provider.list()): pool for pool in self._pools.values()}
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(asked, timeout=self._list_seconds)
        found: list[Listed] = []
        for task, pool in asked.items():
            if not task.done():
                log.error("pool %s does not say what it has; what it has is ended", pool.name)
                pool.trouble = "it has not said what it has"
                self._spawn(self._adopt_late(pool, task))
            elif error := task.exception():
                self._fail(pool, error)
            else:
                found += [e for e in task.result() if self._adopt(pool, e)]
        return tuple(found)

    def events(self) -> AsyncIterator[ProviderEvent]:
        for pool in self._pools.values():
            self._listen(pool)
        return self._events.read()

    async def close(self) -> None:
        """Close all pools; returns when each has ended its instances or has taken too long."""
        self._closing = True
        for pool in self._pools.values():
            self._listen(pool)
        closing = {asyncio.create_task(self._close(p)): p for p in self._pools.values()}
        closed, open_still = await asyncio.wait(closing, timeout=self._close_seconds)
        if open_still:
            log.error("a pool does not close; rlboost fleet reap ends what it has left")
        tasks = [*self._tasks, *open_still]
        readers = [p.reader for p in self._pools.values() if p.reader is not None]
        # What closed providers have said last. Of the others no end is to be expected.
        ending = [reader for task in closed if (reader := closing[task].reader) is not None]
        if ending:
            await asyncio.wait(ending, timeout=LAST_WORDS_SECONDS)
        for task in (*tasks, *readers):
            task.cancel()
        if tasks or readers:
            await asyncio.wait((*tasks, *readers))
        for name, instance in list(self._known.items()):
            if not instance.late:
                self._end(name, instance, "its pool does not answer")
        self._events.close()

    async def _close(self, pool: _Pool) -> None:
        try:
            await pool.provider.close()
        except Exception:
            log.exception(
                "pool %s cannot be closed; rlboost fleet reap ends what is left", pool.name
            )

    def _listen(self, pool: _Pool) -> None:
        if pool.reader is None:
            pool.reader = asyncio.create_task(self._read(pool))

    async def _read(self, pool: _Pool) -> None:
        try:
            async for event in pool.provider.events():
                self._hear(pool, event)
            if self._closing:
                return
            raise RuntimeError("its events have ended")
        except Exception as error:
            self._fail(pool, error)

    def _hear(self, pool: _Pool, event: ProviderEvent) -> None:
        pool.failures = 0
        instance = self._known.get(event.name)
        if instance is None or instance.pool != pool.name or instance.nonce != event.nonce:
            return
        over = isinstance(event, Refused | Exited)
        if isinstance(event, Granted):
            if instance.late:
                self._spawn(self.terminate(event.name, 0.0))
            elif instance.granted:
                return
            instance.granted = True
        if isinstance(event, Started | Withdrawn | Exited) and not instance.granted:
            if isinstance(event, Exited) and not instance.late:
                self._events.put(Granted(event.name, event.nonce))
            elif not over:
                return
        if over:
            del self._known[event.name]
        if not instance.late:
            self._events.put(event)

    def _adopt(self, pool: _Pool, listed: Listed, *, late: bool = False) -> bool:
        """Adopt a listed instance; returns whether to report it to the manager."""
        if (known := self._known.get(listed.name)) is not None:
            return known.pool == pool.name and not known.late
        self._nonces.add(listed.nonce)
        self._known[listed.name] = _Known(pool.name, listed.nonce, granted=True, late=late)
        return not late

    async def _adopt_late(self, pool: _Pool, task: asyncio.Task[tuple[Listed, ...]]) -> None:
        try:
            listed = await task
        except Exception as error:
            self._fail(pool, error)
            return
        self._listen(pool)
        for each in listed:
            if self._adopt(pool, each, late=True) is False and self._known[each.name].late:
                await self.terminate(each.name, 0.0)
        pool.trouble = ""

    def _abandon(self, name: str, instance: _Known, reason: str) -> None:
        """Refuse a request unless an event was reported; an instance that comes of it is ended."""
        if self._known.get(name) is instance and not instance.granted and not instance.late:
            instance.late = True
            self._events.put(Refused(name, instance.nonce, f"{instance.pool}: {reason}"))

    def _end(self, name: str, instance: _Known, reason: str) -> None:
        del self._known[name]
        if not instance.late:
            kind = Exited if instance.granted else Refused
            self._events.put(kind(name, instance.nonce, f"{instance.pool}: {reason}"))

    def _fail(self, pool: _Pool, error: BaseException) -> None:
        """Replace a pool's failed provider by another, after a pause."""
        if pool.trouble or self._closing:
            return
        log.error("pool %s: its provider has failed: %r", pool.name, error)
        pool.trouble = f"its provider has failed: {error!r}"
        self._spawn(self._reopen(pool))

    async def _reopen(self, pool: _Pool) -> None:
        while True:
            await asyncio.sleep(
                backoff_seconds(
                    pool.failures, first=self._first_reopen_seconds, longest=LAST_REOPEN_SECONDS
                )
            )
            pool.failures += 1
            try:
                provider = pool.open()
                listed = {each.name: each for each in await provider.list()}
            except Exception as error:
                log.error("pool %s: its provider fails again: %r", pool.name, error)
                continue
            break
        if pool.reader is not None:
            pool.reader.cancel()
        pool.provider, pool.reader, pool.trouble = provider, None, ""
        for name, instance in list(self._known.items()):
            if instance.pool == pool.name and name not in listed:
                self._end(name, instance, "it was gone when its provider was opened anew")
        self._listen(pool)
        for each in listed.values():
            if each.name not in self._known:
                self._adopt(pool, each, late=True)
            known = self._known[each.name]
            if not known.granted and not known.late:
                self._hear(pool, Granted(each.name, each.nonce))
            if known.late or known.terminated:
                await self.terminate(each.name, 0.0)

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
