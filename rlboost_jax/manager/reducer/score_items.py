"""Sequences that servers score for teachers: who is asked, and which scores are accepted.

The trainer asks for items, each a sequence for one teacher. Each item is scored by two servers. A
score has the same bits on every server of a deterministic run, so two equal answers are accepted.
While no two are equal, another server is asked. A server that gave another answer is quarantined,
and a lost server's items go to others.

The journal has nothing of this: on each of its streams the trainer asks again for what is missing.

Invariant: the trainer receives no score that fewer than two servers have found. Two are two by
their `identity`, which a dishonest process may have several of.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable
from typing import Final, assert_never

import msgspec
import numpy as np

from rlboost_jax.manager.reducer.batch_checks import ProtocolError
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.server_names import identity
from rlboost_jax.messages import (
    Manifest,
    ScoreTokens,
    Teach,
    Teaches,
    TokenScores,
    unpack_logprobs,
    unpack_tokens,
)
from rlboost_jax.sequences.shared_limits import AGREEING

PENDING: Final = 2  # items at a server: one that it scores, and the next
MOST_ROUNDING: Final = 1e-3  # nats by which a log-probability may be above 0


class ScoreItem:
    """A sequence to be scored, with the answers so far.

    Attributes:
        asked: the trainer's question.
        given: servers (`identity`) that have not answered yet, by the number of their question.
        said: name and scores of each server that has answered, by `identity`.
    """

    __slots__ = ("asked", "given", "said")

    def __init__(self, asked: ScoreTokens) -> None:
        self.asked = asked
        self.given: dict[int, str] = {}
        self.said: dict[str, tuple[str, bytes]] = {}

    @property
    def wanting(self) -> int:
        """Number of further servers to ask, assuming that all answers to come agree."""
        most = max(Counter(logprobs for _, logprobs in self.said.values()).values(), default=0)
        return AGREEING - most - len(self.given)

    def may_ask(self, server: str) -> bool:
        """Return whether a server was not asked yet."""
        return server not in self.said and server not in self.given.values()

    def give(self, number: int, server: str) -> None:
        """Record a question to a server."""
        self.given[number] = server

    def free(self, number: int) -> str:
        """Remove a question that is over, and return the server that had it."""
        return self.given.pop(number)

    def answer(self, server: str, name: str, logprobs: bytes) -> None:
        """Record the scores that a server of a name has found."""
        self.said[server] = name, logprobs

    def disbelieve(self, server: str) -> None:
        """Discard the answer of a server."""
        self.said.pop(server, None)


class ScoreItems:
    """The items that are not scored yet.

    Args:
        quarantine: distrusts the server of a name from now on, for a reason.
    """

    def __init__(
        self, settings: Settings, owners: Owners, quarantine: Callable[[str, str, float], None]
    ) -> None:
        self._slot_tokens, self._vocab_size = settings.slot_tokens, settings.vocab_size
        self._outbox, self._roster, self._ledger = owners.outbox, owners.roster, owners.ledger
        self._quarantine = quarantine
        self._teach = Teach(manifests=())
        self._items: dict[int, ScoreItem] = {}  # by the trainer's number, the oldest first
        self._by_placement: dict[int, ScoreItem] = {}  # by the number of a server's question
        self._unsettled = False  # whether some server may have room for an item
        self._batches: tuple[int, ...] = ()  # batches that were open at the last `settle`

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """Snapshots of the run's teachers."""
        return self._teach.manifests

    @property
    def items(self) -> Iterable[ScoreItem]:
        """Items that are not scored yet, the oldest first."""
        return self._items.values()

    def attached(self) -> None:
        """Forget all items: a trainer has connected, and asks again for what it needs."""
        self._keep(())

    def teach(self, message: Teach) -> None:
        """Have all servers hold the teachers that the trainer names."""
        if message == self._teach:
            return
        self._teach = message
        for instance in self._roster:
            instance.activity.scores.forget_teachers()
            self.welcome(instance)

    def welcome(self, instance: Instance) -> None:
        """Have a server hold the teachers; the trainer's own engines hold none."""
        if self._teach.manifests and not instance.reserved:
            self._outbox.send(instance.stream, self._teach)

    def hear(self, instance: Instance, message: Teaches | TokenScores, now: float) -> str:
        """Process a server's message. Returns the mistake in it, or ""."""
        match message:
            case Teaches():
                self._teaches(instance, message)
                return ""
            case TokenScores():
                return self._scored(instance, message, now)
            case _:
                assert_never(message)

    def _teaches(self, instance: Instance, message: Teaches) -> None:
        known = {manifest.params_digest for manifest in self._teach.manifests}
        scores, whole = instance.activity.scores, sum(m.num_bytes for m in self._teach.manifests)
        held = known.intersection(message.digests)
        self._roster.pay_egress(scores.taught(held, message.fetched_bytes, whole))
        self._outbox.record("teaches", instance.name, count=len(scores.teachers), total=len(known))
        self._unsettled = True

    def ask(self, item: ScoreTokens) -> None:
        """Accept an item from the trainer. Raises ProtocolError."""
        if item.batch not in self._ledger.open:
            return  # the batch is trained or was abandoned
        if problem := self._problem(item):
            raise ProtocolError(f"a sequence to be scored: {problem}")
        self._items.setdefault(item.number, ScoreItem(item))
        self._unsettled = True

    def _scored(self, instance: Instance, message: TokenScores, now: float) -> str:
        asked = instance.activity.scores.answered(message.number, now)
        if asked is None:
            return f"scores of item {message.number}, which is not the one that is due"
        self._unsettled = True
        problem = _problem_of(message.logprobs, asked)
        item = self._by_placement.pop(message.number, None)
        if item is not None:  # else it is no longer needed
            server = item.free(message.number)
            if not problem:
                item.answer(server, instance.name, message.logprobs)
                self._decide(item, now)
        return problem

    def lost(self, instance: Instance) -> None:
        """Free the items of a server whose stream is over for others."""
        for number in instance.activity.scores.release():
            item = self._by_placement.pop(number, None)
            if item is not None:
                item.free(number)
        self._unsettled = True

    def disbelieve(self, name: str) -> None:
        """Discard the answers of the server of a name about open items."""
        server = self._roster.names.owner(name) or ""
        for item in self._items.values():
            item.disbelieve(server)
        self._unsettled = True

    def settle(self, now: float) -> None:
        """Send items to servers with room that hold their teacher, the oldest batch first."""
        if (batches := tuple(self._ledger.open)) != self._batches:
            self._batches = batches
            self._keep(batches)
        if not self._unsettled or not self._roster.trusting:
            return
        self._unsettled = False
        free = [i for i in self._roster if _has_room(i)]
        if not free:  # as at nearly all events of a batch whose responses come at once
            return
        items = sorted(self._items.values(), key=lambda item: item.asked.batch)
        free.sort(key=lambda i: (len(i.activity.scores.held), len(i.held), i.order))
        for instance in free:
            who = identity(instance.hello)
            for item in items:
                if len(instance.activity.scores.held) >= PENDING:
                    break
                teaches = item.asked.teacher in instance.activity.scores.teachers
                if teaches and item.may_ask(who) and item.wanting > 0:
                    self._give(item, instance, who, now)

    def _give(self, item: ScoreItem, instance: Instance, who: str, now: float) -> None:
        number = self._ledger.next_request()
        placed = msgspec.structs.replace(item.asked, number=number)
        item.give(number, who)
        self._by_placement[number] = item
        instance.activity.scores.hold(placed, now)
        self._roster.watch(instance)
        self._outbox.send(instance.stream, placed)

    def _decide(self, item: ScoreItem, now: float) -> None:
        votes = Counter(logprobs for _, logprobs in item.said.values())
        (found, count), *_ = votes.most_common(1)
        if count < AGREEING:
            return
        self._outbox.to_trainer(TokenScores(number=item.asked.number, logprobs=found))
        self._drop(item)
        for name, logprobs in item.said.values():
            if logprobs != found:
                reason = "two other servers agree on other scores of a teacher"
                self._quarantine(name, reason, now)

    def _keep(self, batches: Container[int]) -> None:
        """Forget the items of other batches."""
        for item in [i for i in self._items.values() if i.asked.batch not in batches]:
            self._drop(item)

    def _drop(self, item: ScoreItem) -> None:
        """Forget an item. Its servers still answer, which changes nothing."""
        del self._items[item.asked.number]
        for number in item.given:
            del self._by_placement[number]

    def _problem(self, item: ScoreTokens) -> str:
        if item.teacher not in {manifest.params_digest for manifest in self._teach.manifests}:
            return f"there is no teacher {item.teacher!r}"
        if len(item.tokens) % 4 or not 0 < 4 * item.first < len(item.tokens):
            return f"{len(item.tokens)} bytes of tokens, of which {item.first} tokens are given"
        if len(item.tokens) > 4 * self._slot_tokens:
            return f"{len(item.tokens) // 4} tokens where a slot has {self._slot_tokens}"
        tokens = unpack_tokens(item.tokens)
        if not 0 <= tokens.min() <= tokens.max() < self._vocab_size:
            return f"a token is not in 0..{self._vocab_size - 1}"
        return ""


def _has_room(instance: Instance) -> bool:
    scores = instance.activity.scores
    return bool(scores.teachers) and len(scores.held) < PENDING and not instance.departure.leaving


def _problem_of(logprobs: bytes, asked: ScoreTokens) -> str:
    """Why these are no log-probabilities of those tokens, or ""."""
    expected = len(asked.tokens) - 4 * asked.first
    if len(logprobs) != expected:
        return f"{len(logprobs)} bytes of scores where {expected} were due"
    values = unpack_logprobs(logprobs)
    if not (np.isfinite(values) & (values <= MOST_ROUNDING)).all():
        return "a score that is no log-probability"
    return ""
