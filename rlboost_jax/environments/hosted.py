"""An episode and its environment: carries out the decisions of `episode.py`.

All of it in the event loop of the service.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

import msgspec
import numpy as np

from rlboost_jax import messages
from rlboost_jax.chat.conversation import Given, NewSequence, ParsedTurn, answers
from rlboost_jax.environments import actions as decided
from rlboost_jax.environments import environment_frames
from rlboost_jax.environments.actions import Actions, EpisodeQuestion
from rlboost_jax.environments.call_journal import CallJournal
from rlboost_jax.environments.environment_frames import Opened, Taken
from rlboost_jax.environments.episode import CONTEXT_FULL, Episode
from rlboost_jax.environments.episode_records import EpisodeRecord, TurnAnswered
from rlboost_jax.environments.observations import is_beyond
from rlboost_jax.environments.prompt_renderer import (
    NOTHING,
    PromptRenderer,
    UnencodableObservation,
    messages_of,
    turn_of,
)
from rlboost_jax.environments.protocol import Message, Turn
from rlboost_jax.environments.runner import CallLedger
from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.workers.worker_pool import WorkerPool
from rlboost_jax.workers.worker_sessions import Lost, WorkerSession

# Sends an answer to the manager, on the stream on which it was asked.
SendAnswer = Callable[[messages.Answer, int], None]


@dataclass(frozen=True, kw_only=True)
class EpisodeStart:
    """Beginning of an example's episodes.

    Attributes:
        example: see `Environment.reset`.
        opened: what the environment said to it, and its tools.
        beside: what else is known of the example.
        failed: why the environment could not begin it; "": it did. Its episodes are left out.
    """

    example: Mapping[str, Any]
    seed: int
    opened: Opened
    beside: Any = None
    failed: str = ""


class EpisodeFailed(Mistake, RuntimeError):
    """An environment failed, and `environment.on_failure` or `on_divergence` is "stop"."""


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

    async def reset(self, example: Mapping[str, Any], seed: int) -> Opened:
        """Reset the environment. Raises Lost."""
        number = self._session.number
        message = environment_frames.Reset(episode=number, example=dict(example), seed=seed)
        return await self._session.ask(message, Opened)

    async def take(self, turn: Turn, key: str) -> Taken:
        """Give the environment a turn. Raises Lost."""
        message = environment_frames.GiveTurn(episode=self._session.number, turn=turn, key=key)
        return await self._session.ask(message, Taken)

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


class EpisodeContext(Protocol):
    """Part of the service that an episode needs."""

    renderer: PromptRenderer

    async def open(self, ledger: CallLedger, *, alone: bool) -> Live: ...
    def spawn(self, coroutine: Any) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def failed_once(self, why: str) -> None: ...


class Hosted:
    """One episode of a batch.

    Args:
        send: an answer to a question.
        judged: what the episode is worth.
        prompt: that it began with, int32; an environment that is made again must say the same.
    """

    def __init__(
        self,
        context: EpisodeContext,
        episode: Episode,
        problem: EpisodeStart,
        *,
        prompt: bytes,
        ledger: CallJournal,
        keep: Callable[[Sequence[EpisodeRecord]], Any],
        send: SendAnswer,
        judged: Callable[[decided.JudgeEpisode], None],
    ) -> None:
        self._context, self._episode, self._problem = context, episode, problem
        self._prompt, self._ledger, self._keep_records = prompt, ledger, keep
        self._send, self._judged = send, judged
        self._live: Live | None = None
        self._tools = problem.opened.tools  # of the newest sequence
        self._closed = False

    def ask(self, question: EpisodeQuestion) -> None:
        self._act(self._episode.ask(question))

    def close(self) -> None:
        """Stop: no further action is carried out."""
        self._closed = True
        self._drop()

    def _act(self, actions: Actions) -> None:
        for action in actions if not self._closed else ():
            match action:
                case decided.Open(alone):
                    self._context.spawn(self._open(alone))
                case decided.Take():
                    self._context.spawn(self._take(action))
                case decided.Keep(record):
                    self._context.spawn(self._keep(record))
                case decided.WaitSeconds(seconds):
                    self._context.spawn(self._wait(seconds))
                case decided.Say():
                    self._send(action.answer, action.question.stream)
                case decided.JudgeEpisode():
                    self._judged(action)
                case decided.Drop():
                    self._drop()
                case decided.StopRun(why):
                    self._context.fail(EpisodeFailed(why))
                case unknown:
                    assert_never(unknown)

    def _drop(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.close()

    async def _open(self, alone: bool) -> None:
        problem = self._problem
        try:
            live = await self._context.open(self._ledger, alone=alone)
            if self._closed:
                live.close()
                return
            self._live = live
            opened = await live.reset(problem.example, problem.seed)
            self._tools = opened.tools
            said = self._context.renderer.first(opened.said.observation, opened.tools)
        except Lost as lost:
            self._lost(lost)
        except UnencodableObservation as error:
            self._act(self._episode.lost(str(error), own=True))
        else:
            if said.astype("<i4").tobytes() == self._prompt:
                self._act(self._episode.opened())
            else:
                why = "made again, the environment begins otherwise than its prompt"
                self._act(self._episode.lost(why, own=True))

    async def _take(self, take: decided.Take) -> None:
        assert self._live is not None
        past = take.past
        tokens = tuple(np.frombuffer(past.sampled, "<i4").tolist())
        renderer = self._context.renderer
        logprobs = tuple(np.frombuffer(past.logprobs, "<f4").tolist())
        parsed = renderer.parse(tokens)
        turn = turn_of(take.index, tokens, parsed, renderer, logprobs)
        try:
            taken = await self._live.take(turn, past.name.hex())
            answered = self._answered(take, parsed, taken)
        except Lost as lost:
            self._lost(lost)
        except UnencodableObservation as error:
            self._act(self._episode.lost(str(error), own=True))
        else:
            self._act(self._episode.taken(answered))

    def _answered(self, take: decided.Take, parsed: ParsedTurn, taken: Taken) -> TurnAnswered:
        """Record of a turn with the environment's step, as the policy will read it.

        Raises UnencodableObservation.
        """
        results, observation = taken.turn.results, taken.step.observation
        given = prompt = NOTHING
        said: Sequence[Message] = ()
        retokenised, over, metrics = 0, taken.done, taken.metrics
        if is_beyond((observation, answers(results)), self._episode.room):
            if not over:  # nobody makes tokens of it
                over, metrics = True, {**metrics, CONTEXT_FULL: 1.0}
        elif taken.anew and not over:
            self._tools = taken.tools
            prompt = self._context.renderer.first(observation, taken.tools)
            said = messages_of(observation)
        else:
            following, said = self._context.renderer.after(
                self._before(take.index), parsed, results, observation, self._tools
            )
            match following:
                case Given(given):
                    pass
                case NewSequence(prompt, retokenised):
                    pass
        return msgspec.structs.replace(
            take.record,
            given=given.astype("<i4").tobytes(),
            prompt=prompt.astype("<i4").tobytes(),
            over=over,
            reward=taken.reward,
            metrics=metrics,
            messages=msgspec.json.encode(said) if said else b"",
            seconds=taken.seconds,
            calls=tuple((result.call.name, result.failed) for result in results),
            retokenised=retokenised,
            anew=taken.anew,
        )

    def _before(self, index: int) -> list[Message]:
        """Messages of the conversation before a turn."""
        before = [*messages_of(self._problem.opened.said.observation)]
        for answered in self._episode.before(index):
            before = _messages(answered) if answered.anew else [*before, *_messages(answered)]
        return before

    async def _keep(self, record: EpisodeRecord) -> None:
        await self._keep_records([record])
        self._act(self._episode.kept())

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._act(self._episode.waited())

    def _lost(self, lost: Lost) -> None:
        if self._closed:  # it was abandoned, and is not made again
            return
        self._live = None
        self._context.failed_once(str(lost))
        self._act(
            self._episode.lost(
                str(lost),
                own=lost.blame == "own",
                outside=lost.blame == "outside",
                for_good=lost.for_good,
            )
        )


def _messages(answered: TurnAnswered) -> list[Message]:
    if not answered.messages:
        return []
    said = foreign_json.decode(answered.messages, "an environment's answer", list)
    return msgspec.convert(said, list[dict[str, Any]])  # type: ignore[return-value]
