"""No provider: people start servers by hand, on whatever hosts they like."""

from collections.abc import AsyncIterator

from rlboost_jax.providers.base import Listed, ProviderEvent, Refused
from rlboost_jax.providers.event_queue import EventQueue


class NoProvider:
    """Grants nothing and lists nothing: servers started by hand are not ours to end."""

    def __init__(self) -> None:
        self._events = EventQueue()
        self._known: set[str] = set()  # nonces

    async def request(self, name: str, nonce: str, pool: str) -> None:
        if nonce not in self._known:
            self._known.add(nonce)
            self._events.put(Refused(name, nonce, "fleet.provider = 'none' starts no servers"))

    async def terminate(self, name: str, grace_seconds: float) -> None:
        pass

    async def list(self) -> tuple[Listed, ...]:
        return ()

    def events(self) -> AsyncIterator[ProviderEvent]:
        return self._events.read()

    async def close(self) -> None:
        self._events.close()
