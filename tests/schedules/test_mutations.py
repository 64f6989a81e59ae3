"""Mistakes planted in the manager: random schedules must find each of them."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager import journal_entries, outbox
from rlboost_jax.manager.accounts import Books
from rlboost_jax.manager.journal_entries import (
    Answered,
    BatchOpened,
    BatchResumed,
    Collected,
    Redone,
)
from rlboost_jax.manager.policies.connection_quality import ConnectionQuality
from rlboost_jax.manager.reducer import announcements, score_items
from rlboost_jax.manager.reducer.announcements import Announcements
from rlboost_jax.manager.reducer.placements import Placements
from rlboost_jax.manager.reducer.score_items import ScoreItems
from rlboost_jax.manager.reducer.token_intake import TokenIntake
from rlboost_jax.manager.reducer.untrusted_servers import UntrustedServers
from rlboost_jax.manager.service import journal_files
from rlboost_jax.manager.state.deadline import Deadline
from rlboost_jax.manager.state.episode_sequences import EpisodeSequences
from rlboost_jax.manager.state.fleet_machines import ABSENT_SECONDS, Fleet
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.lease import Lease
from rlboost_jax.manager.state.ledger import Ledger
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.manager.state.server_parameters import Parameters
from rlboost_jax.manager.state.token_rows import TokenRows
from rlboost_jax.platform import record_stream
from rlboost_jax.sequences.transcript import Transcript
from tests.planted import Plant
from tests.schedules.faults import fails, schedule_of

WITHIN = 5_000  # schedules
Mistake = Callable[[Plant], None]


def lost_ack(plant: Plant) -> None:
    """Tokens are taken in, and acted upon, before they are durable."""
    real = outbox.Outbox.keep

    def keep(self: outbox.Outbox, entry: journal_entries.Entry) -> None:
        if not (isinstance(entry, Collected) and len(entry.samples) > 4):
            real(self, entry)

    plant(outbox.Outbox, "keep", keep)


def double_delivery(plant: Plant) -> None:
    """A frame that comes twice is taken twice."""
    real = TokenIntake.check

    def check(self: TokenIntake, instance: Instance, batch: m.TokenBatch) -> TokenRows | None:
        if batch.sequence == instance.activity.next_sequence - 1:
            instance.activity.next_sequence -= 1
        return real(self, instance, batch)

    plant(TokenIntake, "check", check)


def stale_version(plant: Plant) -> None:
    """The number of a version is enough to get work of it."""

    def are(self: Parameters, named: Any) -> bool:
        return self.version == named.version

    plant(Parameters, "are", are)


def forgotten_request(plant: Plant) -> None:
    """What was being released by a server that goes is waited for in vain."""
    real = Placements.put_back

    def put_back(self: Any, instance: Instance, request_ids: Any) -> int:
        held = instance.held
        ids = [i for i in request_ids if i in held and not held[i].placement.releasing]
        for request_id in set(request_ids) - set(ids):
            instance.let_go(request_id)
        return real(self, instance, ids)

    plant(Placements, "put_back", put_back)


def lease_off_by_one(plant: Plant) -> None:
    """A lease goes on for one renewal longer than it should."""

    real = Roster.deadline

    def deadline(self: Roster, instance: Instance) -> Deadline:
        due = real(self, instance)
        late = self._settings.manager.renew_seconds if not due.stuck else 0.0
        return due._replace(at=due.at + late)

    plant(Roster, "deadline", deadline)


def torn_tail(plant: Plant) -> None:
    """A journal goes on behind a torn frame, where nobody will ever read."""

    class Blind(record_stream.RecordReader[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from super().__iter__()
            self.good_bytes, self.damage = self._size, ""

    plant(journal_files, "RecordReader", Blind)


def neighbours_version(plant: Plant) -> None:
    """Tokens count whichever version sampled them."""
    real = Ledger.receive

    def receive(self: Ledger, rows: Any, version: int, instance: Any, now: float) -> Any:
        versions = [r.batch.begin.version for r in instance.held.values()] or [version]
        return real(self, rows, versions[0], instance, now)

    plant(Ledger, "receive", receive)


def older_work_dropped(plant: Plant) -> None:
    """A newer version is announced to all at once, whatever they hold."""
    plant(Announcements, "_older", lambda self: {})


def nobody_goes_back(plant: Plant) -> None:
    """Who works on a later batch stays there, though nobody is left for an older one."""
    real = announcements.choose_versions

    def choose_versions(demands: Any, holders: Any) -> list[int | None]:
        chosen = real(demands, holders)
        return [
            place if holder.holds is None else holder.holds
            for holder, place in zip(holders, chosen, strict=True)
        ]

    plant(announcements, "choose_versions", choose_versions)


def only_the_newest_recovered(plant: Plant) -> None:
    """A journal knows only the newest of several open batches."""
    real = Ledger.restore

    def restore(self: Ledger, entry: Any, now: float) -> None:
        if isinstance(entry, BatchOpened | BatchResumed):
            entry = msgspec.structs.replace(entry, still_open=())
        real(self, entry, now)

    plant(Ledger, "restore", restore)


def answer_lost(plant: Plant) -> None:
    """What an environment has said is not known to a manager that goes on from a journal."""
    real = Ledger.restore

    def restore(self: Ledger, entry: Any, now: float) -> None:
        if not isinstance(entry, Answered):
            real(self, entry, now)

    plant(Ledger, "restore", restore)


def any_answer(plant: Plant) -> None:
    """Whatever is parked goes on with what is said to it, whichever turn that was about."""

    def awaits(self: Rollout, sequence: int, attempt: int, turn: int) -> bool:
        return self.parked

    plant(Rollout, "awaits", awaits)


def any_attempt(plant: Plant) -> None:
    """What was said to tokens that were discarded since is said to those in their place."""

    def awaits(self: Rollout, sequence: int, attempt: int, turn: int) -> bool:
        return self.parked and (len(self.sequences.ended), self.transcript.turn) == (sequence, turn)

    plant(Rollout, "awaits", awaits)


def restart_lost(plant: Plant) -> None:
    """A response begins anew, but the journal does not record it."""
    real = outbox.Outbox.keep

    def keep(self: outbox.Outbox, entry: journal_entries.Entry) -> None:
        if not isinstance(entry, Redone):
            real(self, entry)

    plant(outbox.Outbox, "keep", keep)


def later_sequences_stay(plant: Plant) -> None:
    """A cut in an earlier sequence leaves those that went on from it."""
    cut = EpisodeSequences.cut
    plant(EpisodeSequences, "cut", lambda self, n: cut(self, max(n, self.tokens_before)))


def prompt_lost(plant: Plant) -> None:
    """The journal has the answer that begins a sequence, but not its prompt."""
    real = outbox.Outbox.keep

    def keep(self: outbox.Outbox, entry: journal_entries.Entry) -> None:
        if isinstance(entry, Answered):
            entry = msgspec.structs.replace(entry, prompt=b"")
        real(self, entry)

    plant(outbox.Outbox, "keep", keep)


def last_sequence_alone(plant: Plant) -> None:
    """A trainer that comes back hears of the last sequence of each response only."""
    real = BatchRecord.results

    def results(self: BatchRecord, samples: Any) -> Iterator[m.FinishedRollout]:
        return (one for one in real(self, samples) if one.last)

    plant(BatchRecord, "results", results)


def first_sequence_unsaid(plant: Plant) -> None:
    """What stays of a response that is disputed is not said again."""
    of_sample, hear, heard = outbox.Outbox.of_sample, UntrustedServers.hear, [False]

    def unsaid(self: outbox.Outbox, message: Any) -> None:
        if not heard[0]:
            of_sample(self, message)

    def disputed(self: UntrustedServers, *args: Any) -> None:
        heard[0] = True
        try:
            hear(self, *args)
        finally:
            heard[0] = False

    plant(outbox.Outbox, "of_sample", unsaid)
    plant(UntrustedServers, "hear", disputed)


def turns_without_limit(plant: Plant) -> None:
    """A turn may have as many tokens as the sequence."""
    plant(Transcript, "room", lambda self, limits: limits.max_tokens - self.num_sampled)


def one_lease_for_all(plant: Plant) -> None:
    """However bad its line is, a server is abandoned as soon as on the best."""
    plant(ConnectionQuality, "lease", lambda self, least, longest, renew: least)


def pessimism(plant: Plant) -> None:
    """Every line is taken for one that loses a tenth, whatever it shows."""
    plant(ConnectionQuality, "losses", 0.1)


def old_echo(plant: Plant) -> None:
    """What a server has heard last is too old because nobody was there to say anything newer."""
    real = Lease.forgive

    def forgive(self: Lease, seconds: float, now: float) -> None:
        real(self, seconds, now)
        self._stalls.clear()

    plant(Lease, "forgive", forgive)


def sent_home_and_forgotten(plant: Plant) -> None:
    """A server that was sent home and does not come back is waited for by nobody."""

    def absent_at(self: Fleet) -> float:
        known = (since for name, since in self._absent.items() if not self.servers[name].doomed)
        return min(known, default=math.inf) + ABSENT_SECONDS

    plant(Fleet, "absent_at", property(absent_at))


def one_score_is_enough(plant: Plant) -> None:
    """What one server says of a teacher is believed."""
    plant(score_items, "AGREEING", 1)


def asked_on_each_stream(plant: Plant) -> None:
    """A server that has not answered yet is asked about the same once more."""
    plant(score_items.ScoreItem, "may_ask", lambda self, server: server not in self.said)


def drafts_twice(plant: Plant) -> None:
    """What drafts came to is counted again with each renewal."""
    real = Books.draft

    def draft(self: Books, *drafts: Any) -> None:
        real(self, *drafts)
        real(self, *drafts)

    plant(Books, "draft", draft)


def old_scores(plant: Plant) -> None:
    """What was asked by a trainer before goes on under the numbers of this one."""
    plant(ScoreItems, "attached", lambda self: None)


PLANTED = {
    lost_ack: "lost what it had taken in",
    double_delivery: "",  # shows in more than one way
    stale_version: "work for weights that it does not hold",
    forgotten_request: "is in 0 places",
    lease_off_by_one: "a lease is over",
    torn_tail: "lost what it had taken in",
    neighbours_version: "",
    older_work_dropped: "",
    nobody_goes_back: "nobody is left for the oldest batch",
    only_the_newest_recovered: "lost what it had taken in",
    answer_lost: "lost what it had taken in",
    any_answer: "",
    any_attempt: "",
    restart_lost: "lost what it had taken in",
    later_sequences_stay: "",
    prompt_lost: "",
    last_sequence_alone: "of a response comes where 0 was due",
    first_sequence_unsaid: "not done",
    turns_without_limit: "resumed though it was over",
    one_lease_for_all: "an honest server was lost: ",
    pessimism: "a good line's lease is long",
    old_echo: "an honest server was lost: unreachable",
    sent_home_and_forgotten: "sent home, and waited for by nobody",
    one_score_is_enough: "a wrong score is believed",
    asked_on_each_stream: "an item waits",
    drafts_twice: "told of",
    old_scores: "scores that were not asked for",
}

# One in hundreds of schedules shows it: the search begins shortly before one that does.
FIRST = {
    double_delivery: 800,
    one_lease_for_all: 190,
    old_echo: 390,
    any_attempt: 600,
    stale_version: 70,
    first_sequence_unsaid: 320,
    sent_home_and_forgotten: 5040,
    old_scores: 100,
}


@pytest.mark.parametrize("mistake", PLANTED, ids=lambda mistake: mistake.__name__)
def test_a_planted_mistake_is_found(mistake: Mistake, plant: Plant) -> None:
    mistake(plant)
    first = FIRST.get(mistake, 0)
    errors = (fails(schedule_of(seed)) for seed in range(first, first + WITHIN))
    found = next(error for error in errors if error is not None)
    assert isinstance(found, AssertionError) and PLANTED[mistake] in str(found)
