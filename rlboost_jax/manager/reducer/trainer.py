"""The trainer's side of the manager: runs, versions and steps.

A trainer may vanish in mid-step. Its fleet works on, and the next one that begins the same
step with the same parameters and prompts finds the tokens here.
"""

import math
from collections.abc import Sequence

import msgspec

from rlboost_jax.manager.journal import RunOver
from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.policies.window import Observation, initial, recall, update
from rlboost_jax.manager.reducer.dispatch import Dispatch
from rlboost_jax.manager.reducer.doubts import Doubts
from rlboost_jax.manager.reducer.servers import Servers
from rlboost_jax.manager.reducer.sizing import Sizing
from rlboost_jax.manager.reducer.step_checks import ProtocolError, check_begin, check_extension
from rlboost_jax.manager.reducer.step_reports import StepReports, rollout_seconds
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.ledger import Ledger
from rlboost_jax.manager.state.rollouts import Step
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.messages import (
    BeginStep,
    Doubt,
    EndRun,
    ExtendStep,
    PromptRequest,
    Publish,
    StepCommitted,
    StepTrained,
    TrainerHello,
    TrainerMessage,
    TrainerWelcome,
    WindowState,
)

FIRST_TRAINER_SECONDS = 60.0  # from the manager's start to its first trainer


class Trainer:
    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        roster: Roster,
        dispatch: Dispatch,
        servers: Servers,
        outbox: Outbox,
        now: float,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._roster = roster
        self._dispatch = dispatch
        self._servers = servers
        self._outbox = outbox
        self.window: WindowState = initial(settings.manager.window_initial_seconds)
        self.patience = FIRST_TRAINER_SECONDS  # for the trainer now awaited
        self.orphan_at = now + self.patience
        self.ended = False
        self.learnt = False  # this manager has seen a whole step
        self.sizing = Sizing(settings, roster, servers.versions, outbox)
        self._resumed = False  # the active step began with tokens kept
        self._doubts = Doubts(roster, dispatch, servers, outbox)
        self.reports = StepReports(roster, dispatch, outbox)

    @property
    def instance_cap(self) -> int:
        """Preemptible instances worth having: N_resv until a step has shown how many."""
        cap = self.window.instance_cap
        return cap if self.learnt else max(cap, self._roster.num_reserved)

    def hear(self, stream: int, message: TrainerMessage, now: float) -> None:
        """Raises ProtocolError; nothing of the message has been done then."""
        if isinstance(message, TrainerHello):
            self._hello(stream, message)
            return
        if stream != self._outbox.trainer:
            raise ProtocolError(f"{type(message).__name__} before TrainerHello")
        match message:
            case Publish():
                self._servers.versions.publish(message.manifest)
            case BeginStep():
                self._begin(message, now)
            case ExtendStep():
                self._extend(message)
            case Doubt():
                self._doubted(message)
            case StepTrained():
                self._trained(message, now)
            case StepCommitted():
                self._ledger.forget(message.step)
                self.reports.forget(message.step)
                if self._ledger.active is None:
                    self._dispatch.stop(now)
                self._dispatch.release_cancelled()
            case EndRun():
                if message.over:
                    self._outbox.keep(RunOver())
                self.end(message.reason, 0)

    def gone(self, stream: int, now: float) -> bool:
        """The fleet works on for `orphan_seconds`."""
        if stream != self._outbox.trainer:
            return False
        self._outbox.trainer, self._outbox.wanted = None, None
        self.patience = self._settings.fleet.orphan_seconds
        self.orphan_at = now + self.patience
        return True

    def recover(self, now: float) -> None:
        """After the parts that a journal tells of were restored: a trainer is waited for."""
        active = self._ledger.active
        if active is not None:
            self._outbox.step = active.begin.step
            self._resumed = True
            self._seed(active.begun_at)
            if active.finished:
                self._dispatch.stop(now)
        self.patience = self._settings.fleet.orphan_seconds
        self.orphan_at = now + self.patience

    def end(self, reason: str, code: int) -> None:
        """Send everyone home."""
        self.ended = True
        self._servers.send_home(reason)
        if self._outbox.trainer is not None:
            self._outbox.close(self._outbox.trainer, reason)
        self._outbox.exit(code, reason)

    def _hello(self, stream: int, hello: TrainerHello) -> None:
        if hello.run_id != self._settings.run_id:
            raise ProtocolError(
                f"run {hello.run_id!r} is not the run {self._settings.run_id!r} of this manager; "
                "use its workdir, or another one for a new run"
            )
        old = self._outbox.trainer
        if old is not None and old != stream:
            self._outbox.close(old, "another trainer has taken over")
        self._outbox.trainer, self._outbox.wanted = stream, None
        self.orphan_at = math.inf
        if hello.window is not None and not self.learnt:
            self.window = hello.window
        self._outbox.send(stream, TrainerWelcome(window=self.window))

    def _begin(self, begin: BeginStep, now: float) -> None:
        check_begin(begin, slot_tokens=self._settings.slot_tokens)
        active = self._ledger.active
        step, self._resumed = self._ledger.begin(begin, now)
        self._outbox.step, self._outbox.wanted = begin.step, set()
        self._dispatch.release_cancelled()
        if self._resumed:
            self._outbox.record(
                "resumed",
                finished=step.num_finished,
                total=len(step.rollouts),
                tokens=sum(r.num_tokens for r in step.rollouts),
            )
        self._deliver(step, begin.prompts)
        if step is not active:  # else only its trainer was away
            self._outbox.record(
                "begun",
                prompts=len(begin.prompts),
                group_size=begin.group_size,
                prompt_tokens=sum(len(p.tokens) // 4 for p in begin.prompts),
            )
            self._open(step, now)

    def _extend(self, extend: ExtendStep) -> None:
        step = self._ledger.active
        if step is None or step.begin.step != extend.step or self._outbox.wanted is None:
            raise ProtocolError(f"step {extend.step} is extended but is not being worked on")
        check_extension(step, extend, slot_tokens=self._settings.slot_tokens)
        self._ledger.extend(step, extend)
        self._deliver(step, extend.prompts, extend.samples)

    def _deliver(self, step: Step, prompts: Sequence[PromptRequest], samples: int = 0) -> None:
        """The trainer asks for these: say what is finished of them, and later what will be."""
        assert self._outbox.wanted is not None
        asked = {sample for prompt in prompts for sample in step.samples_of(prompt, samples)}
        new = asked - self._outbox.wanted
        self._outbox.wanted |= new
        for result in step.results(new):
            self._outbox.to_trainer(result)

    def _open(self, step: Step, now: float) -> None:
        """Start the clocks of a step."""
        step.begun_at = now
        manager = self._settings.manager
        if manager.window_memory and manager.window == "paper":
            self.window = recall(self.window, self._roster.members)
        self._seed(now)
        self._roster.changed = False
        self.reports.begin(now)

    def _seed(self, begun_at: float) -> None:
        """Open the window of a step.

        A model that knows nothing yet lets the reserved engines go on until nothing is left for
        them, as if there were no instances: that is never slower than to generate alone.
        """
        manager = self._settings.manager
        seconds = self.window.seconds if manager.seeding else 0.0
        if manager.seeding and manager.window == "model" and not self.learnt:
            seconds = math.inf
        self._dispatch.seeding.begin(begun_at, seconds)
        if manager.seeding and manager.window == "model":
            self._dispatch.seeding.until = begun_at  # ask the model as soon as there is an instance

    def _doubted(self, message: Doubt) -> None:
        step = self._ledger.active
        if step is not None and step.begin.step == message.step:  # else it was given up meanwhile
            self._doubts.hear(step, message)

    def _trained(self, message: StepTrained, now: float) -> None:
        step = self._ledger.active
        if step is None or step.begin.step != message.step:
            raise ProtocolError(f"step {message.step} was trained but is not being worked on")
        self._dispatch.stop(now)
        measures = step.measures  # before what is unfinished of it is dropped
        self._learn(step, message, now)
        self._ledger.close(step)
        self._dispatch.release_cancelled()
        if not (self._resumed or measures):  # half a step says nothing, more than one too much
            rollout = rollout_seconds(step)
            remote_wait = now - step.begun_at - rollout
            self._observe(message, rollout, remote_wait, self.reports.instances(step, now))
        self._dispatch.profile.end_step()
        report = self.reports.report(step, self.window, now)
        self.reports.record(step, message, report)
        self._outbox.to_trainer(report)

    def _learn(self, step: Step, message: StepTrained, now: float) -> None:
        """Tell the model of a step, before what is unfinished of it is dropped."""
        model = self._dispatch.model
        if model is None or self._resumed or step.measures:
            return
        closed, self._dispatch.planned_end = self._dispatch.planned_end, None
        if closed is not None and not self._roster.changed:
            model.compare(step, closed)
        accounted = message.train_wait_seconds + message.train_seconds
        model.learn(
            step,
            train_seconds=message.train_seconds,
            other_seconds=now - step.begun_at - self._dispatch.seeding.total(now) - accounted,
            present=[instance.name for instance in self._roster],
        )
        model.choose_order(*self._dispatch.engines)
        self.sizing.foresee(model, self.window.instance_cap if self.learnt else None)

    def _observe(
        self, message: StepTrained, rollout: float, remote_wait: float, instances: float
    ) -> None:
        seen = Observation(
            train_wait=message.train_wait_seconds,
            remote_wait=remote_wait,
            train=message.train_seconds,
            rollout=rollout,
            instances=instances,
            instances_next=self._roster.members,
            churn=self._roster.changed,
            num_reserved=self._roster.num_reserved,
        )
        manager = self._settings.manager
        before = self.window
        self.window = update(before, seen, eta=manager.window_eta, memory=manager.window_memory)
        if manager.window == "model":  # to go on with after a restart, until it knows as much
            seconds = self._dispatch.seeding.total(self._roster.now)
            self.window = msgspec.structs.replace(
                self.window, seconds=seconds, memory=before.memory
            )
        if self._settings.fleet.sizing == "marginal" and self.sizing.wanted is not None:
            self.window = msgspec.structs.replace(self.window, instance_cap=self.sizing.wanted)
        self.learnt = True
