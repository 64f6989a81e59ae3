"""An episode and its environment: carries out the decisions of `episode.py`.

All of it in the event loop of the service.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

import msgspec
import numpy as np

from rlboost_jax.chat.conversation import ParsedTurn, answers
from rlboost_jax.environments import actions as decided
from rlboost_jax.environments.actions import Actions, EpisodeQuestion, Reply
from rlboost_jax.environments.environment_frames import Opened, Taken
from rlboost_jax.environments.episode import Episode
from rlboost_jax.environments.episode_records import (
    CallBegun,
    CallDone,
    EpisodeRecord,
    Past,
    TurnAnswered,
)
from rlboost_jax.environments.live import Live
from rlboost_jax.environments.observations import is_beyond
from rlboost_jax.environments.prompt_renderer import (
    NOTHING,
    Continued,
    PromptRenderer,
    UnencodableObservation,
    messages_of,
    turn_of,
)
from rlboost_jax.environments.protocol import Message, ToolCall, ToolResult
from rlboost_jax.environments.runner import CallLedger, KnownCall
from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.workers.worker_sessions import Lost


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


class CallJournal:
    """Calls of a batch's episodes, as its journal keeps them."""

    def __init__(
        self, keep: Callable[[Sequence[EpisodeRecord]], Any], records: Sequence[Any]
    ) -> None:
        """
        Args:
            keep: awaitable; the records last then.
            records: that were kept before.
        """
        self._keep = keep
        self._known: dict[str, CallBegun | CallDone] = {}
        for record in records:
            if isinstance(record, CallBegun | CallDone):
                self._known[record.key] = record

    async def begin(self, calls: Sequence[ToolCall], lasting: Sequence[bool]) -> list[KnownCall]:
        found = [_known(call, self._known.get(call.key)) for call in calls]
        begun = [
            CallBegun(key=call.key)
            for call, lasts, known in zip(calls, lasting, found, strict=True)
            if lasts and known == "new"
        ]
        if begun:
            self._known.update((record.key, record) for record in begun)
            await self._keep(begun)
        return found

    async def done(self, result: ToolResult) -> None:
        record = CallDone(key=result.call.key, content=result.content, failed=result.failed)
        self._known[record.key] = record
        await self._keep([record])


def _known(call: ToolCall, record: CallBegun | CallDone | None) -> KnownCall:
    match record:
        case None:
            return "new"
        case CallBegun():
            return "begun"
        case CallDone(content=content, failed=failed):
            return ToolResult(call=call, content=content, failed=failed)
        case unknown:
            assert_never(unknown)


class Around(Protocol):
    """Part of the service that an episode needs."""

    renderer: PromptRenderer

    async def open(self, ledger: CallLedger, *, alone: bool) -> Live: ...
    def spawn(self, coroutine: Any) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def failed_once(self, why: str) -> None: ...


class Hosted:
    """One episode of a batch.

    Args:
        say: an answer to a question.
        judged: what the episode is worth.
        prompt: that it began with, int32; an environment that is made again must say the same.
    """

    def __init__(
        self,
        around: Around,
        episode: Episode,
        problem: EpisodeStart,
        *,
        prompt: bytes,
        ledger: CallJournal,
        keep: Callable[[Sequence[EpisodeRecord]], Any],
        say: Callable[[decided.Say], None],
        judged: Callable[[decided.JudgeEpisode], None],
    ) -> None:
        self._around, self._episode, self._problem = around, episode, problem
        self._prompt, self._ledger, self._keep_records = prompt, ledger, keep
        self._say, self._judged = say, judged
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
                    self._around.spawn(self._open(alone))
                case decided.Take(index, past):
                    self._around.spawn(self._take(index, past))
                case decided.Keep(record):
                    self._around.spawn(self._keep(record))
                case decided.WaitSeconds(seconds):
                    self._around.spawn(self._wait(seconds))
                case decided.Say():
                    self._say(action)
                case decided.JudgeEpisode():
                    self._judged(action)
                case decided.Drop():
                    self._drop()
                case decided.StopRun(why):
                    self._around.fail(EpisodeFailed(why))
                case unknown:
                    assert_never(unknown)

    def _drop(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.close()

    async def _open(self, alone: bool) -> None:
        problem = self._problem
        try:
            live = await self._around.open(self._ledger, alone=alone)
            if self._closed:
                live.close()
                return
            self._live = live
            opened = await live.reset(problem.example, problem.seed)
            self._tools = opened.tools
            said = self._around.renderer.first(opened.said.observation, opened.tools)
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

    async def _take(self, index: int, past: Past) -> None:
        assert self._live is not None
        tokens = tuple(np.frombuffer(past.sampled, "<i4").tolist())
        renderer = self._around.renderer
        logprobs = tuple(np.frombuffer(past.logprobs, "<f4").tolist())
        parsed = renderer.parse(tokens)
        turn = turn_of(index, tokens, parsed, renderer, logprobs)
        try:
            taken = await self._live.take(turn, past.name.hex())
            reply = self._reply(index, parsed, taken)
        except Lost as lost:
            self._lost(lost)
        except UnencodableObservation as error:
            self._act(self._episode.lost(str(error), own=True))
        else:
            self._act(self._episode.taken(reply))

    def _reply(self, index: int, parsed: ParsedTurn, taken: Taken) -> Reply:
        """Render the environment's step as a reply. Raises UnencodableObservation."""
        opened, renderer = self._problem.opened, self._around.renderer
        before = [*messages_of(opened.said.observation)]
        for answered in self._episode.before(index):
            before = _messages(answered) if answered.anew else [*before, *_messages(answered)]
        results, observation = taken.turn.results, taken.step.observation
        beyond = is_beyond((observation, answers(results)), self._episode.room)
        if beyond:
            said = Continued(given=NOTHING, prompt=NOTHING)
        elif taken.anew and not taken.done:
            self._tools = taken.tools
            said = Continued(
                given=NOTHING,
                prompt=renderer.first(observation, taken.tools),
                messages=messages_of(observation),
            )
        else:
            said = renderer.after(before, parsed, results, observation, self._tools)
        return Reply(
            given=said.given.astype("<i4").tobytes(),
            prompt=said.prompt.astype("<i4").tobytes(),
            reward=taken.reward,
            done=taken.done,
            metrics=taken.metrics,
            messages=msgspec.json.encode(said.messages) if said.messages else b"",
            seconds=taken.seconds,
            calls=tuple((result.call.name, result.failed) for result in results),
            retokenised=said.retokenised,
            anew=taken.anew,
            beyond=beyond,
        )

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
        self._around.failed_once(str(lost))
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
