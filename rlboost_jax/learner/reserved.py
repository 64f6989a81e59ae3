"""The trainer's own engine: an instance of the fleet that shares the learner's devices."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence

import jax

from rlboost_jax.config.records import RunConfig
from rlboost_jax.data.prompts import Prompt
from rlboost_jax.data.tasks import Task
from rlboost_jax.engine.engine import Engine
from rlboost_jax.learner.evaluation import greedy_accuracy
from rlboost_jax.learner.link import EventLoopThread
from rlboost_jax.messages import Hello
from rlboost_jax.models.params import Params
from rlboost_jax.rollout.stream import InstanceClient
from rlboost_jax.rollout.worker import Worker

NAME = "reserved"


class ReservedEngine:
    """Generates while the seeding window is open and evaluates between two steps."""

    def __init__(
        self,
        run: RunConfig,
        engine: Engine,
        thread: EventLoopThread,
        *,
        on_failure: Callable[[Exception], None],
    ):
        """Args:
        on_failure: called in the thread of `thread` with what ended the engine.
        """
        self._run, self._engine, self._thread = run, engine, thread
        self._on_failure = on_failure
        self._worker = Worker(engine)
        self._client: InstanceClient | None = None
        self._running: asyncio.Future[None] | None = None

    def connect(self, address: str, token: str) -> None:
        """Join the fleet of the manager at `address`."""
        engine = self._engine
        hello = Hello(
            instance=NAME,
            reserved=True,
            slots=engine.slots,
            slot_tokens=engine.slot_tokens,
            price_per_hour=0.0,  # paid for whether it generates or not
            zone="reserved",
            host=socket.gethostname(),
            pid=os.getpid(),
            device=jax.devices()[0].device_kind,
            fingerprint=engine.fingerprint,
        )
        self._client = InstanceClient(address, token, hello, self._worker, puller=None)
        self._running = self._thread.start(self._serve(self._client))

    async def _serve(self, client: InstanceClient) -> None:
        try:
            await client.run()
        except Exception as error:  # of whatever kind: the training loop waits for tokens
            self._on_failure(error)

    def load(self, params: Params, version: int) -> None:
        """Give the engine a version; it takes work of it from now on.

        Args:
            params: stacked tree in the rollout dtype, on host or device.
        """
        assert self._client is not None
        self._thread.run(self._client.offer(params, version))

    def accuracy(
        self, params: Params, version: int, task: Task, prompts: Sequence[Prompt]
    ) -> float:
        """Greedy held-out accuracy of `params`; the engine has no work meanwhile."""

        def evaluate(engine: Engine) -> float:
            engine.load(params, version)
            return greedy_accuracy(
                engine, task, prompts, max_tokens=self._run.sampling.max_response_tokens
            )

        return self._worker.call(evaluate).result()

    def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
        self._worker.stop()
