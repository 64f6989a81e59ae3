"""Loading of announced versions into the engine: of several only the last is taken.

The last may be an older one than the engine has. It is brought to the device during the work, layer
by layer as it comes, where that has room for two, and swapped in between two dispatches. A version
that is likely to be announced next is pulled during the work, and waits there.

Invariants: no two are pulled or loaded at once; a version that could not be had is tried again for
as long as no other is announced; what is said belongs to the stream on which it was announced.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from rlboost_jax.messages import MAX_REASON, Manifest, Ready, WeightsRejected
from rlboost_jax.observe.span_recorder import Recorder
from rlboost_jax.platform.backoff import backoff_seconds
from rlboost_jax.platform.thread_calls import ended, in_thread
from rlboost_jax.rollout.engine_worker import EngineWorker, WorkerStopped
from rlboost_jax.sequences.identities import Version
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.arrivals import ByteCounter
from rlboost_jax.weights.layer_feed import Begin

FIRST_RETRY_SECONDS = 0.1  # doubles with each attempt
LONGEST_RETRY_SECONDS = 2.0


@runtime_checkable
class PullerLike(Protocol):
    """Part of `rlboost_jax.weights.pull.Puller` that is needed here."""

    pulled: ByteCounter

    async def pull(self, manifest: Manifest, begin: Begin | None = None) -> Any: ...


class WeightUpdates:
    """Pulls and loads announced versions. To be used in one event loop.

    Args:
        say: sends a message on the stream of the moment.
        fail: is given the exception that only a mistake of this side can raise.
        spans: of this process.
    """

    def __init__(
        self,
        puller: PullerLike,
        worker: EngineWorker,
        *,
        say: Callable[[Ready | WeightsRejected], None],
        fail: Callable[[BaseException], None],
        spans: Recorder | None = None,
    ) -> None:
        self._spans = spans or Recorder()
        self._puller, self._worker, self._say, self._fail = puller, worker, say, fail
        self._one = asyncio.Lock()  # held by a pull, until all that it began has ended
        self._newest: asyncio.Task[None] | None = None
        self._ahead: tuple[Manifest, asyncio.Task[Any]] | None = None  # pulled beforehand
        self._loaded: tuple[int, str] | None = None  # version and digest that the engine has

    def announce(self, manifest: Manifest) -> None:
        """Take this version, in place of any other.

        Returns at once: to end an older pull takes time, in which messages of the stream have to be
        handled.
        """
        self._cancel()
        if self._ahead is not None and self._ahead[0] != manifest and not self._ahead[1].done():
            self._forget()  # not before what is wanted now
        loop = asyncio.get_running_loop()
        self._newest = loop.create_task(self._take(manifest, loop.time()))
        self._newest.add_done_callback(self._ended)

    def prefetch(self, manifest: Manifest) -> None:
        """Pull this version once what was announced is loaded.

        It replaces any other version pulled in advance, and waits for its announcement: on the
        device, where that has room for two.
        """
        self._forget()
        pull = asyncio.get_running_loop().create_task(self._pull_ahead(manifest))
        pull.add_done_callback(_seen)
        self._ahead = manifest, pull

    async def stop(self) -> None:
        """Cancel pulls and loads; returns when all have ended."""
        self._cancel()
        self._forget()
        async with self._one:
            self._newest = None

    def _cancel(self) -> None:
        if self._newest is not None:
            self._newest.cancel()

    def _forget(self) -> None:
        if self._ahead is not None:
            self._ahead[1].cancel()
            self._ahead = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or isinstance(error := task.exception(), WorkerStopped | None):
            return  # by a server that leaves, whatever was announced to it last
        self._fail(error)

    async def _take(self, manifest: Manifest, announced: float) -> None:
        """Pull a version, as often as it takes, and load it into the engine."""
        async with self._one:
            version, params_digest = manifest.version, manifest.params_digest
            near = self._spans.near(version)
            fetched_bytes, attempt = 0, 0
            while self._loaded != (version, params_digest):
                self._drop_others(manifest)
                try:
                    pulled = self._pulled_ahead(manifest) or await self._pull(manifest)
                except WeightsError as error:
                    self._say(WeightsRejected(version=version, reason=str(error)[:MAX_REASON]))
                    await asyncio.sleep(
                        backoff_seconds(
                            attempt, first=FIRST_RETRY_SECONDS, longest=LONGEST_RETRY_SECONDS
                        )
                    )
                    attempt += 1
                    continue
                fetched_bytes = pulled.fetched_bytes
                prepared = await self._prepared(pulled.params, version)
                del pulled  # the host's copy goes as soon as it may
                self._loaded = None  # whatever happens to this coroutine, not what it was
                with self._spans.span("load", "weights", when=near, version=version):
                    loading = self._worker.load(prepared, version, params_digest)
                    await ended(asyncio.wrap_future(loading))  # before another takes its room
                self._loaded = (version, params_digest)
            seconds = asyncio.get_running_loop().time() - announced
            self._say(
                Ready(
                    version=version,
                    params_digest=params_digest,
                    seconds=seconds,
                    fetched_bytes=fetched_bytes,
                )
            )

    async def _prepared(self, params: Any, version: Version) -> Any:
        """Parameters on the device where it has room; ends only when that has ended."""
        device = self._worker.parameters
        if device is None:
            return params
        with self._spans.span("prepare", "weights", when=self._spans.near(version)):
            return await in_thread(lambda: device.prepare(params))

    async def _pull(self, manifest: Manifest) -> Any:
        version = manifest.version
        with self._spans.span("pull", "weights", when=self._spans.near(version), version=version):
            device = self._worker.parameters
            return await self._puller.pull(manifest, device.arriving if device else None)

    async def _pull_ahead(self, manifest: Manifest) -> Any:
        async with self._one:
            return await self._pull(manifest)

    def _drop_others(self, manifest: Manifest) -> None:
        """Drop another version pulled in advance: the device has no room for a third one."""
        if self._ahead is not None and self._ahead[0] != manifest and self._ahead[1].done():
            self._ahead = None

    def _pulled_ahead(self, manifest: Manifest) -> Any | None:
        """Hand out a version pulled in advance, once; None if it is not there."""
        if self._ahead is None or self._ahead[0] != manifest:
            return None
        pull = self._ahead[1]
        if pull.done() and not pull.cancelled() and pull.exception() is None:
            self._ahead = None
            return pull.result()
        self._forget()
        return None


def _seen(pull: asyncio.Task[Any]) -> None:
    """Ignore the failure of a pull in advance: it is repeated when its version is announced."""
    if not pull.cancelled():
        pull.exception()
