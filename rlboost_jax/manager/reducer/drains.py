"""Draining of servers whose machines go at a known time.

A notice is a hint about hurry and never about truth. With one, a server gets no new work and
what waits there is released; rollouts in slots go on until so little time is left that their
release must begin. Holding nothing, or at the time it gave itself, it is asked to leave. One that
goes earlier is lost like any other; the stream of one that stays is closed.
"""

import math

from rlboost_jax.manager.reducer.placements import Placements
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.messages import MAX_NOTICE_SECONDS, Hint, Leave, Notice

# Rollouts are released so long before the end, and the slowest dispatch of that server: a
# release is obeyed between two dispatches, clouds give times in whole seconds, and the
# answer has a way to go.
MARGIN_SECONDS = 2.0
LEAVE_SECONDS = 5.0  # from Leave to the end of the stream
MAX_NOTICES = 8  # of one stream that are recorded; more is chatter
MAX_REASON_LETTERS = 200


class Drains:
    def __init__(self, settings: Settings, owners: Owners, placements: Placements) -> None:
        self._early = settings.manager.drain_seconds
        self._roster = owners.roster
        self._placements = placements
        self._outbox = owners.outbox

    def hint(self, instance: Instance, message: Hint) -> None:
        """Record a hint; it changes nothing, since a machine that only may go is as good as any."""
        self._record(instance, message.reason, hint=True)

    def notice(self, instance: Instance, message: Notice, now: float) -> str:
        """Note when a machine goes. Returns the mistake in the notice, or ""."""
        if not 0 <= message.seconds <= MAX_NOTICE_SECONDS:
            return f"notice of {message.seconds} s; 0 to {MAX_NOTICE_SECONDS:g} is possible"
        goes_at = now + message.seconds
        if goes_at < instance.departure.goes_at:  # else it is known, or a reprieve: not believed
            self._record(instance, message.reason, hint=False, seconds=message.seconds)
            if not instance.reserved:  # the trainer's own engine goes with its trainer
                instance.departure.announced(goes_at, message.reason[:MAX_REASON_LETTERS])
        return ""

    def dismiss(self, instance: Instance, now: float) -> None:
        """Have a server return its rollouts and leave, as if its machine went then."""
        goes_at = now + MARGIN_SECONDS + instance.activity.slowest
        instance.departure.dismiss(goes_at, "no work until the next step")
        self.advance(instance, now)

    def advance(self, instance: Instance, now: float) -> bool:
        """Take the step of a drain that is due. True: the stream has to be ended."""
        departure = instance.departure
        if now < self.begins_at(instance):
            pass  # it works on as if nothing had been said
        elif departure.leave_by < math.inf:
            return now >= departure.leave_by
        elif not instance.held or now >= departure.goes_at:
            self._roster.retire(instance)
            departure.asked_to_leave(now + LEAVE_SECONDS)
            self._outbox.send(instance.stream, Leave(reason=departure.reason))
        elif now >= _release_at(instance):
            self._roster.retire(instance)
            self._placements.release(instance, instance.held.values(), now)
        elif not departure.draining:
            departure.drain()
            self._roster.retire(instance)
            surplus = len(instance.held) - instance.num_releasing - instance.room
            count = max(surplus, instance.activity.waiting)
            self._placements.release(instance, instance.newest_pending(count), now)
        self._roster.look_at(self.next_at(instance, now))
        return False

    def next_at(self, instance: Instance, now: float) -> float:
        """When `advance` next has something to do, if nothing happens before; inf: never."""
        departure = instance.departure
        if departure.leave_by < math.inf or math.isinf(departure.goes_at):
            return departure.leave_by
        moments = self.begins_at(instance), _release_at(instance)
        return min((moment for moment in moments if moment > now), default=departure.goes_at)

    def begins_at(self, instance: Instance) -> float:
        """When a server stops getting new work; inf: it gave no notice."""
        return min(instance.departure.goes_at - self._early, _release_at(instance))

    def _record(self, instance: Instance, reason: str, **detail: float) -> None:
        if instance.departure.remark(MAX_NOTICES):
            short = reason[:MAX_REASON_LETTERS]
            self._outbox.record("notice", instance.name, reason=short, **detail)


def _release_at(instance: Instance) -> float:
    """When releasing what a server still holds must begin."""
    return instance.departure.goes_at - MARGIN_SECONDS - instance.activity.slowest
