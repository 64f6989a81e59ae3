"""The trainer's own engine: an instance of the fleet that shares the learner's devices."""

from collections.abc import Callable
from concurrent.futures import Future

from rlboost_jax.config.records import RunConfig
from rlboost_jax.credentials import Endpoint
from rlboost_jax.engine.engine import Engine
from rlboost_jax.learner.link import EventLoopThread
from rlboost_jax.models.params import Params
from rlboost_jax.observe.clocks import Clock
from rlboost_jax.observe.spans import Recorder
from rlboost_jax.rollout.instance import hello_of
from rlboost_jax.rollout.stream import InstanceClient
from rlboost_jax.rollout.worker import Worker

NAME = "reserved"


class ReservedEngineLost(RuntimeError):
    """The trainer's own engine is out of the fleet; the last checkpoint is sound."""


class ReservedEngine:
    """Generates while the seeding window is open."""

    def __init__(
        self,
        run: RunConfig,
        engine: Engine,
        thread: EventLoopThread,
        *,
        on_failure: Callable[[Exception], None],
        spans: Recorder | None = None,
        clock: Clock | None = None,
    ):
        """Args:
        on_failure: called in the thread of `thread` with what ended the engine.
        spans: of this process.
        clock: of `InstanceClient`.
        """
        self._run, self._engine, self._thread = run, engine, thread
        self._on_failure = on_failure
        self._clock = clock
        self._worker = Worker(engine, spans)
        self._client: InstanceClient | None = None
        self._running: Future[None] | None = None

    def connect(self, locate: Callable[[], Endpoint]) -> None:
        """Join the fleet, and join it again whenever the manager is another.

        Args:
            locate: finds a living manager, with what the trainer opens it with.
        """
        hello = hello_of(
            self._engine,
            name=NAME,
            reserved=True,
            price_per_hour=0.0,  # paid for whether it generates or not
            zone="reserved",
        )
        self._client = InstanceClient(locate, hello, self._worker, puller=None, clock=self._clock)
        self._running = self._thread.start(self._serve(self._client))

    async def _serve(self, client: InstanceClient) -> None:
        """Until `close`; any other end is a failure, since the run may need this engine."""
        try:
            reason = await client.run()
        except Exception as error:  # of whatever kind: the training loop waits for tokens
            self._on_failure(error)
        else:
            self._on_failure(ReservedEngineLost(f"the trainer's own engine has left: {reason}"))

    def load(self, params: Params, version: int, params_digest: str) -> None:
        """Give the engine a version; it takes work of it from now on.

        Args:
            params: stacked tree in the rollout dtype, on host or device.
        """
        assert self._client is not None
        self._thread.run(self._client.offer(params, version, params_digest))

    def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
        self._worker.stop()
