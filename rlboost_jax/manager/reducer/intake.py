"""Tokens as servers send them: what each dispatch yielded, taken in once and in order."""

from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.reducer.dispatch import Dispatch, context
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.fleet import Fleet
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.ledger import Ledger
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.manager.state.token_rows import MalformedBatch, TokenRows
from rlboost_jax.messages import TokenBatch


class Intake:
    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        roster: Roster,
        fleet: Fleet,
        dispatch: Dispatch,
        outbox: Outbox,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._roster = roster
        self._fleet = fleet
        self._dispatch = dispatch
        self._outbox = outbox

    def take(self, instance: Instance, batch: TokenBatch, now: float) -> bool:
        """Whether responses ended, and there is room for others.

        Raises:
            MalformedBatch: no server of ours would send it; nothing of it was taken.
        """
        rows = TokenRows(batch, self._settings.vocab_size, self._settings.routing)
        if contradiction := instance.contradiction(batch, self._settings.slot_tokens):
            raise MalformedBatch(contradiction)
        books = self._ledger.books
        if batch.sequence != instance.next_sequence:
            books.wasted(rows.num_tokens, reserved=instance.reserved)
            if batch.sequence < instance.next_sequence:
                return False  # a duplicate
            due = instance.next_sequence
            raise MalformedBatch(f"token batch {batch.sequence} where {due} was due")
        if misled := rows.misled(instance.held):
            raise MalformedBatch(misled)
        if rows.num_tokens and (server := self._fleet.server_of(instance.hello)) is not None:
            server.proved = True
        self._observe(instance, rows, now)
        instance.next_sequence += 1
        instance.tokens += rows.num_tokens
        self._roster.charge(instance, batch.in_flight)
        instance.running, instance.waiting = batch.running, batch.waiting
        books.prefilled_again += batch.prefilled_again
        instance.batch_at = now
        given = [r for i in rows.ids if (r := instance.held.get(i)) is not None]
        before = sum(r.num_tokens for r in given)
        known = [(r, r.length, r.yielded) for r in given] if self._dispatch.model else []
        ended = self._ledger.receive(
            rows, batch.version, instance.held, instance.name, now, reserved=instance.reserved
        )
        if sum(r.num_tokens for r in given) > before:  # what is no use is no progress
            instance.progress_at = now
        if self._dispatch.model is not None:
            self._dispatch.model.told(
                instance, known, now, counts=self._dispatch.undisturbed(instance)
            )
        for rollout in ended:
            instance.let_go(rollout.request_id)
            rollout.step.last_token_at = now
            if self._dispatch.model is not None and rollout.result is not None:
                self._dispatch.model.ended(rollout, now)
            # Those of a step that a returned trainer has not reached yet are sent when it does.
            if rollout.step is self._ledger.active and rollout.result is not None:
                self._outbox.of_step(rollout.result)
        return bool(ended)

    def _observe(self, instance: Instance, rows: TokenRows, now: float) -> None:
        """A dispatch that began with the previous message has given its tokens."""
        if not instance.in_flight:
            return
        seconds, length = now - instance.batch_at, context(instance)
        instance.usage.add(rows.counts, seconds=seconds, context=length)
        if rows.num_tokens:
            instance.slowest = max(instance.slowest, seconds)
        if instance.running and not instance.waiting:
            self._dispatch.profile.add(
                instance.kind,
                batch=instance.running,
                tokens=rows.num_tokens,
                seconds=seconds,
                context=length,
            )
