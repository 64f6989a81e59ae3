"""Live environments: one session of an environment worker each. All of it in one event loop."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from rlboost_jax.environments import environment_frames
from rlboost_jax.environments.protocol import Turn
from rlboost_jax.environments.runner import CallLedger
from rlboost_jax.workers.worker_pool import WorkerPool
from rlboost_jax.workers.worker_sessions import Lost, WorkerSession


class Live:
    """One environment in some worker; requests are made one at a time. Made by `open`."""

    def __init__(self, ledger: CallLedger) -> None:
        self._ledger = ledger
        self._session: WorkerSession
        self._noting: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, pool: WorkerPool, ledger: CallLedger, *, alone: bool = False) -> "Live":
        """Make an environment that is not reset yet.

        Args:
            ledger: of its calls.
            alone: in a process of its own.

        Raises:
            Lost: its process was gone at once.
            WorkersLost, StartsExhausted: none can be started.
        """
        live = cls(ledger)
        live._session = await pool.open(live._hear, alone=alone)
        return live

    async def reset(self, example: Mapping[str, Any], seed: int) -> environment_frames.Opened:
        """Reset the environment. Raises Lost."""
        number = self._session.number
        message = environment_frames.Reset(episode=number, example=dict(example), seed=seed)
        return await self._session.ask(message, environment_frames.Opened)

    async def take(self, turn: Turn, key: str) -> environment_frames.Taken:
        """Give the environment a turn. Raises Lost."""
        message = environment_frames.GiveTurn(episode=self._session.number, turn=turn, key=key)
        return await self._session.ask(message, environment_frames.Taken)

    def close(self) -> None:
        """Close the environment; requests in progress are lost."""
        self._session.close()

    def _hear(self, session: WorkerSession, message: msgspec.Struct) -> None:
        match message:
            case environment_frames.Calling() if len(message.calls) != len(message.lasting):
                session.lose(Lost("it asks about calls without saying which must last", "own"))
            case environment_frames.Calling():
                self._note(self._answer(message))
            case environment_frames.CallEnded():
                self._note(self._ledger.done(message.result))
            case environment_frames.StepFailed():
                session.lose(Lost(message.why, "own", for_good=message.for_good))
            case _:
                session.answer(message)

    async def _answer(self, asked: environment_frames.Calling) -> None:
        known = await self._ledger.begin(asked.calls, asked.lasting)
        self._session.say(
            environment_frames.Known(episode=self._session.number, calls=tuple(known))
        )

    def _note(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._noting.add(task)
        task.add_done_callback(self._noted)

    def _noted(self, task: "asyncio.Task[None]") -> None:
        self._noting.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._session.fail(error)
