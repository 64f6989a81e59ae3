"""The learner in virtual time: what `learner/stream/driver.py` does, it lets pass.

What is next is said by the very `StepStream`, and waits are counted by the very `StreamTimes`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, assert_never

from rlboost_jax import messages as m
from rlboost_jax.learner.stream.micro_batches import MicroBatches
from rlboost_jax.learner.stream.step_stream import (
    Check,
    StepStream,
    StreamTimes,
    TakeDevices,
    Train,
    Update,
    Wait,
)
from rlboost_jax.learner.trajectory import Group
from rlboost_jax.manager.events import FromTrainer
from rlboost_jax.observe.metrics import REPORTED
from rlboost_jax.sequences.identities import Batch, Version
from rlboost_jax.simulator.rates import train_seconds
from rlboost_jax.simulator.server import STOP

if TYPE_CHECKING:
    from rlboost_jax.simulator.world import World

STREAM = 1
UNKNOWN = {"tokens_measured"}  # nothing is evaluated here


class Trainer:
    def __init__(self, world: World) -> None:
        self._world, self._config = world, world.config
        self.step = -1
        self.rows: list[dict[str, Any]] = []  # one per step that was reported
        self._busy = False  # the chips train, or change from one use to the other

    def start(self) -> None:
        self._say(m.TrainerHello(run_id=self._world.run_id, window=None))
        self._publish(Version(0))
        self._begin(0)

    def hear(self, message: m.ToTrainer) -> None:
        match message:
            case m.FinishedRollout():
                self._finished(message)
            case m.WindowClosed():
                self._stream.window_closed(message)
                self._go_on()
            case m.BatchReport():
                self._reported(message)
            case m.Refused(reason=reason):
                raise RuntimeError(f"the manager refused: {reason}")

    def _begin(self, step: int) -> None:
        config, work = self._config, self._config.workload
        self.step, self._begun_at = step, self._world.clock.now
        self._stream = StepStream(
            step,
            group_size=work.group_size,
            micro_batches=MicroBatches(
                work.prompts_per_step,
                config.trainer.micro_batch_prompts,
                config.trainer.deterministic,
            ),
            takes_devices=not self._world.sleeps,
        )
        self._times = StreamTimes()
        self._lengths: dict[int, list[int]] = defaultdict(list)  # of finished responses, by prompt
        seconds = config.trainer.begin_seconds if self._world.reserved else 0.0
        self._world.clock.after(seconds, lambda: self._ask(step))

    def _ask(self, step: int) -> None:
        """The reserved engines hold the version before anyone is asked for tokens of it."""
        for engine in self._world.reserved:
            engine.offer(Version(step), digest(step))
        work = self._config.workload
        prompt_tokens = m.pack_tokens([1] * work.prompt_tokens)
        self._say(
            m.BeginBatch(
                batch=Batch(step),
                version=Version(step),
                params_digest=digest(step),
                seed=self._config.seed,
                group_size=work.group_size,
                sampling=m.Sampling(
                    temperature=1.0,
                    top_p=1.0,
                    top_k=0,
                    max_tokens=work.max_response_tokens,
                    stop_ids=(STOP,),
                ),
                prompts=tuple(
                    m.PromptRequest(prompt=prompt, tokens=prompt_tokens)
                    for prompt in self._stream.begin()
                ),
            )
        )

    def _finished(self, rollout: m.FinishedRollout) -> None:
        if not self._stream.arrived(rollout):
            return
        prompt = rollout.work.prompt
        self._lengths[prompt].append(len(rollout.tokens) // 4)
        if len(self._lengths[prompt]) == self._config.workload.group_size:
            self._stream.finished(Group(prompt=prompt, trajectories=()))
        self._go_on()

    def _go_on(self) -> None:
        """Do what the stream says is next, unless something else is being done."""
        if self._busy:
            return
        match self._stream.next():
            case Wait():
                pass
            case TakeDevices():  # the engines let go of the chips, which takes a while
                self._times.took_devices(self._world.clock.now)
                switch = self._config.trainer.switch_seconds if self._world.reserved else 0.0
                self._occupy(switch, self._took_devices)
            case Train(_, groups):
                prompt = self._config.workload.prompt_tokens
                lengths = [prompt + n for group in groups for n in self._lengths[group.prompt]]
                trainer = self._config.trainer
                seconds = train_seconds(self._config, lengths) + trainer.micro_batch_seconds
                self._occupy(seconds, self._go_on)  # it doubts nothing
            case Update():
                self._waited = self._times.waiting
                self._occupy(self._config.trainer.apply_seconds, self._copy)
            case Check():
                raise AssertionError("every group is trained on")
            case unknown:
                assert_never(unknown)

    def _took_devices(self) -> None:
        self._stream.took_devices()
        self._go_on()

    def _occupy(self, seconds: float, then: Callable[[], None]) -> None:
        """The learner works for so long."""
        self._busy = True
        for engine in self._world.reserved:
            engine.pause(True)

        def done() -> None:
            self._busy = False
            for engine in self._world.reserved:
                engine.pause(False)
            self._times.worked(seconds, self._world.clock.now)
            then()

        self._world.clock.after(seconds, done)

    def _copy(self) -> None:
        """Bring the parameters to the host, for all who want them."""
        seconds = self._config.weight_bytes / self._config.links.host_bytes_per_second
        self._trained_seconds = self._times.training
        self._occupy(seconds, lambda: self._trained(seconds))

    def _trained(self, publish_seconds: float) -> None:
        self._publish_seconds = publish_seconds
        self._publish(Version(self.step + 1))
        self._say(
            m.BatchTrained(
                batch=Batch(self.step),
                train_wait_seconds=self._waited,
                train_seconds=self._trained_seconds,
            )
        )

    def _publish(self, version: Version) -> None:
        manifest = m.Manifest(
            version=version,
            directory="/simulated",
            params_digest=digest(version),
            files=(m.FileEntry(path="weights", size=int(self._config.weight_bytes), sha256=""),),
            leaves=(),
        )
        self._world.published_at = self._world.clock.now
        self._say(m.Publish(manifest=manifest))

    def _reported(self, report: m.BatchReport) -> None:
        lengths = [n for group in self._lengths.values() for n in group]
        self.rows.append(
            {
                "step": report.batch,
                "version": report.batch,
                "begun_at": self._begun_at,
                "response_tokens": sum(lengths),
                "response_length_mean": sum(lengths) / len(lengths),
                "response_length_max": max(lengths),
                "step_seconds": self._world.clock.now - self._begun_at,
                "train_seconds": self._trained_seconds,
                "publish_seconds": self._publish_seconds,
                "train_wait_seconds": self._waited,
                **{name: getattr(report, name) for name in REPORTED if name not in UNKNOWN},
                "instance_cap": report.window.instance_cap,
                "window_next_seconds": report.window.seconds,
                **self._world.lap(),
            }
        )
        self._say(m.BatchCommitted(batch=report.batch))
        self._world.forget(report.batch)
        if not self._world.over(report.batch + 1):
            self._begin(report.batch + 1)

    def _say(self, message: m.TrainerMessage) -> None:
        self._world.deliver(FromTrainer(STREAM, message))


def digest(version: int) -> str:
    return f"parameters {version}"
