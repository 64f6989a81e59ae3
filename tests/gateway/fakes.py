"""A backend with scripted answers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rlboost_jax.gateway.backend import Model, TurnPiece
from rlboost_jax.gateway.gateway_session import Ask, Called, SampledTurn
from rlboost_jax.gateway.served import message_of


class Fake:
    """Says "one two" in two pieces; where it is held, not before it is let go."""

    model = Model(name="fake", max_tokens=100)

    def __init__(self) -> None:
        self.asked: list[tuple[str, Ask]] = []
        self.over: list[tuple[str, float | None, str]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.calls: tuple[Called, ...] = ()
        self.error: Exception | None = None

    async def turn(self, session: str, ask: Ask) -> AsyncIterator[TurnPiece | SampledTurn]:
        self.asked.append((session, ask))
        yield TurnPiece(tokens=(1,), logprobs=(-0.5,), text="" if self.calls else "one")
        await self.go.wait()
        if self.error is not None:
            raise self.error
        yield TurnPiece(tokens=(2,), logprobs=(-0.25,))
        yield SampledTurn(
            tokens=(1, 2),
            logprobs=(-0.5, -0.25),
            finish="stop",
            text="" if self.calls else "one two",
            calls=self.calls,
            message=message_of("" if self.calls else "one two", "", self.calls),
            prompt=(7, 8, 9),
        )

    async def opened(self, session: str) -> Mapping[str, Any]:
        return {"example": {"question": "?"}}

    async def ended(
        self, session: str, reward: float | None, metrics: Mapping[str, float], reason: str
    ) -> None:
        self.over.append((session, reward, reason))

    def token_text(self, token: int) -> str | None:
        return f"<{token}>"

    def token_bytes(self, token: int) -> bytes | None:
        return None
