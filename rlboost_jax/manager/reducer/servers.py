"""The servers' side of the manager: joins, messages and departures.

Every stream is heard of exactly once as it ends, whatever ends it: goodbye, kill, silence,
a malformed frame, a rejection. What it held waits again before that event is over.
"""

import math

from rlboost_jax.manager.reducer.announcements import Announcements
from rlboost_jax.manager.reducer.drains import Drains
from rlboost_jax.manager.reducer.lease_renewals import LeaseRenewals
from rlboost_jax.manager.reducer.placements import Placements
from rlboost_jax.manager.reducer.released_work import ReleasedWork
from rlboost_jax.manager.reducer.score_items import ScoreItems
from rlboost_jax.manager.reducer.seeding import SeedingWindow
from rlboost_jax.manager.reducer.sharing import Sharing
from rlboost_jax.manager.reducer.token_intake import TokenIntake
from rlboost_jax.manager.reducer.welcome import introduction, welcome
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.ended_streams import EndedStreams
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.requested_server import Server
from rlboost_jax.manager.state.token_rows import MalformedBatch
from rlboost_jax.messages import (
    MAX_NOTICE_SECONDS,
    Capacity,
    Goodbye,
    Hello,
    Hint,
    Leave,
    Notice,
    Ready,
    Released,
    Renew,
    Said,
    ServerMessage,
    SourcesUsed,
    Spans,
    Teaches,
    TokenBatch,
    TokenScores,
    WeightsRejected,
)
from rlboost_jax.observe.departures import LOST, departure_of
from rlboost_jax.providers.base import Withdrawn
from rlboost_jax.trust.peer_limits import REMARKS_PER_SECOND


class Servers:
    def __init__(
        self,
        settings: Settings,
        owners: Owners,
        placements: Placements,
        seeding: SeedingWindow,
        intake: TokenIntake,
        announcements: Announcements,
    ) -> None:
        self._settings = settings
        self._outbox = owners.outbox
        self._ledger = owners.ledger
        self._roster = owners.roster
        self._fleet = owners.fleet
        self._pools = owners.pools
        self._placements = placements
        self._seeding = seeding
        self._intake = intake
        self._announcements = announcements
        self._drains = Drains(settings, owners, placements)
        self._renewals = LeaseRenewals(owners)
        self._returns = ReleasedWork(settings, placements)
        self._sharing = Sharing(owners, placements)
        self.scores = ScoreItems(settings, owners, self.quarantine)
        self.quarantined: set[str] = set()  # names
        self._ended = EndedStreams()

    def hear(self, stream: int, message: ServerMessage, now: float) -> bool:
        """Process a message. True: there may be room, work or a ready instance now."""
        instance = self._roster.streams.get(stream)
        if instance is None:
            return self._unknown(stream, message, now)
        instance.lease.heard(now)
        changed = self._hear(instance, message, now)
        departure = instance.departure
        if departure.goes_at < math.inf and stream in self._roster.streams:
            stayed = not departure.leaving
            self._drains.advance(instance, now)
            changed |= stayed and departure.leaving  # its work may be another's from now on
        return changed

    def _hear(self, instance: Instance, message: ServerMessage, now: float) -> bool:
        match message:
            case TokenBatch():
                return self._tokens(instance, message, now)
            case Renew():
                if reason := self._renewals.renew(instance, message, now):
                    self.lose(instance, reason, now)
                return bool(reason)
            case Released():
                if mistake := self._returns.take(instance, message, now):
                    self.lose(instance, f"malformed: {mistake}", now)
                elif reason := self._returns.useless(instance, now):
                    self._stuck(instance, reason, now)
            case Notice():
                if mistake := self._drains.notice(instance, message, now):
                    self.lose(instance, f"malformed: {mistake}", now)
            case Capacity():
                if mistake := self._sharing.resize(instance, message, now):
                    self.lose(instance, f"malformed: {mistake}", now)
            case Hint():
                self._drains.hint(instance, message)
                return False
            case Teaches() | Ready() | WeightsRejected() if not instance.may_remark(now):
                kind = type(message).__name__
                self.lose(instance, f"over {REMARKS_PER_SECOND:g} {kind} per second", now)
            case Ready():
                self._ready(instance, message, now)
            case Teaches() | TokenScores():
                if mistake := self.scores.hear(instance, message, now):
                    self.lose(instance, f"malformed: {mistake}", now)
            case Spans():
                return False  # of interest to the driver only
            case Said(lines=lines):
                instance.says(lines)
                return False
            case WeightsRejected() | SourcesUsed():
                return self._announcements.fared(instance, message, now)
            case Goodbye(failed=True):
                if (server := self._fleet.server_of(instance.hello)) is not None:
                    self._fleet.fail(server)
                self.lose(instance, message.reason, now)
            case Goodbye():
                self._roster.idle(instance)  # everything was sent before
                self.lose(instance, message.reason, now, kind="drained")
            case Hello():
                self.lose(instance, "malformed: a second Hello", now)
        return True

    def gone(self, stream: int, reason: str, now: float) -> bool:
        if (instance := self._roster.streams.get(stream)) is None:
            return False
        # Without a goodbye, what it held at the end was cut off, notice or not.
        polite = instance.departure.leaving and not instance.held
        self.lose(instance, reason, now, kind="drained" if polite else "lost")
        return True

    def expire(self, now: float) -> bool:
        """End overdue servers, advance drains, and schedule the next check."""
        roster = self._roster
        if now < roster.check_at:
            return False
        changed = False
        for instance in list(roster):
            due, reason, stuck = roster.deadline(instance)
            if now >= due:
                if stuck:
                    self._stuck(instance, reason, now)
                else:
                    self.lose(instance, reason, now)
            elif now >= self._drains.begins_at(instance):
                if self._drains.advance(instance, now):
                    self.lose(instance, "it was asked to leave and is still here", now)
            else:
                continue
            changed = True
        moments = (min(roster.deadline(i).at, self._drains.next_at(i, now)) for i in roster)
        roster.looked(min(moments, default=math.inf))
        return changed

    def dismiss(self, instance: Instance, now: float) -> None:
        """Release a server of the provider that is not needed for a while."""
        if (server := self._fleet.server_of(instance.hello)) is not None:
            self._outbox.record("dismissed", instance.name, count=len(instance.held))
            self._fleet.dismiss(server)
            self._drains.dismiss(instance, now)

    def dismiss_all(self, reason: str) -> None:
        for instance in self._roster:
            self._roster.retire(instance)
            self._outbox.send(instance.stream, Leave(reason=reason))

    def lose(self, instance: Instance, reason: str, now: float, kind: str = "lost") -> None:
        """End a stream; its dispatch in flight is charged as lost."""
        in_flight = instance.activity.in_flight
        self._ledger.books.wasted(in_flight, reserved=instance.reserved)
        self._ended.remember(instance.stream, reserved=instance.reserved, charged=in_flight)
        self._roster.leave(instance)
        self._placements.record_usage(instance)
        count = self._placements.put_back(instance, list(instance.held))
        self.scores.lost(instance)
        self._outbox.close(instance.stream, reason)
        detail = {
            "reason": reason,
            "count": count,
            "tokens_lost": in_flight,
            **self._pools.of_stream(instance.stream),
            **instance.last_words,
        }
        self._outbox.record(kind, instance.name, **detail)
        server = self._fleet.server_of(instance.hello)
        if server is not None and not self._roster.speaks(server.name, self._fleet.said_by(server)):
            # else it has dialled again before this stream was abandoned
            self._fleet.lost_sight_of(server, now)
        departure = departure_of(
            kind, reserved=instance.reserved, dismissed=instance.departure.dismissed
        )
        self._pools.left(instance.stream, now, by_market=departure in LOST)
        self._roster.count_loss(departure)

    def quarantine(self, name: str, reason: str, now: float) -> None:
        """Distrust a server from now on, under whatever name it joins."""
        self._roster.banish(name, reason)
        self.scores.disbelieve(name)
        living = self._roster.same_process(name)
        if not living and name not in self.quarantined:  # else it was said as it was sent away
            self._outbox.record("quarantined", name, reason=reason, count=0, tokens_lost=0)
        self.quarantined.add(name)
        for instance in living:
            self._outbox.send(instance.stream, Leave(reason=f"quarantined: {reason}"))
            self.lose(instance, reason, now, kind="quarantined")
            self._end(instance)

    def _stuck(self, instance: Instance, reason: str, now: float) -> None:
        """End and replace a server that holds its lease and makes no progress."""
        if not instance.reserved:
            self._roster.banish(instance.name, reason)
        self.lose(instance, reason, now)
        self._end(instance)

    def _end(self, instance: Instance) -> None:
        """Have the provider terminate its server, which may not heed messages.

        The next server on that machine starts after a pause.
        """
        if (server := self._fleet.server_of(instance.hello)) is not None:
            self._fleet.fail(server)
            self._outbox.terminate(server.name)

    def _unknown(self, stream: int, message: ServerMessage, now: float) -> bool:
        """Process a message of a stream that is new, or was abandoned."""
        if stream in self._ended:
            if isinstance(message, TokenBatch):
                tokens, reserved = self._ended.late(stream, len(message.tokens) // 4)
                self._ledger.books.wasted(tokens, reserved=reserved)
            return False
        if not isinstance(message, Hello):
            self._refuse(stream, "", f"malformed: {type(message).__name__} before Hello")
            return False
        if objection := self._roster.objection(message):
            self._refuse(stream, message.instance, objection)
            return False
        if (server := self._fleet.server_of(message)) is not None and server.dismissed:
            self._refuse(stream, message.instance, "it was sent home for want of work")
            return False
        if self._fleet.ended(message):  # nobody counts it any more, or would end it
            self._refuse(stream, message.instance, "its provider says that it is over")
            return False
        self._join(stream, message, now)
        return True

    def _refuse(self, stream: int, name: str, reason: str) -> None:
        self._ended.remember(stream, reserved=False, charged=0)
        self._outbox.send(stream, Leave(reason=reason))
        self._outbox.close(stream, reason)
        self._outbox.record("rejected", name, reason=reason)

    def _join(self, stream: int, hello: Hello, now: float) -> None:
        instance = self._roster.join(stream, hello, now)
        if (server := self._fleet.server_of(hello)) is not None:
            self._fleet.came(server, now)
            self._pools.joined(server.pool, stream, now)
            if (price := self._pools[server.pool].reported_price) is not None:
                self._roster.index.reprice(stream, price)
            if server.anew:  # it is to be here when the next version is published, and no sooner
                self._learn_start(server, now)
        self._outbox.send(stream, welcome(instance, self._settings, now))
        detail = introduction(hello) | self._pools.of_stream(stream)
        self._outbox.record("joined", instance.name, **detail)
        if hello.reserved:
            for other in [i for i in self._roster if self._roster.mismatch(i.hello)]:
                reason = self._roster.mismatch(other.hello)
                self._outbox.send(other.stream, Leave(reason=reason))
                self.lose(other, reason, now, kind="rejected")
        self._announcements.welcome(instance)
        self.scores.welcome(instance)
        if server is not None and server.withdrawal is not None:
            self._withdraw(instance, *server.withdrawal, now)

    def withdraw(self, event: Withdrawn, now: float) -> None:
        """Process the owner's withdrawal of a server's machine."""
        server = self._fleet.known(event.name, event.nonce)
        if server is None:
            return
        goes_at = now + event.seconds
        self._fleet.withdrawn(server, goes_at, event.reason)
        for instance in self._roster:
            if self._fleet.server_of(instance.hello) is server:
                self._withdraw(instance, goes_at, event.reason, now)

    def _withdraw(self, instance: Instance, goes_at: float, reason: str, now: float) -> None:
        seconds = min(max(0.0, goes_at - now), MAX_NOTICE_SECONDS)
        self._drains.notice(instance, Notice(seconds=seconds, reason=reason), now)
        self._drains.advance(instance, now)

    def _learn_start(self, server: Server, now: float) -> None:
        if (seconds := self._fleet.start_seconds(server, now)) < math.inf:
            self._roster.started(seconds)
            self._pools[server.pool].started(seconds)

    def _tokens(self, instance: Instance, batch: TokenBatch, now: float) -> bool:
        try:
            rows = self._intake.check(instance, batch)
        except MalformedBatch as error:
            self.lose(instance, f"malformed: {error}", now)
            return True
        if rows is None:
            return False
        if rows.num_tokens and (server := self._fleet.server_of(instance.hello)) is not None:
            self._fleet.prove(server)
        alone = self._seeding.undisturbed(instance)
        return self._intake.take(instance, batch, rows, now, alone=alone)

    def _ready(self, instance: Instance, message: Ready, now: float) -> None:
        """Record the loaded version.

        An engine loads only when empty, so its former rollouts are free.
        """
        server = self._fleet.server_of(instance.hello)
        if instance.newcomer:
            if server is None or not server.anew:
                self._roster.came()
            self._outbox.record("ready", instance.name, version=message.version)
        if server is not None:
            self._learn_start(server, now)
        instance.loaded(message.version, message.params_digest)
        stale = [r for r in instance.held.values() if not instance.parameters.are(r.batch.begin)]
        self._placements.release(instance, stale, now)
        if not instance.reserved:
            self._outbox.record(
                "pulled",
                instance.name,
                version=message.version,
                seconds=message.seconds,
                fetched_bytes=message.fetched_bytes,
                saved_bytes=self._announcements.fetched(instance, message),
            )
