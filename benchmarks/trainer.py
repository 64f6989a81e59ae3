"""A trainer whose gradients are a sleep; link, collector and micro-batches are the real ones."""

import hashlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.stand_in import STOP, StandIn, StandInEngine, stand_in_hello
from rlboost_jax import messages
from rlboost_jax.learner.episodes.collector import StepCollector
from rlboost_jax.learner.episodes.trajectory import Group
from rlboost_jax.learner.fleet.link import ManagerLink
from rlboost_jax.learner.fleet.manager_process import ManagerProcess
from rlboost_jax.learner.stream.micro_batches import MicroBatches
from rlboost_jax.learner.stream.step_stream import StepStream
from rlboost_jax.learner.stream.stream_driver import BatchIntake, drive
from rlboost_jax.models.params import Params
from rlboost_jax.platform.event_loop import EventLoopThread
from rlboost_jax.rewards.verdict import Verdict, at_once
from rlboost_jax.rollout.client import InstanceClient
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.sequences.identities import Version
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.trust.seal import sealed
from rlboost_jax.weights.piece_lists import write_list
from rlboost_jax.weights.snapshots import SnapshotStore

RUN_ID = "benchmark"
POLL_SECONDS = 0.05
PIECES = 8  # of a snapshot


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Where the time of one step went, in seconds."""

    began: float  # since the epoch
    seconds: float
    window: float
    train_wait: float
    remote_wait: float
    instances: float  # ready ones on average
    tokens: int
    tokens_lost: int
    prefilled_again: int


class StandInTrainer:
    """Starts the manager, joins it with the reserved engine, and trains step after step.

    Args:
        reserved: the engine that shares devices with the learner.
        train_rate: tokens per second.
        snapshot_bytes: of each version, for servers that fetch it.
        params: real ones in place of those bytes; None: no server has an engine.
    """

    def __init__(
        self,
        run: RunConfig,
        workdir: Path,
        reserved: StandIn,
        *,
        train_rate: float,
        snapshot_bytes: int = 0,
        params: Params | None = None,
    ) -> None:
        self._params = params
        self._run, self._train_rate = run, train_rate
        self._snapshots, self._snapshot_bytes = workdir / "snapshots", snapshot_bytes
        self._manager = ManagerProcess(workdir, RUN_ID)
        self._thread = EventLoopThread()
        self._link = ManagerLink(self._thread, locate=self._manager.locate)
        self._link.connect(messages.TrainerHello(run_id=RUN_ID, window=None))
        self.address = self._manager.locate().address
        self._client = InstanceClient(
            self._manager.locate,
            stand_in_hello("reserved", reserved, reserved=True),
            EngineWorker(StandInEngine(reserved)),
            None,
        )
        self._serving = self._thread.start(self._client.run())

    def wait_for(self, instances: int) -> None:
        """Until that many servers, and the reserved engine, hold version 0."""
        self._offer(0)
        self.wait_for_fleet(instances)

    def wait_for_fleet(self, instances: int) -> None:
        """Until that many servers, and the reserved engine, hold the newest version."""
        ready = -1
        while ready != instances + 1:
            time.sleep(POLL_SECONDS)
            status = self._link.status
            ready = sum(i.state == "ready" for i in status.instances) if status else -1

    def step(self, step: int) -> StepTime:
        learner, group_size = self._run.learner, self._run.algorithm.group_size
        num_prompts = learner.prompts_per_step
        prompts = self._prompts()
        began, since = time.time(), time.perf_counter()
        self.begin(step)
        self._thread.run(self._client.offer(None, step, str(step)))
        collector = StepCollector(
            step,
            version=step,
            prompts=prompts,
            group_size=group_size,
            ask=lambda e: at_once(Verdict(reward=float(len(e.response) % 2), accuracy=0.0)),
            wake=self._link.wake,
            estimate=tuple,
        )
        micro_batches = MicroBatches(
            num_prompts, learner.micro_batch_prompts, self._run.deterministic
        )
        stream = StepStream(step, group_size=group_size, micro_batches=micro_batches)
        stream.begin()
        times = drive(BatchIntake(stream, collector), self._link, train=self._train)
        report = self._link.trained(
            messages.BatchTrained(
                batch=step, train_wait_seconds=times.waiting, train_seconds=times.training
            )
        )
        self._link.committed(step)
        return StepTime(
            began=began,
            seconds=time.perf_counter() - since,
            window=report.seeding_window_seconds,
            train_wait=times.waiting,
            remote_wait=report.remote_wait_seconds,
            instances=report.instances_mean,
            tokens=report.tokens_delivered,
            tokens_lost=report.tokens_lost,
            prefilled_again=report.tokens_prefilled_again,
        )

    def begin(self, step: int) -> None:
        """Publish its version and give its prompts to servers that have it."""
        self._publish(step)
        self._link.begin_batch(self._begin(step, self._prompts()))

    def _prompts(self) -> list[np.ndarray]:
        return [np.array([3, 4, 5], np.int32)] * self._run.learner.prompts_per_step

    @property
    def fleet(self) -> tuple[messages.InstanceStatus, ...]:
        """As the manager said last."""
        return self._link.status.instances if self._link.status else ()

    def close(self) -> None:
        self._serving.cancel()
        self._link.end("measured", over=True)
        self._manager.close()
        self._thread.close()

    def _train(self, index: int, groups: tuple[Group, ...]) -> tuple[()]:
        tokens = sum(t.sequence.num_sampled for group in groups for t in group.trajectories)
        time.sleep(tokens / self._train_rate)
        return ()

    def _offer(self, version: int) -> None:
        self._publish(version)
        self._thread.run(self._client.offer(None, version, str(version)))

    def _publish(self, version: int) -> None:
        if self._params is not None:
            store = SnapshotStore(self._snapshots, dtype="float32", keep=2)
            manifest = store.write(version, self._params, str(version))
            store.prune()
            self._link.publish(sealed(manifest, self._manager.seal_key()))
            return
        folder = self._snapshots / str(version)
        pieces = messages.PieceList(files=self._files(version), leaves=())
        folder.mkdir(parents=True, exist_ok=True)
        manifest = write_list(
            folder,
            pieces,
            version=Version(version),
            params_digest=str(version),
        )
        self._link.publish(sealed(manifest, self._manager.seal_key()))

    def _files(self, version: int) -> tuple[messages.FileEntry, ...]:
        """Write a snapshot in pieces of equal size, and remove that of two versions before."""
        if not self._snapshot_bytes:
            return ()
        folder = self._snapshots / str(version)
        shutil.rmtree(self._snapshots / str(version - 2), ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)  # version 0 is published twice
        piece = np.random.default_rng(version).bytes(self._snapshot_bytes // PIECES)
        for number in range(PIECES):
            (folder / str(number)).write_bytes(piece)
        digest = hashlib.sha256(piece).hexdigest()
        return tuple(
            messages.FileEntry(path=str(number), size=len(piece), sha256=digest)
            for number in range(PIECES)
        )

    def _begin(self, step: int, prompts: list[np.ndarray]) -> messages.BeginBatch:
        return messages.BeginBatch(
            batch=step,
            version=step,
            params_digest=str(step),
            seed=self._run.seed,
            group_size=self._run.algorithm.group_size,
            sampling=messages.Sampling(
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                max_tokens=self._run.sampling.max_response_tokens,
                stop_ids=(STOP,),
            ),
            prompts=tuple(
                messages.PromptRequest(prompt=number, tokens=messages.pack_tokens(tokens))
                for number, tokens in enumerate(prompts)
            ),
        )
