"""Tokens as servers send them: what each dispatch yielded, taken in once and in order."""

from rlboost_jax.manager.policies.throughput import ThroughputProfile
from rlboost_jax.manager.reducer.step_model import StepModel
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.token_rows import MalformedBatch, TokenRows
from rlboost_jax.messages import TokenBatch


class TokenIntake:
    def __init__(
        self,
        settings: Settings,
        owners: Owners,
        profile: ThroughputProfile,
        model: StepModel,
    ) -> None:
        self._settings = settings
        self._outbox = owners.outbox
        self._ledger = owners.ledger
        self._roster = owners.roster
        self._profile = profile
        self._model = model

    def check(self, instance: Instance, batch: TokenBatch) -> TokenRows | None:
        """Decode and check a token batch; None if it was received before.

        Raises:
            MalformedBatch: no server of ours would send it; nothing of it is to be taken.
        """
        rows = TokenRows(batch, self._settings.vocab_size, self._settings.routing)
        if contradiction := instance.contradiction(batch, self._settings.slot_tokens):
            raise MalformedBatch(contradiction)
        due = instance.activity.next_sequence
        if batch.sequence != due:
            self._ledger.books.wasted(rows.num_tokens, reserved=instance.reserved)
            if batch.sequence < due:
                return None
            raise MalformedBatch(f"token batch {batch.sequence} where {due} was due")
        if rows.routes and (error := rows.route_error(instance.held)):
            raise MalformedBatch(error)
        return rows

    def take(
        self, instance: Instance, batch: TokenBatch, rows: TokenRows, now: float, *, alone: bool
    ) -> bool:
        """Add a checked batch to its rollouts. Returns whether responses ended, which frees room.

        Args:
            alone: the engine has its chips to itself, so that its pace is its own.
        """
        self._profile_dispatch(instance, rows, now)
        self._roster.received(instance, batch, rows.num_tokens, now)
        instance.pages.take(rows.num_tokens)
        if batch.prefilled_again:
            self._ledger.books.prefill_again(batch.prefilled_again)
        held = instance.held
        given = [r for i in rows.ids if (r := held.get(i)) is not None]
        transcripts = [r.transcript for r in given]
        before = sum([t.num_tokens for t in transcripts])
        learns = self._model.learns
        known = [(r, r.transcript.length, r.placement.yielded) for r in given if learns]
        ended = self._ledger.receive(rows, batch.version, instance, now)
        if sum([t.num_tokens for t in transcripts]) > before:  # what is no use is no progress
            instance.activity.progressed(now)
        if learns:
            span = instance.activity.measured(known, now, alike=not self._model.drafts)
            if span is not None and alone:
                self._model.measured(instance, span, now)
        for rollout in ended:
            instance.let_go(rollout.placement.request_id)
            instance.activity.turn_ended(now)
            if rollout.finished:
                self._model.ended(rollout, now)
            # Those of a batch that a returned trainer has not reached yet are sent when it does.
            if self._ledger.works_on(rollout.batch):
                result = rollout.result
                self._outbox.of_sample(rollout.sequences.question() if result is None else result)
        return bool(ended)

    def _profile_dispatch(self, instance: Instance, rows: TokenRows, now: float) -> None:
        """Profile the dispatch that ended with this message and began with the previous one."""
        activity = instance.activity
        if not activity.in_flight:
            return
        context = instance.context
        seconds = activity.dispatched(rows.counts, context, now)
        if activity.running and not activity.waiting:
            self._profile.add(
                instance.kind,
                batch=activity.running,
                tokens=rows.num_tokens,
                seconds=seconds,
                context=context,
            )
