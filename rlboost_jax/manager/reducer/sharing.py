"""Servers that share their device with other programs, which take part of it and return it.

Such a server says what is left of it and hands back what it has no room for, in one message: none
of that is placed there again. It is no loss: rollouts that it handed back resume on other instances
with their tokens, and its name is as good as before.
"""

from rlboost_jax.manager.reducer.placements import Placements
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.messages import Capacity, unpack_ids

MAX_REASON_LETTERS = 200


class Sharing:
    def __init__(self, owners: Owners, placements: Placements) -> None:
        self._roster = owners.roster
        self._ledger = owners.ledger
        self._outbox = owners.outbox
        self._placements = placements

    def resize(self, instance: Instance, message: Capacity, now: float) -> str:
        """Apply a server's new capacity. Returns the mistake in its message, or ""."""
        if instance.reserved:
            return "the trainer's own engine shares its device with nobody"
        try:
            request_ids = unpack_ids(message.request_ids).tolist()
        except ValueError:
            return "Capacity with a broken request id"
        before, member = (instance.slots, instance.cache_tokens), instance.member
        if mistake := instance.resize(message, self._roster.row_tokens):
            return mistake
        if instance.member != member:
            self._roster.came()
        held = instance.held
        victims = [held[i] for i in dict.fromkeys(request_ids) if i in held]
        tokens = sum([rollout.transcript.length for rollout in victims])
        self._placements.put_back(instance, request_ids)
        self._ledger.books.hand_back(len(victims))
        if victims:
            instance.activity.progressed(now)
        if (instance.slots, instance.cache_tokens) != before and instance.may_remark(now):
            self._outbox.record(
                "resized",
                instance.name,
                slots=message.slots,
                cache_tokens=message.cache_tokens,
                count=len(victims),
                tokens=tokens,
                frozen=message.frozen,
                reason=message.reason[:MAX_REASON_LETTERS],
            )
        return ""
