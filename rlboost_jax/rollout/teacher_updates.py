"""Pulls of the teachers that a server is to hold, and the sequences that it scores with them.

Invariants: of several announcements only the last counts; no two teachers are pulled at once; a
pull that failed is tried again; a teacher that is held is not pulled again, also for another
manager.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from rlboost_jax.messages import Manifest, ScoreTokens, Teaches, TokenScores
from rlboost_jax.models.params import Params
from rlboost_jax.platform.backoff import backoff_seconds
from rlboost_jax.rollout.engine_worker import EngineWorker, WorkerStopped
from rlboost_jax.rollout.weight_updates import (
    FIRST_RETRY_SECONDS,
    LONGEST_RETRY_SECONDS,
    PullerLike,
)
from rlboost_jax.trust.snapshot_names import WeightsError


class ScorerLike(Protocol):
    """What is needed of `rlboost_jax.rollout.scorer.Scorer`."""

    @property
    def digests(self) -> tuple[str, ...]: ...
    def hold(self, place: int, digest: str, params: Params) -> None: ...
    def keep(self, digests: Sequence[str]) -> None: ...
    def score(self, item: ScoreTokens) -> TokenScores: ...


class TeacherUpdates:
    """A server's teachers. Used in one event loop; the engine's thread does what needs the device.

    Args:
        scorer: holds the teachers; None if this server has no room for them.
        say: sends a message on the current stream.
        note: takes a line for the log.
        fail: takes an exception that only a mistake of this side can raise.
    """

    def __init__(
        self,
        puller: PullerLike,
        worker: EngineWorker,
        scorer: ScorerLike | None,
        *,
        say: Callable[[Teaches], None],
        note: Callable[[str], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._puller, self._worker, self._scorer = puller, worker, scorer
        self._say, self._note, self._fail = say, note, fail
        self._one = asyncio.Lock()  # held by a pull, until all that it began has ended
        self._newest: asyncio.Task[None] | None = None
        self._fetched_bytes = 0  # not said yet

    def teach(self, manifests: Sequence[Manifest]) -> None:
        """Hold these teachers, and no others. Returns at once."""
        if self._scorer is None:
            self._say(Teaches(digests=()))
            return
        self._cancel()
        self._newest = asyncio.get_running_loop().create_task(self._take(manifests, self._scorer))
        self._newest.add_done_callback(self._ended)

    def score(self, item: ScoreTokens) -> None:
        """Score an item after those before it, between two dispatches of the engine."""
        scorer = self._scorer
        if scorer is not None:
            self._worker.answer(lambda: scorer.score(item))

    async def stop(self) -> None:
        """Abandon the current pull; returns when it has ended."""
        self._cancel()
        async with self._one:
            self._newest = None

    def _cancel(self) -> None:
        if self._newest is not None:
            self._newest.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or isinstance(error := task.exception(), WorkerStopped | None):
            return
        self._fail(error)

    async def _take(self, manifests: Sequence[Manifest], scorer: ScorerLike) -> None:
        async with self._one:
            wanted = [manifest.params_digest for manifest in manifests]
            await asyncio.wrap_future(self._worker.between(lambda: scorer.keep(wanted)))
            for place, manifest in enumerate(manifests):
                if manifest.params_digest not in scorer.digests:
                    await self._fetch(place, manifest, scorer)
            fetched, self._fetched_bytes = self._fetched_bytes, 0
            self._say(Teaches(digests=scorer.digests, fetched_bytes=fetched))

    async def _fetch(self, place: int, manifest: Manifest, scorer: ScorerLike) -> None:
        """Pull a teacher, as often as it takes, and have it held."""
        attempt = 0
        while True:
            try:
                pulled = await self._puller.pull(manifest)
                break
            except WeightsError as error:
                self._note(f"teacher {place}: {error}; trying again")
                seconds = backoff_seconds(
                    attempt, first=FIRST_RETRY_SECONDS, longest=LONGEST_RETRY_SECONDS
                )
                await asyncio.sleep(seconds)
                attempt += 1
        self._fetched_bytes += pulled.fetched_bytes
        digest = manifest.params_digest
        holding = self._worker.between(lambda: scorer.hold(place, digest, pulled.params))
        await asyncio.wrap_future(holding)
