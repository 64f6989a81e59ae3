"""The learner in virtual time: what `learner/stream/stream_driver.py` does, it lets pass.

What is next is said by the very `StepStream`, waits are counted by the very `StreamTimes`, and
which batches are open is said by the very `Lag`.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, assert_never

from rlboost_jax import messages as m
from rlboost_jax.learner.episodes.trajectory import Group
from rlboost_jax.learner.stream.lag import Lag
from rlboost_jax.learner.stream.micro_batches import MicroBatches
from rlboost_jax.learner.stream.step_stream import (
    Check,
    CheckHeldout,
    StepStream,
    StreamTimes,
    TakeDevices,
    Train,
    Update,
    Wait,
)
from rlboost_jax.manager.events import FromTrainer
from rlboost_jax.observe.metrics import DRAFTS, LINES, REPORTED, TURNS
from rlboost_jax.sequences.identities import Batch, Version
from rlboost_jax.simulator.rates import train_seconds
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.simulated_server import STOP
from rlboost_jax.simulator.streams import stream
from rlboost_jax.simulator.surroundings import LearnerSurroundings

STREAM = 1
# Nothing is evaluated here, no line measured; of turns `benchmarks/turned.py` tells.
UNKNOWN = {"tokens_measured", "weights_from_servers", *LINES, *TURNS, *DRAFTS}
ENDLESS = 2**31  # batches


class SimulatedBatch:
    """A batch that was begun, and its results so far."""

    def __init__(self, batch: Batch, config: SimConfig, *, takes_devices: bool) -> None:
        work, trainer = config.workload, config.trainer
        self._group_size = work.group_size
        self.stream = StepStream(
            batch,
            group_size=work.group_size,
            micro_batches=MicroBatches(
                work.prompts_per_step, trainer.micro_batch_prompts, trainer.deterministic
            ),
            takes_devices=takes_devices,
        )
        self.times = StreamTimes()
        self.lengths: dict[int, list[int]] = defaultdict(list)  # of finished responses, by prompt

    def take(self, message: m.FinishedRollout | m.WindowClosed) -> None:
        """Add a result; one of another batch is ignored."""
        if isinstance(message, m.WindowClosed):
            self.stream.window_closed(message)
        elif self.stream.arrived(message):
            prompt = message.work.prompt
            self.lengths[prompt].append(len(message.logprobs) // 4)
            if len(self.lengths[prompt]) == self._group_size:
                self.stream.finished(Group(prompt=prompt, trajectories=()))


class SimulatedTrainer:
    def __init__(self, world: LearnerSurroundings) -> None:
        self._world, self._config = world, world.config
        self._lag = Lag(
            versions=world.config.trainer.lag, num_batches=world.config.num_steps or ENDLESS
        )
        self._step = Batch(0)  # the batch that is trained on, or is next
        self._begun_at = 0.0
        self._open: dict[Batch, SimulatedBatch] = {}
        self.rows: list[dict[str, Any]] = []  # one per step that was reported
        self._busy = False  # the chips train, or change from one use to the other

    def start(self) -> None:
        self._say(m.TrainerHello(run_id=self._world.run_id, window=None))
        self._publish(Version(0))
        self._load(self._begin)

    def hear(self, message: m.ToTrainer) -> None:
        match message:
            case m.FinishedRollout() | m.WindowClosed():
                for batch in self._open.values():
                    batch.take(message)
                self._go_on()
            case m.Parked():
                self._world.clock.after(self._seconds_of(message), lambda: self._answer(message))
            case m.BatchReport():
                self._reported(message)
            case m.RequestRefused(reason=reason):
                raise RuntimeError(f"the manager refused: {reason}")

    def _seconds_of(self, parked: m.Parked) -> float:
        """Seconds until the environment answers."""
        work = parked.work
        drawn = stream("answers", self._config.seed, work.batch, work.sample, parked.turn)
        return self._config.workload.turn_seconds * float(drawn.uniform(0.5, 1.5))

    def _answer(self, parked: m.Parked) -> None:
        """Answer as the environment: as much each turn, up to the response's drawn length."""
        work = parked.work
        over = len(parked.logprobs) // 4 >= self._world.length(work.batch, work.sample)
        given = 0 if over else self._config.workload.turn_given_tokens
        self._say(
            m.Answer(
                work=work,
                attempt=parked.attempt,
                turn=parked.turn,
                tokens=m.pack_tokens([1] * given),
                over=over,
            )
        )

    def _load(self, then: Callable[[], None]) -> None:
        """Have the reserved engines load the version of the batch to train on.

        With a lag there is a choice, which the manager makes.
        """
        if self._lag.versions:
            then()
            return

        def loaded() -> None:
            version = self._lag.version_of(self._step)
            for engine in self._world.reserved:
                engine.offer(version, digest(version))
            then()

        seconds = self._config.trainer.begin_seconds if self._world.reserved else 0.0
        self._world.clock.after(seconds, loaded)

    def _begin(self) -> None:
        """Request all batches that are due while `_step` is trained on."""
        for batch in self._lag.open_at(self._step):
            if batch not in self._open:
                self._open[batch] = SimulatedBatch(
                    batch, self._config, takes_devices=not self._world.sleeps
                )
                self._ask(batch)

    def _ask(self, batch: Batch) -> None:
        work, version = self._config.workload, self._lag.version_of(batch)
        numbers = self._world.prompts(batch)
        text = [1] * (work.prompt_tokens - 1)
        self._say(
            m.BeginBatch(
                batch=batch,
                version=version,
                params_digest=digest(version),
                seed=self._config.seed,
                group_size=work.group_size,
                sampling=m.Sampling(
                    temperature=1.0,
                    top_p=1.0,
                    top_k=0,
                    max_tokens=work.max_response_tokens,
                    stop_ids=(STOP,),
                    turn_tokens=work.turn_tokens,
                ),
                prompts=tuple(
                    m.PromptRequest(prompt=prompt, tokens=m.pack_tokens([*text, numbers[prompt]]))
                    for prompt in self._open[batch].stream.begin()
                ),
                turns=work.turns,
            )
        )

    def _go_on(self) -> None:
        """Do the stream's next action, unless one is under way."""
        batch = self._open.get(self._step)
        if self._busy or batch is None:
            return
        match batch.stream.next():
            case Wait():
                pass
            case TakeDevices():  # the engines let go of the chips, which takes a while
                batch.times.took_devices(self._world.clock.now)
                switch = self._config.trainer.switch_seconds if self._world.reserved else 0.0
                self._occupy(switch, batch, self._took_devices)
            case Train(_, groups):
                prompt = self._config.workload.prompt_tokens
                lengths = [prompt + n for group in groups for n in batch.lengths[group.prompt]]
                trainer = self._config.trainer
                seconds = train_seconds(self._config, lengths) + trainer.micro_batch_seconds
                self._occupy(seconds, batch, self._go_on)  # all servers are honest
            case Update():
                self._waited = batch.times.waiting
                self._occupy(self._config.trainer.apply_seconds, batch, self._copy)
            case Check() | CheckHeldout():
                raise AssertionError("every group is trained on, and none is measured")
            case unknown:
                assert_never(unknown)

    def _took_devices(self) -> None:
        self._open[self._step].stream.took_devices()
        self._go_on()

    def _occupy(self, seconds: float, batch: SimulatedBatch, then: Callable[[], None]) -> None:
        """Keep the learner busy for `seconds`, then call `then`."""
        self._busy = True
        for engine in self._world.reserved:
            engine.pause(True)

        def done() -> None:
            self._busy = False
            for engine in self._world.reserved:
                engine.pause(False)
            batch.times.worked(seconds, self._world.clock.now)
            then()

        self._world.clock.after(seconds, done)

    def _copy(self) -> None:
        """Copy the parameters to the host, then publish them."""
        seconds = self._config.weight_bytes / self._config.links.host_bytes_per_second
        batch = self._open[self._step]
        self._trained_seconds = batch.times.training
        self._occupy(seconds, batch, lambda: self._trained(seconds))

    def _trained(self, publish_seconds: float) -> None:
        self._publish_seconds = publish_seconds
        trained, self._step = self._step, Batch(self._step + 1)
        self._publish(Version(self._step))
        self._say(
            m.BatchTrained(
                batch=trained,
                train_wait_seconds=self._waited,
                train_seconds=self._trained_seconds,
            )
        )

    def _publish(self, version: Version) -> None:
        manifest = m.Manifest(
            version=version,
            directory="/simulated",
            params_digest=digest(version),
            piece_bytes=int(self._config.weight_bytes),
            list_sha256=digest(version),
        )
        self._world.published_at = self._world.clock.now
        self._say(m.Publish(manifest=manifest))

    def _reported(self, report: m.BatchReport) -> None:
        batch = self._open.pop(report.batch)
        lengths = [n for group in batch.lengths.values() for n in group]
        self.rows.append(
            {
                "step": report.batch,
                "version": self._lag.version_of(report.batch),
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
        if self._world.over(self._step):
            return
        self._begun_at = self._world.clock.now
        self._load(self._begin)
        self._go_on()  # with a lag, much of the batch may be there

    def _say(self, message: m.TrainerMessage) -> None:
        self._world.deliver(FromTrainer(STREAM, message))


def digest(version: int) -> str:
    return f"parameters {version}"
