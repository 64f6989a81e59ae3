"""The learner in virtual time: it does what `learner/loop.py` and `learner/streaming.py` do.

Groups are put together by the very `MicroBatches`. Nothing is trained until the reserved
engines have handed over; waits are counted from then on, as there.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from rlboost_jax import messages as m
from rlboost_jax.learner.micro_batches import MicroBatch, MicroBatches
from rlboost_jax.learner.trajectory import Group
from rlboost_jax.manager.events import FromTrainer
from rlboost_jax.simulator.rates import train_seconds
from rlboost_jax.simulator.server import STOP

if TYPE_CHECKING:
    from rlboost_jax.simulator.world import World

STREAM = 1


class Trainer:
    def __init__(self, world: World) -> None:
        self._world, self._config = world, world.config
        self.step = -1
        self.rows: list[dict[str, Any]] = []  # one per step that was reported
        self._busy = False  # the chips train, or change from one use to the other

    def start(self) -> None:
        self._say(m.TrainerHello(run_id=self._world.run_id, window=None))
        self._publish(0)
        self._begin(0)

    def hear(self, message: m.ToTrainer) -> None:
        match message:
            case m.FinishedRollout():
                self._finished(message)
            case m.WindowClosed(step=self.step) if self._handed_over is None:
                self._hand_over()
                self._go_on()
            case m.StepReport():
                self._reported(message)
            case m.Refused(reason=reason):
                raise RuntimeError(f"the manager refused: {reason}")

    def _begin(self, step: int) -> None:
        config, work = self._config, self._config.workload
        self.step, self._begun_at = step, self._world.clock.now
        self._micro_batches = MicroBatches(
            work.prompts_per_step, config.trainer.micro_batch_prompts, config.trainer.deterministic
        )
        self._lengths: dict[int, list[int]] = defaultdict(list)  # of finished responses, by prompt
        self._finished_groups = 0
        self._ready: deque[MicroBatch] = deque()
        self._handed_over: float | None = None
        self._training = 0.0
        seconds = config.trainer.begin_seconds if self._world.reserved else 0.0
        self._world.clock.after(seconds, lambda: self._ask(step))

    def _ask(self, step: int) -> None:
        """The reserved engines hold the version before anyone is asked for tokens of it."""
        for engine in self._world.reserved:
            engine.offer(step, digest(step))
        work = self._config.workload
        prompt_tokens = m.pack_tokens([1] * work.prompt_tokens)
        self._say(
            m.BeginStep(
                step=step,
                version=step,
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
                    for prompt in range(work.prompts_per_step)
                ),
            )
        )

    def _finished(self, rollout: m.FinishedRollout) -> None:
        lengths = self._lengths[rollout.work.prompt]
        lengths.append(len(rollout.tokens) // 4)
        if len(lengths) == self._config.workload.group_size:
            self._finished_groups += 1
            group = Group(prompt=rollout.work.prompt, trajectories=())
            self._ready.extend(self._micro_batches.add(group))
        self._go_on()

    @property
    def _complete(self) -> bool:
        return self._finished_groups == self._config.workload.prompts_per_step

    def _hand_over(self) -> None:
        """The engines let go of the chips, which takes a while."""
        self._handed_over = self._world.clock.now
        switch = self._config.trainer.switch_seconds if self._world.reserved else 0.0
        self._occupy(switch, self._go_on)

    def _occupy(self, seconds: float, then: Any) -> None:
        """The learner works for so long."""
        self._busy = True
        for engine in self._world.reserved:
            engine.pause(True)
        self._training += seconds

        def done() -> None:
            self._busy = False
            for engine in self._world.reserved:
                engine.pause(False)
            then()

        self._world.clock.after(seconds, done)

    def _go_on(self) -> None:
        """Train the next micro-batch, if there is one and nothing else is being done."""
        if self._busy or not (self._ready or self._complete):
            return
        if self._handed_over is None:
            if self._complete and not self._world.sleeps:
                self._hand_over()
            return
        if not self._ready:
            self._apply()
            return
        _, groups = self._ready.popleft()
        prompt = self._config.workload.prompt_tokens
        lengths = [prompt + n for group in groups for n in self._lengths[group.prompt]]
        seconds = train_seconds(self._config, lengths) + self._config.trainer.micro_batch_seconds
        self._occupy(seconds, self._go_on)

    def _apply(self) -> None:
        assert self._handed_over is not None
        self._waited = max(0.0, self._world.clock.now - self._handed_over - self._training)
        self._occupy(self._config.trainer.apply_seconds, self._copy)

    def _copy(self) -> None:
        """Bring the parameters to the host, for all who want them."""
        seconds = self._config.weight_bytes / self._config.links.host_bytes_per_second
        self._trained_seconds = self._training
        self._occupy(seconds, lambda: self._trained(seconds))

    def _trained(self, publish_seconds: float) -> None:
        self._publish_seconds = publish_seconds
        self._publish(self.step + 1)
        self._say(
            m.StepTrained(
                step=self.step,
                train_wait_seconds=self._waited,
                train_seconds=self._trained_seconds,
            )
        )

    def _publish(self, version: int) -> None:
        manifest = m.Manifest(
            version=version,
            directory="/simulated",
            params_digest=digest(version),
            files=(m.FileEntry(path="weights", size=int(self._config.weight_bytes), sha256=""),),
            leaves=(),
        )
        self._world.published_at = self._world.clock.now
        self._say(m.Publish(manifest=manifest))

    def _reported(self, report: m.StepReport) -> None:
        lengths = [n for group in self._lengths.values() for n in group]
        self.rows.append(
            {
                "step": report.step,
                "version": report.step,
                "begun_at": self._begun_at,
                "response_tokens": sum(lengths),
                "response_length_mean": sum(lengths) / len(lengths),
                "response_length_max": max(lengths),
                "step_seconds": self._world.clock.now - self._begun_at,
                "train_seconds": self._trained_seconds,
                "publish_seconds": self._publish_seconds,
                "train_wait_seconds": self._waited,
                **{name: getattr(report, name) for name in REPORTED},
                "instance_cap": report.window.instance_cap,
                "window_next_seconds": report.window.seconds,
                **self._world.lap(),
            }
        )
        self._say(m.StepCommitted(step=report.step))
        self._world.forget(report.step)
        if not self._world.over(report.step + 1):
            self._begin(report.step + 1)

    def _say(self, message: m.TrainerMessage) -> None:
        self._world.deliver(FromTrainer(STREAM, message))


REPORTED = (
    "rollout_seconds",
    "remote_wait_seconds",
    "seeding_window_seconds",
    "instances_mean",
    "instances_joined",
    "instances_lost",
    "requests_migrated",
    "tokens_generated",
    "tokens_delivered",
    "tokens_lost",
    "tokens_prefilled_again",
    "tokens_reserved",
    "tokens_preemptible",
    "cost_dollars",
)


def digest(version: int) -> str:
    return f"parameters {version}"
