"""Channel between a session's calls and the environment that answers them, in one event loop.

A call becomes what the environment observes; the next turn of the policy becomes its answer.
"""

import asyncio
import collections
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlboost_jax.gateway.api_errors import ApiError, exhausted
from rlboost_jax.gateway.backend import Model, TurnPiece
from rlboost_jax.gateway.gateway_session import Ask, SampledTurn


@dataclass(frozen=True, kw_only=True)
class Over:
    """The session is over.

    Attributes:
        reward: that was posted; None: none was.
    """

    reward: float | None
    metrics: Mapping[str, float]
    reason: str


@dataclass(eq=False)
class HarnessChannel:
    """Channel of one episode.

    Attributes:
        more: what a client that asks for the session receives.
    """

    more: Mapping[str, Any]
    _asked: "asyncio.Queue[Ask | Over]" = field(default_factory=asyncio.Queue)
    _answer: "asyncio.Future[SampledTurn] | None" = None

    @property
    def waits(self) -> bool:
        """Whether `next` would return at once."""
        return not self._asked.empty()

    async def next(self) -> Ask | Over:
        """Wait for the next call, or for the session's end."""
        return await self._asked.get()

    def answer(self, sampled: SampledTurn) -> None:
        """Answer the newest call; ignored if nobody waits for it any more."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(sampled)

    async def ask(self, ask: Ask) -> SampledTurn:
        self._answer = asyncio.get_running_loop().create_future()
        self._asked.put_nowait(ask)
        return await self._answer

    def end(self, over: Over) -> None:
        self._asked.put_nowait(over)


class Channels:
    """Backend of a run: its policy, as its environment speaks for it."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._channels: dict[str, HarnessChannel] = {}
        self._waiting: collections.deque[tuple[HarnessChannel, asyncio.Future[str]]] = (
            collections.deque()
        )

    def bind(self, session: str, channel: HarnessChannel) -> None:
        """Assign a session to an episode's channel."""
        self._channels[session] = channel

    async def wait_for_client(self, channel: HarnessChannel) -> str:
        """Wait until a client asks for a session; returns its id."""
        entry = channel, asyncio.get_running_loop().create_future()
        self._waiting.append(entry)
        try:
            return await entry[1]
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    async def turn(self, session: str, ask: Ask) -> AsyncIterator[TurnPiece | SampledTurn]:
        channel = self._channels.get(session)
        if channel is None:
            raise ApiError(
                404, "no_such_session", "the session has no episode; POST /sessions asks for one"
            )
        yield await channel.ask(ask)

    async def opened(self, session: str) -> Mapping[str, Any]:
        while self._waiting:
            channel, found = self._waiting.popleft()
            if not found.done():
                self.bind(session, channel)
                found.set_result(session)
                return channel.more
        raise exhausted("no episode waits for a client now; ask again", "no_episode")

    async def ended(
        self, session: str, reward: float | None, metrics: Mapping[str, float], reason: str
    ) -> None:
        channel = self._channels.pop(session, None)
        if channel is not None:
            channel.end(Over(reward=reward, metrics=metrics, reason=reason))

    def token_text(self, token: int) -> str | None:
        return None

    def token_bytes(self, token: int) -> bytes | None:
        return None
