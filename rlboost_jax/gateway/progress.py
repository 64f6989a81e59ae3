"""A turn being sampled, and the calls that wait for it."""

import asyncio
from collections.abc import AsyncIterator

from rlboost_jax.gateway.api_errors import ApiError
from rlboost_jax.gateway.backend import TurnPiece
from rlboost_jax.gateway.gateway_session import AnsweredTurn


class TurnProgress:
    """One turn; any number of calls may follow it, from its first token on."""

    def __init__(self, turn: int, created: int) -> None:
        """
        Args:
            turn: its number in the session.
            created: Unix seconds, which its answers name.
        """
        self.turn, self.created = turn, created
        self._pieces: list[TurnPiece] = []
        self._end: AnsweredTurn | ApiError | None = None
        self._changed = asyncio.Event()

    def add(self, piece: TurnPiece) -> None:
        self._pieces.append(piece)
        self._wake()

    def finish(self, end: AnsweredTurn | ApiError) -> None:
        self._end = end
        self._wake()

    async def answered(self) -> AnsweredTurn:
        """Wait for the turn. Raises the ApiError that it ended with."""
        while self._end is None:
            await self._changed.wait()
        if isinstance(self._end, ApiError):
            raise self._end
        return self._end

    async def pieces(self, beat_seconds: float) -> AsyncIterator[TurnPiece | None]:
        """Yield all pieces until the turn is over; None if none came for `beat_seconds`."""
        seen = 0
        while True:
            changed = self._changed
            while seen < len(self._pieces):
                seen += 1
                yield self._pieces[seen - 1]
            if self._end is not None:
                return
            if changed is self._changed:
                try:
                    async with asyncio.timeout(beat_seconds):
                        await changed.wait()
                except TimeoutError:
                    yield None

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
