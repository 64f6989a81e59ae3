"""A provider over a cloud of dictionaries, which outlives it as a real one does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from rlboost_jax.providers.base import (
    ANY_POOL,
    Exited,
    Granted,
    Listed,
    ProviderEvent,
    Refused,
    Started,
    Withdrawn,
)
from rlboost_jax.providers.event_queue import EventQueue


@dataclass
class Machine:
    nonce: str
    leaves: bool  # when it is asked to
    end: asyncio.TimerHandle | None = None


@dataclass
class Cloud:
    """Machines by name.

    Attributes:
        refusals: requests that it will refuse.
        stubborn: names whose servers do not leave when they are asked to.
        held: while this is not set, requests are under way.
    """

    refusals: int = 0
    stubborn: set[str] = field(default_factory=set)
    held: asyncio.Event | None = None
    machines: dict[str, Machine] = field(default_factory=dict)
    nonces: set[str] = field(default_factory=set)


class FakeProvider:
    """Says in `calls` what it was asked for."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.calls: asyncio.Queue[str] = asyncio.Queue()
        self.closed = False
        self._events = EventQueue()
        self._ended_early: set[str] = set()  # terminated while the request was under way
        self._asking: set[str] = set()

    async def request(self, name: str, nonce: str, pool: str) -> None:
        self.calls.put_nowait(f"request {name}")
        if nonce in self.cloud.nonces:
            return
        self.cloud.nonces.add(nonce)
        self._asking.add(name)
        if self.cloud.held is not None:
            await self.cloud.held.wait()
        self._asking.discard(name)
        if self.closed or pool != ANY_POOL or self.cloud.refusals or name in self._ended_early:
            self.cloud.refusals = max(0, self.cloud.refusals - 1)
            self._events.put(Refused(name, nonce, f"nothing in {pool!r}"))
            return
        self.cloud.machines[name] = Machine(nonce, leaves=name not in self.cloud.stubborn)
        self._events.put(Granted(name, nonce))
        self._events.put(Started(name, nonce))

    async def terminate(self, name: str, grace_seconds: float) -> None:
        self.calls.put_nowait(f"terminate {name} in {grace_seconds:g} s")
        if name in self._asking:
            self._ended_early.add(name)
            if self.cloud.held is not None:
                self.cloud.held.set()
        if (machine := self.cloud.machines.get(name)) is None:
            return
        if machine.leaves or grace_seconds <= 0:
            self.end(name, 0 if grace_seconds else None)
            return
        loop = asyncio.get_running_loop()
        moment = loop.time() + grace_seconds
        if machine.end is None or moment < machine.end.when():
            if machine.end is not None:
                machine.end.cancel()
            machine.end = loop.call_at(moment, self.end, name, None)

    async def list(self) -> tuple[Listed, ...]:
        return tuple(Listed(name, m.nonce) for name, m in self.cloud.machines.items())

    def events(self) -> AsyncIterator[ProviderEvent]:
        return self._events.read()

    async def close(self) -> None:
        self.closed = True
        if self.cloud.held is not None:
            self.cloud.held.set()
        for name in list(self.cloud.machines):
            self.end(name, 0)
        self._events.close()

    # What the cloud does

    def end(self, name: str, code: int | None) -> None:
        """A server ends, whatever ends it."""
        machine = self.cloud.machines.pop(name)
        if machine.end is not None:
            machine.end.cancel()
        self._events.put(Exited(name, machine.nonce, "ended", code))

    def withdraw(self, name: str, seconds: float) -> None:
        nonce = self.cloud.machines[name].nonce
        self._events.put(Withdrawn(name, nonce, seconds, "the spot market"))


class HangingProvider(FakeProvider):
    """Whatever it is asked, it does not answer."""

    def __init__(self, cloud: Cloud | None = None) -> None:
        super().__init__(cloud or Cloud())

    async def request(self, name: str, nonce: str, pool: str) -> None:
        await asyncio.Event().wait()

    async def terminate(self, name: str, grace_seconds: float) -> None:
        await asyncio.Event().wait()

    async def list(self) -> tuple[Listed, ...]:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        await asyncio.Event().wait()


class BrokenProvider(FakeProvider):
    """Whatever it is asked, it raises."""

    def __init__(self, cloud: Cloud | None = None) -> None:
        super().__init__(cloud or Cloud())

    async def request(self, name: str, nonce: str, pool: str) -> None:
        raise RuntimeError("a mistake")

    async def terminate(self, name: str, grace_seconds: float) -> None:
        raise RuntimeError("a mistake")

    async def list(self) -> tuple[Listed, ...]:
        raise RuntimeError("a mistake")

    async def events(self) -> AsyncIterator[ProviderEvent]:  # type: ignore[override]
        raise RuntimeError("a mistake")
        yield

    async def close(self) -> None:
        raise RuntimeError("a mistake")
