"""What an episode has done with its environment, where another process would hide it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlboost_jax.chat.conversation import Continuation, Given, ParsedTurn
from rlboost_jax.environments.call_journal import CallJournal
from rlboost_jax.environments.environment_frames import Opened, Taken, ToolSpec, WireObservation
from rlboost_jax.environments.episode import Episode
from rlboost_jax.environments.hosted import EpisodeStart, Hosted
from rlboost_jax.environments.protocol import Message, Turn
from rlboost_jax.messages import Answer
from rlboost_jax.settings.environment_config import EnvironmentConfig
from rlboost_jax.workers.worker_sessions import Lost
from tests.environments.test_episode import asked_about

SETTINGS = EnvironmentConfig(name="x:y", max_given_tokens=100)


def ids(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def spec(name: str) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={})


def opened() -> Opened:
    return Opened(episode=0, said=WireObservation(text="at first"), tools=(spec("before"),))


class FakeLive:
    """Says `says` after each turn, but begins anew with other tools after the first."""

    def __init__(self) -> None:
        self.closed, self.stuck = False, asyncio.get_running_loop().create_future()
        self.waits = False
        self.says = "more"

    async def reset(self, example: Any, seed: int) -> Opened:
        if self.waits:
            await self.stuck
        return opened()

    async def take(self, turn: Turn, key: str) -> Taken:
        anew = turn.index == 0
        return Taken(
            episode=0,
            turn=turn,
            said=WireObservation(text=self.says),
            reward=0.0,
            done=False,
            metrics={},
            seconds=0.0,
            anew=anew,
            tools=(spec("after"),) if anew else (),
        )

    def close(self) -> None:
        self.closed = True
        if not self.stuck.done():
            self.stuck.set_exception(Lost("it was closed", "outside"))
            self.stuck.exception()


class Pretence:
    """The service around one episode, its environment and its renderer."""

    def __init__(self) -> None:
        self.renderer = self
        self.stop_ids, self.stops = (9,), b""
        self.live, self.opening = FakeLive(), asyncio.Event()
        self.opening.set()
        self.tasks: list[asyncio.Task[None]] = []
        self.failed: list[Any] = []
        self.tools: list[str] = []  # that prompts and what follows turns were written with
        self.before: list[list[Any]] = []  # messages that what follows a turn was written after
        self.said: list[Answer] = []

    def hosted(self) -> Hosted:
        episode = Episode(SETTINGS, sample=0, name=b"n", prompt=ids(1, 2), room=50)
        return Hosted(
            self,  # type: ignore[arg-type]
            episode,
            EpisodeStart(example={}, seed=1, opened=opened()),
            prompt=ids(1, 2),
            ledger=CallJournal(self.keep, ()),
            keep=self.keep,
            send=lambda answer, stream: self.said.append(answer),
            judged=self.failed.append,
        )

    async def keep(self, records: Any) -> None: ...

    def spawn(self, coroutine: Any) -> None:
        self.tasks.append(asyncio.create_task(coroutine))

    def fail(self, error: Any) -> None:
        self.failed.append(error)

    failed_once = fail

    async def open(self, ledger: Any, *, alone: bool) -> FakeLive:
        await self.opening.wait()
        return self.live

    def first(self, observation: Any, tools: Sequence[ToolSpec]) -> Any:
        self.tools += [tool.name for tool in tools]
        return np.array((1, 2), np.int32)

    def parse(self, tokens: Any) -> ParsedTurn:
        said = Message(role="assistant", content="")
        return ParsedTurn(text="", thinking="", calls=(), message=said, stop=9)

    def after(
        self, before: Any, turn: Any, results: Any, observation: Any, tools: Sequence[ToolSpec]
    ) -> tuple[Continuation, Sequence[Message]]:
        self.tools += [tool.name for tool in tools]
        self.before.append([message["content"] for message in before])
        said = Message(role="assistant", content="mine"), Message(role="user", content=observation)
        return Given(np.array((3,), np.int32)), said

    async def settled(self) -> None:
        while self.tasks:
            await self.tasks.pop(0)


def test_what_follows_a_sequence_that_began_anew_is_written_with_its_own_tools() -> None:
    async def story() -> list[str]:
        around = Pretence()
        hosted = around.hosted()
        hosted.ask(asked_about([(ids(5, 9), None)]))
        await around.settled()
        hosted.ask(asked_about([(ids(6, 9), None)], sequence=1))
        await around.settled()
        assert len(around.said) == 2 and not around.failed
        return around.tools

    assert asyncio.run(story()) == ["before", "after", "after"]


def test_nothing_of_before_is_before_what_follows_a_sequence_that_began_anew() -> None:
    async def story() -> list[list[Any]]:
        around = Pretence()
        hosted = around.hosted()
        again = ((ids(6, 9), None),)
        more = ((ids(6, 9), ids(3)), (ids(7, 9), None))
        for says, sequence, turns in ("in short", 0, again), ("more", 1, again), ("end", 1, more):
            around.live.says = says
            hosted.ask(asked_about(turns, sequence=sequence))
            await around.settled()
        assert len(around.said) == 3 and not around.failed
        return around.before

    assert asyncio.run(story()) == [["in short"], ["in short", "mine", "more"]]


def test_one_that_is_closed_while_it_begins_leaves_no_environment_behind() -> None:
    async def story() -> None:
        around = Pretence()
        around.opening.clear()
        hosted = around.hosted()
        hosted.ask(asked_about([(ids(5, 9), None)]))
        await asyncio.sleep(0)
        hosted.close()
        around.opening.set()
        await around.settled()
        assert around.live.closed and not around.tools

    asyncio.run(story())


def test_one_that_is_closed_at_work_has_not_failed() -> None:
    async def story() -> None:
        around = Pretence()
        around.live.waits = True
        hosted = around.hosted()
        hosted.ask(asked_about([(ids(5, 9), None)]))
        for _ in range(3):
            await asyncio.sleep(0)
        hosted.close()
        await around.settled()
        assert around.live.closed and not around.failed, "nothing is said of being made again"

    asyncio.run(story())
