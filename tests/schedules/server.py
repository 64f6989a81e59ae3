"""A rollout server in virtual time: slots, a queue, dispatches of a few tokens, one version.

Its tokens are those of `fakes.token`, so that any that are mixed up show.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from rlboost_jax import messages as m
from rlboost_jax.manager.events import FromServer, ServerGone
from rlboost_jax.providers.base import Exited
from rlboost_jax.rollout.renewal_timing import RenewalTiming
from rlboost_jax.sequences.sequence import runs_after_prompt
from rlboost_jax.sequences.shared_limits import FIRST_RENEWALS
from tests.manager.fakes import (
    MAX_TOKENS,
    STOP,
    TEACHER,
    VOCAB,
    batch,
    hello,
    lead,
    length,
    response,
    teacher_scores,
    token,
)
from tests.schedules.drafts import MOST, DraftSums, Proposals, Verified, verified
from tests.schedules.environment import episode, in_turn
from tests.schedules.lies import Lie, chosen, other
from tests.schedules.lines import line_of
from tests.schedules.peers import check_sources, offer_of, used

REDIAL_SECONDS = 0.1


@dataclass
class Held:
    """A rollout at a server, in one of its turns.

    Attributes:
        position: in its turn.
        before: tokens that were sampled in the turns of its sequence before.
    """

    request: m.GenerateRequest
    turn: int
    position: int
    before: int
    digest: str  # of the weights that it is sampled from
    astray: bool  # goes on from tokens that another made up
    lead: int  # routes that go with its first token here, besides that token's own

    def __post_init__(self) -> None:
        work, left = self.request.work, MAX_TOKENS - self.before
        self._key = self.digest, work.batch, in_turn(work.sample, self.turn, work.sequence)
        self._most = min(left, self.request.sampling.turn_tokens or left)
        self._due = min(self._most, length(*self._key))

    def verify(self, steps: int, kind: Proposals, chance: random.Random) -> Verified:
        """How many tokens come next in so many decode steps with drafts."""
        return verified(kind, self._key, self.position, self.whole, steps, chance)

    def sample(self, count: int, lie: Lie | None) -> list[int]:
        """The next tokens, at most `count`."""
        key = self._key
        upto = min(self.whole, self.position + count)
        if upto <= length(*key):
            row = list(response(*key)[self.position : upto])
        else:
            row = [token(*key, i) for i in range(self.position, upto)]
        if self.astray:
            row = [other(t) for t in row]
        elif lie is not None:
            row = self._forged(lie, row)
            upto = self.position + len(row)
        self.position, self.lead = upto, 0
        return row

    def _forged(self, lie: Lie, row: list[int]) -> list[int]:
        """The same up to the first token that the server chooses itself. What follows a wrong token
        is another response."""
        for place, right in enumerate(row):
            forged = chosen(lie, right, self._key, self.position + place)
            if forged == right:
                continue
            self.astray = True
            if forged == STOP:
                self._most = self.position + place + 1
                return [*row[:place], STOP]
            return [*row[:place], forged, *map(other, row[place + 1 :])]
        return row

    def wrong(self, count: int) -> list[int]:
        """As many tokens as come next, of other parameters; its own are still to come."""
        upto = min(self.whole, self.position + count)
        return [VOCAB - 1] * (upto - self.position)

    @property
    def whole(self) -> int:
        """Tokens of its turn."""
        return self._most if self.astray else self._due

    @property
    def over(self) -> bool:
        return self.position == self.whole


class Server:
    """
    Args:
        world: what `tests.schedules.world.World` is.
        nonce: that the manager asked for; "" if the server was started by hand.
        reserved: the trainer's own engine: it is handed its weights, or with a lag announced them.
    """

    def __init__(
        self, world: Any, *, name: str = "", nonce: str = "", reserved: bool = False
    ) -> None:
        self.world, self.name, self.reserved = world, name, reserved
        self.nonce = nonce or f"by-hand-{len(world.servers)}"
        self.slots = self.most_slots = 2
        self._share: m.Capacity | None = None  # what it is to say of it, between two dispatches
        # Every third has pages for both slots, every third for fewer as their responses grow.
        self.cache_tokens = (0, 2**20, world.settings.slot_tokens)[len(world.servers) % 3]
        self.alive = True
        self.granted = False  # the provider has said so
        self.frozen = False
        self.stalled = False  # renews its lease and does nothing else
        self.bounces = False  # gives back what it is given
        self.harmed = False  # by a fault of its own: it may be lost for silence or idleness
        amount = world.lines.get(len(world.servers)) if not reserved else None
        self.line = None if amount is None else line_of(amount, world.seed, len(world.servers))
        self._turn = 0  # of its renewals
        self.stays = False  # even when asked to leave
        self.lie: Lie | None = None
        self.ever_lied = False
        self.proposals = Proposals.LIKELY  # if servers draft
        self._drafts = DraftSums()
        self.misscores = False  # says other scores of teachers than it finds
        self.teaches = len(world.servers) % 4 > 0  # it has room for a teacher
        self.streams: list[int] = []  # all that it has had
        self.seconds = world.random.uniform(0.02, 0.1)  # a dispatch
        self.slow = 1.0  # times as long
        self.bad_pulls = 0  # that will fail, besides those of chance
        self.elsewhere = 0  # dispatches that it will sample from another version
        self.stream = 0
        self._gone = False  # the stream has ended and the manager knows
        self._missed: list[Callable[[], None]] = []
        self.version, self.digest = -1, ""
        self._ahead: m.Manifest | None = None  # that it was to pull beforehand
        self.peer = offer_of(world, reserved=reserved)
        self.called = ""  # its name of this stream
        world.servers.append(self)

    def connect(self) -> None:
        if not self.alive:
            return
        if self.frozen:
            self._missed.append(self.connect)
            return
        if self.world.manager is None:  # nobody listens
            self.world.later(REDIAL_SECONDS, self.connect)
            return
        self.stream = self.world.open(self)
        self.streams.append(self.stream)
        self.held: dict[int, Held] = {}
        self._to_score: list[m.ScoreTokens] = []
        self._asked: list[int] = []  # to be released after the dispatch
        self._busy = self._gone = False
        self._echo = 0.0  # the newest stamp of the manager
        self._sequence = 0
        self._pull = 0
        self._pulling: m.Manifest | None = None
        self._renewals, self._answers = RenewalTiming(lambda: 0.0), 0
        name, reserved = self.name, self.reserved
        slot_tokens = self.world.settings.slot_tokens
        self.say(
            hello(
                instance=name,
                reserved=reserved,
                slots=self.most_slots,
                slot_tokens=slot_tokens,
                nonce=self.nonce,
                cache_tokens=self.cache_tokens,
                peer=self.peer,
                zone="z" if self.peer is None else f"z{self.world.servers.index(self) % 2}",
            )
        )
        self._sources: m.FetchFrom | None = None
        if self.reserved and self.version >= 0:
            self._say_ready()
        if self._share is not None and not self.stalled:
            self.slots, self._share = self._share.slots, None
        if self.slots < self.most_slots:
            self.say(self._capacity(self.slots))
        self._renew(self.stream)

    def share(self, slots: int, *, frozen: bool = False) -> None:
        """Somebody else leaves it so many slots; what has none goes back, the newest first."""
        if self.frozen:
            self._missed.append(lambda: self.share(slots, frozen=frozen))
            return
        self._share = self._capacity(slots, frozen)
        if self.alive and self.stream and not (self._gone or self._busy or self.stalled):
            self._resize()

    def _capacity(self, slots: int, frozen: bool = False) -> m.Capacity:
        cache = min(self.cache_tokens, slots * self.world.settings.slot_tokens)
        return m.Capacity(slots=slots, cache_tokens=cache, frozen=frozen, reason="tenant")

    def _resize(self) -> None:
        if self._share is None:
            return
        said, self._share = self._share, None
        grown, self.slots = said.slots > self.slots, said.slots
        back = list(self.held)[self.slots :]
        for request_id in back:
            del self.held[request_id]
        self.say(msgspec.structs.replace(said, request_ids=m.pack_ids(back)))
        if grown:
            self._dispatch()

    def say(self, message: m.ServerMessage) -> None:
        self.world.say(self, FromServer(self.stream, message))

    # Faults

    def kill(self, why: str = "killed") -> None:
        if not self.alive:
            return
        self.alive = False
        self.world.up(self.stream, ServerGone(self.stream, why))
        if self.granted:  # else the provider says so together
            exited = Exited(self.name, self.nonce, why)
            self.world.later(0.05, lambda: self.world.deliver(exited))

    def notice(self) -> None:
        """SIGTERM: what there is has been sent; goodbye."""
        if self.alive and not (self._gone or self.frozen or self.stalled) and self.stream:
            self.say(m.Goodbye(reason="SIGTERM"))
        self.kill()

    def announce_end(self, seconds: float) -> None:
        """Its machine goes then, it has heard."""
        if self.alive and not (self._gone or self.frozen) and self.stream:
            self.say(m.Notice(seconds=seconds, reason="the market"))

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        if not self.frozen:
            return
        self.frozen = False
        missed, self._missed = self._missed, []
        for what in missed:
            what()
        if self.alive and self.stream:
            self._renew(self.stream)

    # What it hears

    def hear(self, stream: int, message: m.ToServer) -> None:
        if self._absent(stream, lambda: self.hear(stream, message)):
            return
        match message:
            case m.Generate(requests=requests, params_digest=digest):
                for request in requests:
                    self._take(request, digest)
                self._dispatch()
            case m.Release(request_ids=ids):
                self._asked += m.unpack_ids(ids).tolist()
                if not (self._busy or self.stalled):
                    self._release()
            case m.Announce(manifest=chosen):
                if self.world.trainer.lag and (chosen.version, chosen.params_digest) == (
                    self.version,
                    self.digest,
                ):  # nothing to load: nothing is given back
                    self._pull, self._pulling = self._pull + 1, None
                    self._say_ready()
                    return
                # What was being pulled may be on its way into the engine and past recall.
                if self._pulling and not self._busy and self.world.random.random() < 0.3:
                    self._load(self._pulling.version, self._pulling.params_digest)
                self._pull, self._pulling = self._pull + 1, chosen
                self._fetch(self.stream, chosen, self._pull)
            case m.Prefetch(manifest=likely):
                self._ahead = likely
            case m.FetchFrom():
                check_sources(self, message)
                self._sources = message
            case m.Teach(manifests=teachers) if not self.stalled:
                assert teachers == (TEACHER,) and not self.reserved
                self._teach(self.stream)
            case m.ScoreTokens():
                assert self.teaches, "it has no teacher"
                self._to_score.append(message)
                if len(self._to_score) == 1:
                    self._score(self.stream)
            case m.Welcome(stamp=stamp, instance=called):
                self._echo, self.called = stamp, called
            case m.Renewed(stamp=stamp):
                self._echo = stamp
                if self.world.measured:
                    self._answered()
            case m.Leave() if not (self.reserved or self.stays):
                self.say(m.Goodbye(reason="asked to"))
                self.kill("asked to leave")

    def hung_up(self, stream: int) -> None:
        """The stream has ended on this side: begin another."""
        if self._absent(stream, lambda: self.hung_up(stream)) or self._gone:
            return
        self._gone = True
        self.world.later(REDIAL_SECONDS, self.connect)

    def offer(self, version: int, digest: str) -> None:
        """The trainer's own engine is handed its weights; it takes them between dispatches."""
        self._offered = version, digest
        if not self.stream or self._busy:
            if self.stream:
                self._asked += list(self.held)
            self.world.later(0.02, lambda: self.offer(*self._offered))
        elif self.alive:
            self._load(version, digest)
            self._say_ready()

    def _absent(self, stream: int, what: Callable[[], None]) -> bool:
        if self.frozen:
            self._missed.append(what)
        return self.frozen or not self.alive or stream != self.stream

    def _take(self, request: m.GenerateRequest, digest: str) -> None:
        if (
            self.bounces
            or not self.slots
            or (request.version, digest) != (self.version, self.digest)
        ):
            self._asked.append(request.request_id)
            if not (self._busy or self.stalled):
                self._release()
            return
        had = m.unpack_tokens(request.response_tokens).tolist()
        work, prompt = request.work, m.unpack_tokens(request.prompt_tokens).tolist()
        sequences = episode(self.digest, work.batch, work.sample, self.world.trainer.rules)
        expected = sequences[min(work.sequence, len(sequences) - 1)]
        astray = work.sequence >= len(sequences) or had != list(expected.tokens[: len(had)])
        astray |= work.sequence > 0 and prompt != list(expected.prompt)
        assert not astray or self.world.lied, "resumed with the wrong tokens"
        runs = runs_after_prompt(request.runs, len(had))
        turn = len(runs) // 2
        assert astray or runs[: 2 * turn] == expected.runs[: 2 * turn], "of other turns"
        position, before = sum(runs[2 * turn :]), sum(runs[: 2 * turn : 2])
        held = Held(request, turn, position, before, self.digest, astray, lead(request))
        assert not held.over, "resumed though it was over"
        self.held[request.request_id] = held

    def _teach(self, stream: int) -> None:
        def done() -> None:
            if not (self._absent(stream, done) or self.stalled):
                self.say(m.Teaches(digests=(TEACHER.params_digest,) * self.teaches))

        self.world.later(self.world.random.uniform(0.05, 0.3), done)

    def _score(self, stream: int) -> None:
        """One after the other, in between two dispatches."""

        def done() -> None:
            if self._absent(stream, done):
                return
            if self.stalled:
                self.world.later(self.seconds, done)
                return
            item = self._to_score.pop(0)
            found = teacher_scores(m.unpack_tokens(item.tokens).tolist()[item.first :])
            if self.misscores:
                wrong = m.unpack_logprobs(found) - (1 + self.world.servers.index(self))
                found = m.pack_logprobs(wrong)
            self.say(m.TokenScores(number=item.number, logprobs=found))
            if self._to_score:
                self._score(stream)

        self.world.later(self.seconds * self.slow, done)

    def _fetch(self, stream: int, chosen: m.Manifest, pull: int) -> None:
        def done() -> None:
            if self._absent(stream, done) or pull != self._pull or self.stalled:
                return
            if self._busy:
                self._asked += list(self.held)
                self.world.later(0.02, done)
                return
            if self.bad_pulls or self.world.random.random() < 0.1:
                self.bad_pulls = max(0, self.bad_pulls - 1)
                self.say(m.WeightsRejected(version=chosen.version, reason="one bit flipped"))
                self._fetch(stream, chosen, pull)
                return
            self._pulling = None
            self._load(chosen.version, chosen.params_digest)
            self._say_ready()
            if self._sources is not None:
                self.say(used(self, self._sources))

        near = self.reserved or chosen == self._ahead  # nothing comes over a line
        over_line = 0.0 if near or self.line is None else self.line.fetch_seconds()
        seconds = 0.02 if near else self.world.random.uniform(0.05, 0.3)
        self.world.later(seconds + over_line, done)

    def _load(self, version: int, digest: str) -> None:
        """Give back what is held and swap the weights; the engine is idle."""
        self._asked += list(self.held)
        self._release()
        self.version, self.digest = version, digest

    def _say_ready(self) -> None:
        self.say(m.Ready(version=self.version, params_digest=self.digest))

    # What it does

    def _renew(self, stream: int, turn: int = 0) -> None:
        """
        Args:
            turn: of a renewal that is void once another has been said; 0: none.
        """
        if not self.alive or self.frozen or stream != self.stream or self._gone:
            return
        if turn and turn != self._turn:
            return
        trip = 0.0
        if self.world.measured:
            trip = self._renewals.take_longest()
            self._renewals.asked(self.world.now)
            self._turn += 1
        self.say(m.Renew(echo=self._echo, round_trip=trip, drafts=self._drafts.take()))
        seconds, turn = self.world.settings.manager.renew_seconds, self._turn
        self.world.later(seconds, lambda: self._renew(stream, turn))

    def _answered(self) -> None:
        """As in `rlboost_jax.rollout.renewal_timing`, the first follow each other at once."""
        self._renewals.answered(self.world.now)
        self._answers += 1
        if self._answers < FIRST_RENEWALS:
            self._renew(self.stream)

    def _running(self) -> list[tuple[int, Held]]:
        return list(itertools.islice(self.held.items(), self.slots))

    def _dispatch(self) -> None:
        if self._busy or not self.held:
            return
        self._busy = True
        self._send([], [])
        self._go_on()

    def _go_on(self) -> None:
        stream = self.stream
        plan = [(r, h, self.world.random.randint(1, 4)) for r, h in self._running()]
        if self.world.drafts:
            plan = [(r, h, self._verify(h, steps)) for r, h, steps in plan]

        def done() -> None:
            if self._absent(stream, done):
                return
            if self.stalled:
                self.world.later(self.seconds, done)
                return
            rows, leads = [], [held.lead for _, held, _ in plan]
            version = plan[0][1].request.version
            if self.elsewhere:
                self.elsewhere -= 1
                version += 1 if version == 0 or self.elsewhere else -1
                rows = [(r, held.wrong(count)) for r, held, count in plan]
            for request_id, held, count in () if rows else plan:
                rows.append((request_id, held.sample(count, self.lie)))
                if held.over:
                    self.held.pop(request_id, None)
            for request_id in self._asked:
                self.held.pop(request_id, None)
            shared, self._share = self._share, None
            back = [] if shared is None else list(self.held)[shared.slots :]
            for request_id in back:
                del self.held[request_id]
            if shared is not None:
                self.slots = shared.slots
            self._busy = bool(self.held)
            self._send(rows, leads, version=version)
            self._asked, asked = [], self._asked
            if asked:
                self.say(m.Released(request_ids=m.pack_ids(asked)))
            if shared is not None:
                self.say(msgspec.structs.replace(shared, request_ids=m.pack_ids(back)))
            if self._busy:
                self._go_on()

        self.world.later(self.seconds * self.slow * self.world.random.uniform(0.7, 1.3), done)

    def _verify(self, held: Held, steps: int) -> int:
        """Tokens that a rollout yields in so many steps with drafts."""
        found = held.verify(steps, self.proposals, self.world.random)
        self._drafts.add(found)
        return found.tokens

    def _release(self) -> None:
        ids, self._asked = self._asked, []
        for request_id in ids:
            self.held.pop(request_id, None)
        if ids:
            self.say(m.Released(request_ids=m.pack_ids(ids)))

    def _send(
        self, rows: list[tuple[int, list[int]]], leads: list[int], version: int | None = None
    ) -> None:
        """A token batch with what the next dispatch may yield."""
        running = len(self._running()) if self._busy else 0
        message = batch(
            self._sequence,
            self.version if version is None else version,
            rows,
            in_flight=4 * running * (1 + MOST * self.world.drafts),
            running=running,
            waiting=len(self.held) - running if self._busy else 0,
            leads=leads if self.world.settings.routing else None,
        )
        self._sequence += 1
        self.say(message)
