"""All sessions of a gateway: access by token, and one turn of each at a time.

A token opens one session. It is `<id>.<secret>`: the id finds the session, and the secret is
compared in a time that does not depend on it.
"""

import asyncio
import contextlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from rlboost_jax.gateway.api_errors import ApiError, exhausted, failed, invalid, over
from rlboost_jax.gateway.backend import Backend, TurnPiece
from rlboost_jax.gateway.client_calls import Call
from rlboost_jax.gateway.gateway_limits import MAX_QUEUED, GatewayLimits
from rlboost_jax.gateway.gateway_session import (
    AnsweredTurn,
    Ask,
    GatewaySession,
    SampledTurn,
    UnderWay,
)
from rlboost_jax.gateway.progress import TurnProgress

log: Final = logging.getLogger(__name__)

GATEWAY_ENDS: Final = "the gateway ends"


@dataclass(eq=False)
class OpenSession:
    """An open session and its token.

    Attributes:
        token: opens it; shown to nobody but who has asked for it.
        touched: when it was last used, on the clock of `Sessions`.
    """

    id: str
    token: str = field(repr=False)
    state: GatewaySession
    touched: float
    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    progress: TurnProgress | None = None
    task: "asyncio.Task[SampledTurn | ApiError] | None" = None
    queued: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while a turn is made; FIFO


class Sessions:
    """All open sessions.

    Args:
        clock: seconds, of no matter which beginning.
        now: Unix seconds.
    """

    def __init__(
        self,
        backend: Backend,
        limits: GatewayLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.backend, self.limits = backend, limits
        self._clock, self._now = clock, now
        self._open: dict[str, OpenSession] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, name: str = "") -> OpenSession:
        """Open a new session.

        Args:
            name: that it is to have; "": one that is drawn.

        Raises:
            ApiError: there are too many, or one of that name.
        """
        if name in self._open:
            raise ApiError(400, "session_exists", f"session {name!r} is open already")
        if len(self._open) >= self.limits.max_sessions:
            raise exhausted(
                f"{len(self._open)} sessions are open; max_sessions is "
                f"{self.limits.max_sessions}: end one, or wait",
                "too_many_sessions",
            )
        name = name or secrets.token_hex(8)
        session = OpenSession(
            id=name,
            token=f"{name}.{secrets.token_urlsafe(32)}",
            state=GatewaySession(self.limits),
            touched=self._clock(),
        )
        self._open[name] = session
        return session

    def named(self, name: str) -> OpenSession:
        """The session of that name, opened if there is none. Raises ApiError."""
        return self._open.get(name) or self.open(name)

    def find(self, name: str) -> OpenSession:
        """Session of that name. Raises ApiError."""
        session = self._open.get(name)
        if session is None:
            raise ApiError(404, "no_such_session", f"no session {name[:100]!r} is open")
        return session

    def of_token(self, token: str) -> OpenSession | None:
        name, _, _ = token.rpartition(".")
        session = self._open.get(name)
        expected = session.token if session is not None else f"{name}.{'-' * 43}"
        same = hmac.compare_digest(token.encode("utf-8", "surrogateescape"), expected.encode())
        return session if same else None

    async def ask(self, session: OpenSession, call: Call, key: str = "") -> TurnProgress:
        """Turn that a call asks for: a new one, the one in progress, or the newest once more.

        Raises:
            ApiError: none can be made. What goes wrong later is raised by `TurnProgress.answered`.
        """
        session.touched = self._clock()
        if (progress := self._known(session, call, key)) is not None:
            return progress
        if session.lock.locked():
            self._check_queue(session)
        with _queued(session):
            await session.lock.acquire()
        try:
            decision = session.state.receive(call, key)
            if not isinstance(decision, Ask):  # an equal call was made while this one waited
                assert isinstance(decision, AnsweredTurn), (
                    "who has the lock finds no turn under way"
                )
                session.lock.release()
                return session.progress or _finished(decision, int(self._now()))
            progress = session.progress = TurnProgress(decision.turn, int(self._now()))
            session.task = asyncio.create_task(self._made(session, decision, progress))
            # By a callback: a task that is cancelled before it has begun runs none of its lines.
            session.task.add_done_callback(lambda task: self._finish(session, progress, task))
        except BaseException:
            session.lock.release()
            raise
        return progress

    async def end(self, session: OpenSession, reason: str) -> None:
        """End a session; a turn in progress is abandoned."""
        if self._open.pop(session.id, None) is None:
            return
        session.state.end(reason)
        if session.task is not None:
            session.task.cancel()
            await asyncio.wait([session.task])
        await self.backend.ended(session.id, session.reward, session.metrics, reason)

    async def end_idle(self) -> None:
        """End the sessions that were unused for `idle_seconds`."""
        before = self._clock() - self.limits.idle_seconds
        for session in [s for s in self._open.values() if s.touched < before]:
            if not session.lock.locked():
                await self.end(session, f"idle for {self.limits.idle_seconds:g} s (idle_seconds)")

    async def close(self) -> None:
        for session in list(self._open.values()):
            await self.end(session, GATEWAY_ENDS)

    def _known(self, session: OpenSession, call: Call, key: str) -> TurnProgress | None:
        match session.state.known(call, key):
            case None:
                return None
            case UnderWay():
                return session.progress
            case AnsweredTurn() as answered:
                return session.progress or _finished(answered, int(self._now()))

    def _check_queue(self, session: OpenSession) -> None:
        if self.limits.concurrent == "refuse":
            raise invalid(
                "another call of this session is under way (concurrent = 'refuse'); open a session "
                "for each conversation, or make one call at a time",
                code="session_busy",
            )
        if session.queued >= MAX_QUEUED:
            raise exhausted(
                f"{session.queued} calls of this session wait; at most {MAX_QUEUED} may",
                "session_busy",
            )

    async def _made(
        self, session: OpenSession, ask: Ask, progress: TurnProgress
    ) -> SampledTurn | ApiError:
        """Sample one turn, or return why that failed."""
        try:
            async with asyncio.timeout(self.limits.turn_seconds):
                return await self._sampled(session, ask, progress)
        except ApiError as error:
            return error
        except TimeoutError:
            return failed(
                f"the turn took more than {self.limits.turn_seconds:g} s (turn_seconds)",
                "turn_timeout",
            )
        except Exception:
            log.exception("turn %d of session %s failed", ask.turn, session.id)
            return failed("the turn failed; the gateway's log says why")

    def _finish(
        self,
        session: OpenSession,
        progress: TurnProgress,
        task: "asyncio.Task[SampledTurn | ApiError]",
    ) -> None:
        """Complete a turn, however it ends: answer its waiters once, and let the next begin."""
        made = _abandoned(session.state.over) if task.cancelled() else task.result()
        if isinstance(made, ApiError):
            session.state.failed()
            progress.finish(made)
        else:
            progress.finish(session.state.sampled(made))
        session.touched = self._clock()
        session.lock.release()

    async def _sampled(self, session: OpenSession, ask: Ask, progress: TurnProgress) -> SampledTurn:
        turn = self.backend.turn(session.id, ask)
        async with contextlib.aclosing(turn) as items:  # type: ignore[type-var]
            async for item in items:
                if isinstance(item, TurnPiece):
                    progress.add(item)
                else:
                    return item
        raise AssertionError("a backend ended a turn without saying it")


def _abandoned(reason: str) -> ApiError:
    """Error for a turn whose session ended first.

    Another gateway may take the call, but none can continue an episode that is over.
    """
    return failed(reason, "session_over") if reason == GATEWAY_ENDS else over(reason)


def _finished(answered: AnsweredTurn, created: int) -> TurnProgress:
    progress = TurnProgress(answered.turn, created)
    progress.finish(answered)
    return progress


@contextlib.contextmanager
def _queued(session: OpenSession) -> Iterator[None]:
    session.queued += 1
    try:
        yield
    finally:
        session.queued -= 1
