"""The trainer's side of the manager: runs, versions, batches, and answers of an environment.

A trainer may vanish in mid-batch. Its fleet works on, and the next one that begins the same
batch with the same parameters and prompts finds the tokens here.

An answer is named by work, attempt and turn, so one that comes twice, or after its tokens were
discarded, is recognised and dropped. It is in the journal before anything is sent because of it:
the manager that resumes from the journal does not ask the environment again.
"""

import math
from collections.abc import Sequence

from rlboost_jax.manager.journal_entries import RunOver
from rlboost_jax.manager.reducer.announcements import Announcements
from rlboost_jax.manager.reducer.batch_checks import (
    ProtocolError,
    check_answer,
    check_begin,
    check_extension,
)
from rlboost_jax.manager.reducer.batch_reports import BatchReports
from rlboost_jax.manager.reducer.placements import Placements
from rlboost_jax.manager.reducer.rollout_dispatch import RolloutDispatch
from rlboost_jax.manager.reducer.seeding import SeedingWindow
from rlboost_jax.manager.reducer.servers import Servers
from rlboost_jax.manager.reducer.step_feedback import StepFeedback
from rlboost_jax.manager.reducer.step_model import StepModel
from rlboost_jax.manager.reducer.untrusted_servers import UntrustedServers
from rlboost_jax.manager.reducer.window_control import WindowControl
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.rollouts import BatchRecord
from rlboost_jax.messages import (
    Answer,
    BatchCommitted,
    BatchTrained,
    BeginBatch,
    Doubt,
    EndRun,
    ExtendBatch,
    PromptRequest,
    Publish,
    ScoreTokens,
    Teach,
    TrainerHello,
    TrainerMessage,
    TrainerWelcome,
)

FIRST_TRAINER_SECONDS = 60.0  # from the manager's start to its first trainer


class Trainer:
    def __init__(
        self,
        settings: Settings,
        owners: Owners,
        placements: Placements,
        seeding: SeedingWindow,
        announcements: Announcements,
        servers: Servers,
        control: WindowControl,
        feedback: StepFeedback,
        reports: BatchReports,
        dispatch: RolloutDispatch,
        model: StepModel,
        now: float,
    ) -> None:
        self._settings = settings
        self._outbox = owners.outbox
        self._ledger = owners.ledger
        self._roster = owners.roster
        self._versions = owners.versions
        self._placements = placements
        self._seeding = seeding
        self._announcements = announcements
        self._servers = servers
        self._control = control
        self._feedback = feedback
        self._reports = reports
        self._dispatch, self._model = dispatch, model
        self._doubts = UntrustedServers(owners, placements, servers)
        self.patience = FIRST_TRAINER_SECONDS  # for the trainer now awaited
        self.orphan_at = now + self.patience
        self.ended = False
        self._changes: tuple[str, ...] = ()  # that the trainer reported

    def hear(self, stream: int, message: TrainerMessage, now: float) -> None:
        """Process a message. Raises ProtocolError, and then nothing of it has been done."""
        if isinstance(message, TrainerHello):
            self._hello(stream, message)
            return
        if stream != self._outbox.trainer:
            raise ProtocolError(f"{type(message).__name__} before TrainerHello")
        match message:
            case Publish():
                self._announcements.publish(message.manifest)
            case Teach():
                self._servers.scores.teach(message)
            case ScoreTokens():
                self._servers.scores.ask(message)
            case BeginBatch():
                self._begin(message, now)
            case ExtendBatch():
                self._extend(message)
            case Doubt():
                self._disputed(message, now)
            case Answer():
                self._answered(message, now)
            case BatchTrained():
                self._trained(message, now)
            case BatchCommitted():
                self._committed(message, now)
            case EndRun():
                if message.over:
                    self._outbox.keep(RunOver())
                self.end(message.reason, 0)

    def gone(self, stream: int, now: float) -> bool:
        """Detach the trainer; its fleet works on for `orphan_seconds`.

        Returns whether it was attached.
        """
        if stream != self._outbox.trainer:
            return False
        self._outbox.detach()
        self._await(now)
        return True

    def recover(self, now: float) -> None:
        """Wait for a trainer, after the records were restored from a journal."""
        active = self._ledger.active
        if active is not None:
            self._outbox.file_under(active.begin.batch)
            self._open_window(active.begun_at)
            if active.finished:
                self._seeding.stop(now)
        self._await(now)

    def forgive(self, seconds: float) -> None:
        """Extend deadlines by a time in which this manager could hear nobody."""
        self.orphan_at += seconds

    def end(self, reason: str, code: int) -> None:
        """Have all servers leave and end the run."""
        self.ended = True
        self._outbox.record("ended", reason=reason, code=code)
        self._servers.dismiss_all(reason)
        if self._outbox.trainer is not None:
            self._outbox.close(self._outbox.trainer, reason)
        self._outbox.exit(code, reason)

    def _await(self, now: float) -> None:
        self.patience = self._settings.fleet.orphan_seconds
        self.orphan_at = now + self.patience

    def _hello(self, stream: int, hello: TrainerHello) -> None:
        if hello.run_id != self._settings.run_id:
            raise ProtocolError(
                f"run {hello.run_id!r} is not the run {self._settings.run_id!r} of this manager; "
                "use its workdir, or another one for a new run"
            )
        old = self._outbox.trainer
        if old is not None and old != stream:
            self._outbox.close(old, "another trainer has taken over")
        self._outbox.attach(stream)
        self._versions.attached()
        self._servers.scores.attached()
        self.orphan_at = math.inf
        self._control.offer(hello.window)
        if hello.changes and hello.changes != self._changes:  # it may dial again
            self._outbox.record("changed", changes=list(hello.changes))
        self._changes = hello.changes
        welcome = TrainerWelcome(window=self._control.window, announces_lists=True)
        self._outbox.send(stream, welcome)

    def _begin(self, begin: BeginBatch, now: float) -> None:
        """Open a batch.

        The first begun on a stream is the trainer's oldest: earlier ones are over.
        """
        ledger = self._ledger
        still_open = () if self._outbox.wanted is None else ledger.still_open(begin)
        others = [ledger.open[number] for number in still_open]
        check_begin(begin, others, slot_tokens=self._settings.slot_tokens)
        active = ledger.active
        batch, resumed = ledger.begin(begin, now, still_open)
        self._outbox.begin(begin.batch, still_open)
        self._outbox.file_under(begin.batch)
        self._versions.begun(begin)
        self._placements.release_cancelled(now)
        if resumed:
            self._outbox.record(
                "resumed",
                finished=batch.num_finished,
                total=len(batch.rollouts),
                tokens=sum(r.sequences.num_tokens for r in batch.rollouts),
            )
        self._deliver(batch, begin.prompts)
        oldest = ledger.active
        assert oldest is not None
        self._outbox.file_under(oldest.begin.batch)
        if oldest is not active:  # else only its trainer was away
            oldest.begin_at(now)
            self._turn(oldest, now)

    def _turn(self, batch: BatchRecord, now: float) -> None:
        """Start the window and the report of a batch that is now the oldest open one."""
        begin = batch.begin
        self._outbox.file_under(begin.batch)
        self._outbox.record(
            "begun",
            prompts=len(begin.prompts),
            group_size=begin.group_size,
            prompt_tokens=sum(len(p.tokens) // 4 for p in begin.prompts),
        )
        self._control.begin_batch()
        self._open_window(now)
        self._roster.begin_batch()
        self._reports.begin(now)

    def _next_turn(self, before: BatchRecord | None, now: float) -> None:
        """Start the turn of the next batch if the one before is over."""
        oldest = self._ledger.active
        if oldest is not None and oldest is not before:
            self._ledger.turn(oldest, now)
            self._turn(oldest, now)

    def _committed(self, message: BatchCommitted, now: float) -> None:
        active = self._ledger.active
        self._ledger.forget(message.batch)
        self._reports.forget(message.batch)
        if self._ledger.active is None:
            self._seeding.stop(now)
        self._placements.release_cancelled(now)
        self._next_turn(active, now)

    def _open_window(self, begun_at: float) -> None:
        control = self._control
        self._seeding.begin(begun_at, control.window.seconds, learnt=control.learnt)

    def _extend(self, extend: ExtendBatch) -> None:
        batch = self._ledger.open.get(extend.batch)
        if batch is None or extend.batch not in (self._outbox.wanted or {}):
            raise ProtocolError(f"batch {extend.batch} is extended but is not being worked on")
        others = [other for other in self._ledger.open.values() if other is not batch]
        check_extension(batch, extend, others, slot_tokens=self._settings.slot_tokens)
        self._ledger.extend(batch, extend)
        self._deliver(batch, extend.prompts, extend.samples)

    def _deliver(
        self, batch: BatchRecord, prompts: Sequence[PromptRequest], samples: int = 0
    ) -> None:
        """Deliver responses that the trainer asks for.

        Those finished or parked are sent now, the others as they become so.
        """
        asked = {sample for prompt in prompts for sample in batch.samples_of(prompt, samples)}
        new = self._outbox.want(batch.begin.batch, asked)
        for result in batch.results(new):
            self._outbox.to_trainer(result)
        for question in batch.questions(new):
            self._outbox.to_trainer(question)

    def _answered(self, answer: Answer, now: float) -> None:
        """Apply an answer to a parked response, if it waits for exactly this one.

        The response then continues, perhaps with another sequence, begins anew, or is finished.
        """
        check_answer(answer, vocab_size=self._settings.vocab_size)
        work, ledger = answer.work, self._ledger
        batch = ledger.open.get(work.batch)
        rollout = batch.rollout_of(work.sample) if batch is not None else None
        if batch is None or rollout is None:
            return
        if not rollout.awaits(work.sequence, answer.attempt, answer.turn):
            return
        if answer.restart:
            ledger.redo(batch, {rollout: 0})
            return
        tokens, over, prompt = rollout.sequences.within(answer, self._settings.slot_tokens)
        ledger.answer(batch, rollout, tokens, over=over, prompt=prompt)
        for result in rollout.results[work.sequence :]:
            self._outbox.of_sample(result)
        if not rollout.finished:
            self._dispatch.resume(batch, rollout, now)
        else:
            self._model.ended(rollout, now)

    def _disputed(self, message: Doubt, now: float) -> None:
        batch = self._ledger.open.get(message.batch)
        if batch is not None:  # else it was abandoned meanwhile
            self._doubts.hear(batch, message, now)

    def _trained(self, message: BatchTrained, now: float) -> None:
        batch = self._ledger.active
        if batch is None or message.batch not in self._ledger.open:
            raise ProtocolError(f"batch {message.batch} was trained but is not being worked on")
        if batch.begin.batch != message.batch:
            raise ProtocolError(
                f"batch {message.batch} was trained but is not the oldest that is open: "
                f"{batch.begin.batch} is"
            )
        self._seeding.stop(now)
        seeding = self._seeding.clock.total(now)
        batch.token_at(self._ledger.newest_token_at)  # nobody waits who works on a later one
        whole = not (batch.resumed or batch.measures)  # before what is unfinished of it is dropped
        if whole:
            known = self._control.window.instance_cap if self._control.learnt else None
            self._feedback.learn(batch, message, known, now)
        self._ledger.close(batch)
        self._placements.trained(batch)
        self._placements.release_cancelled(now)
        if whole:  # half a batch says nothing, more than one too much
            self._control.observe(
                batch,
                message,
                now,
                instances=self._reports.instances(batch, now),
                seeding=seeding,
                wanted=self._feedback.wanted,
            )
        self._feedback.end_step()
        report = self._reports.report(batch, seeding, self._control.window, now)
        self._reports.record(batch, message, report)
        self._outbox.to_trainer(report)
        self._next_turn(batch, now)
