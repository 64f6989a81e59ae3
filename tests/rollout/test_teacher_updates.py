"""Teachers on their way to a server that scores with them."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from rlboost_jax.messages import Manifest, ScoreTokens, Teaches, TokenScores
from rlboost_jax.rollout.teacher_updates import TeacherUpdates
from rlboost_jax.trust.snapshot_names import WeightsError
from tests.patience import PATIENCE_SECONDS


def teacher(place: int) -> Manifest:
    return Manifest(
        version=2**52 + place, directory="", params_digest=f"t{place}", list_sha256="list"
    )


class Unsteady:
    """Fails once for each teacher."""

    def __init__(self) -> None:
        self.pulls: list[int] = []

    async def pull(self, manifest: Manifest) -> Any:
        self.pulls.append(manifest.version - 2**52)
        if self.pulls.count(self.pulls[-1]) == 1:
            raise WeightsError("file w/0 is gone")
        return SimpleNamespace(params=f"params of {manifest.params_digest}", fetched_bytes=7)


class Thread:
    """Does everything at once."""

    def __init__(self) -> None:
        self.answers: list[TokenScores] = []

    def between(self, function: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function())
        return done

    def answer(self, function: Any) -> None:
        self.answers.append(function())


class Holds:
    def __init__(self) -> None:
        self.held: dict[str, tuple[int, str]] = {}

    @property
    def digests(self) -> tuple[str, ...]:
        return tuple(self.held)

    def hold(self, place: int, digest: str, params: Any) -> None:
        self.held[digest] = place, params

    def keep(self, digests: list[str]) -> None:
        self.held = {digest: self.held[digest] for digest in self.held if digest in digests}

    def score(self, item: ScoreTokens) -> TokenScores:
        return TokenScores(number=item.number, logprobs=b"")


def updates(puller: Unsteady, holds: Holds | None, said: "asyncio.Queue[Any]", notes: list[str]):
    return TeacherUpdates(
        puller,  # type: ignore[arg-type]
        Thread(),  # type: ignore[arg-type]
        holds,
        say=said.put_nowait,
        note=notes.append,
        fail=said.put_nowait,
    )


def test_a_teacher_is_pulled_once_however_often_it_is_named() -> None:
    async def scenario() -> None:
        puller, holds, said, notes = Unsteady(), Holds(), asyncio.Queue[Any](), list[str]()
        server = updates(puller, holds, said, notes)
        for named, fetched in (((0, 1), 14), ((0, 1), 0), ((1,), 0)):
            server.teach([teacher(place) for place in named])
            answer = await asyncio.wait_for(said.get(), PATIENCE_SECONDS)
            digests = tuple(f"t{place}" for place in named)
            assert answer == Teaches(digests=digests, fetched_bytes=fetched)
            await server.stop()  # as a stream ends
        assert puller.pulls == [0, 0, 1, 1] and holds.held == {"t1": (1, "params of t1")}
        assert notes[0] == "teacher 0: file w/0 is gone; trying again"

    asyncio.run(scenario())


def test_a_server_without_room_says_that_it_holds_none() -> None:
    async def scenario() -> None:
        said = asyncio.Queue[Any]()
        updates(Unsteady(), None, said, []).teach([teacher(0)])
        assert said.get_nowait() == Teaches(digests=())

    asyncio.run(scenario())
