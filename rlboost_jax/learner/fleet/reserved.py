"""The trainer's own engines: instances of the fleet that share the learner's devices.

There is one for each data-parallel slice of the mesh, on the first of its devices, as many as
`engine.tensor_parallel` says, with a stream of its own to the manager.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

import jax
from jax.sharding import Mesh

from rlboost_jax.engine.engine import Engine
from rlboost_jax.models.params import Params
from rlboost_jax.observe.clocks import RemoteClock
from rlboost_jax.observe.span_recorder import ENGINE_LANE, Recorder
from rlboost_jax.platform.event_loop import EventLoopThread
from rlboost_jax.rollout.client import InstanceClient
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.rollout.instance import hello_of
from rlboost_jax.rollout.weight_updates import PullerLike
from rlboost_jax.sequences.identities import Version
from rlboost_jax.trust.credentials import Endpoint

NAME = "reserved"


class ReservedEngineLost(RuntimeError):
    """The trainer's own engine has left the fleet; the last checkpoint is sound."""


class ReservedEngine:
    """An engine on the learner's devices that generates while the seeding window is open."""

    def __init__(
        self,
        engine: Engine,
        thread: EventLoopThread,
        *,
        on_failure: Callable[[Exception], None],
        name: str = NAME,
        puller: PullerLike | None = None,
        spans: Recorder | None = None,
        clock: RemoteClock | None = None,
        client: Callable[..., InstanceClient] = InstanceClient,
    ):
        """Create an engine whose window is closed.

        Args:
            on_failure: called in the thread of `thread` with what ended the engine.
            puller: has the versions that the manager announces; None: it is given each by `load`.
            spans: of this process.
            clock: of `InstanceClient`.
            client: makes the one that talks to the manager.
        """
        self._engine, self._thread = engine, thread
        self._on_failure, self._name = on_failure, name
        self._clock, self._client_of, self._puller = clock, client, puller
        self._worker = EngineWorker(engine, spans, name.replace(NAME, ENGINE_LANE, 1))
        self._client: InstanceClient | None = None
        self._running: Future[None] | None = None

    def connect(self, locate: Callable[[], Endpoint]) -> None:
        """Join the fleet, and join again whenever there is another manager.

        Args:
            locate: finds a living manager, with what the trainer opens it with.
        """
        hello = hello_of(
            self._engine,
            name=self._name,
            reserved=True,
            price_per_hour=0.0,  # paid for whether it generates or not
            zone="reserved",
        )
        self._client = self._client_of(
            locate, hello, self._worker, puller=self._puller, clock=self._clock
        )
        self._running = self._thread.start(self._serve(self._client))

    async def _serve(self, client: InstanceClient) -> None:
        """Serve until `close`; any other end is a failure, since the run may need this engine."""
        try:
            reason = await client.run()
        except Exception as error:  # of whatever kind: the training loop waits for tokens
            self._on_failure(error)
        else:
            self._on_failure(ReservedEngineLost(f"the trainer's own engine has left: {reason}"))

    def load(self, params: Params, version: Version, params_digest: str) -> None:
        """Load a version into the engine, which accepts work of it from now on.

        Args:
            params: stacked tree, on the host or over the devices of the learner's mesh.
        """
        self.begin_to_load(params, version, params_digest).result()

    def begin_to_load(self, params: Params, version: Version, params_digest: str) -> Future[None]:
        """Begin `load`; the future is done when it is."""
        assert self._client is not None
        return self._thread.start(self._client.offer(params, version, params_digest))

    def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
        self._worker.stop()


class ReservedEngines:
    """All reserved engines of a trainer, used as one."""

    def __init__(
        self,
        engines: Sequence[Engine],
        thread: EventLoopThread,
        *,
        on_failure: Callable[[Exception], None],
        puller: PullerLike | None = None,
        spans: Recorder | None = None,
        clock: RemoteClock | None = None,
        client: Callable[..., InstanceClient] = InstanceClient,
    ):
        names = [f"{NAME}-{i}" for i in range(len(engines))] if len(engines) > 1 else [NAME]
        self._each = [
            ReservedEngine(
                engine,
                thread,
                on_failure=on_failure,
                name=name,
                puller=puller,
                spans=spans,
                clock=clock if name is names[0] else None,  # one stream's answers are enough
                client=client,
            )
            for engine, name in zip(engines, names, strict=True)
        ]

    def connect(self, locate: Callable[[], Endpoint]) -> None:
        """Have each engine join the fleet."""
        for engine in self._each:
            engine.connect(locate)

    def load(self, params: Params, version: Version, params_digest: str) -> None:
        """Load a version into all engines at the same time."""
        loading = [engine.begin_to_load(params, version, params_digest) for engine in self._each]
        for load in loading:
            load.result()

    def close(self) -> None:
        for engine in self._each:
            engine.close()


def devices_of_slices(mesh: Mesh, count: int) -> list[list[jax.Device]]:
    """The first `count` devices of each data-parallel slice that has them all in this process."""
    firsts = [list(slice_.flat[:count]) for slice_ in mesh.devices]
    here = jax.process_index()
    return [devices for devices in firsts if all(d.process_index == here for d in devices)]
