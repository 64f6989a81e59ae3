"""The trainer of a simulated run: batches, checkpoints, crashes, and its link to the manager.

It checks all that it is given, bit for bit. What it has said and must say again on a new stream is
what `rlboost_jax.learner.fleet.link.ManagerLink` says again.
"""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from rlboost_jax import messages as m
from rlboost_jax.manager.events import FromTrainer, TrainerGone
from rlboost_jax.sequences.identities import Purpose, sample_number
from tests.manager.fakes import RUN, TEACHER, logprob, manifest, teacher_scores
from tests.schedules.asked import Asked, begin_of
from tests.schedules.environment import Environments, Rules, doubt_of
from tests.schedules.server import REDIAL_SECONDS, Server


class Trainer:
    """Trains `num_batches` and ends the run.

    Batch b is sampled from version max(0, b - `lag`), and is begun as soon as that is there. After
    a crash it begins again at the batch after the last durable one; versions that were made after
    that have the same parameters, or others if `same_bits` is False. One that `extends` asks for
    more prompts with the first response of a batch: one that it needs, one that it trains without
    if need be, and one that is sampled in another way.
    """

    def __init__(
        self,
        world: Any,
        num_batches: int,
        *,
        lag: int = 0,
        rules: Rules | None = None,
        seeding: bool = True,
        extends: bool = False,
        scores: bool = False,
        prompts: int = 2,
        group_size: int = 2,
    ) -> None:
        self.world = world
        self.num_batches, self.prompts, self.group_size = num_batches, prompts, group_size
        self.lag, self.rules = lag, rules or Rules()
        self.reports: list[m.BatchReport] = []
        self.alive = False
        self.done = False
        self.lives = 0
        self.seeding, self.extends, self.scores = seeding, extends, scores
        self.stream = 0
        # By stream, batch and sample: the sequence that comes next.
        self._due: dict[tuple[int, int, int], int] = {}
        self._disputed: set[tuple[int, int, int]] = set()
        self.environments = self._environments()
        self._durable = -1
        self._written = 0.0
        self._flavour = 0
        self._digests: dict[int, str] = {}  # of versions
        self._measuring = sample_number(0, 0, group_size=group_size, purpose="evaluate")
        world.trainer = self

    def version_of(self, batch: int) -> int:
        return max(0, batch - self.lag)

    def _digest(self, version: int) -> str:
        return self._digests.setdefault(version, f"parameters {version} of {self._flavour}")

    def start(self) -> None:
        """A new process, from the last durable checkpoint."""
        self.alive = True
        self.lives += 1
        self.batch = self._durable + 1  # the oldest that is not trained
        self.done = self.batch == self.num_batches
        self.asked: dict[int, Asked] = {}
        self._published = self.version_of(self.batch) - 1
        self._publishes: dict[int, m.Publish] = {}  # that were said, by version
        self._again: dict[str, m.TrainerMessage] = {}
        self.environments = self._environments()
        self._over: list[m.TrainerMessage] = []  # commits not yet said
        self._to_score: dict[int, tuple[int, m.ScoreTokens]] = {}  # sample and item by number
        self._numbers = itertools.count()
        self._next_batch()
        if self.seeding:
            self.engine = Server(self.world, reserved=True)
            self.engine.connect()
        self._dial()

    def crash(self, *, same_bits: bool) -> None:
        self.alive = False
        self._flavour += not same_bits
        if not same_bits:
            durable = range(self._durable + 1)
            self._digests = {v: self._digests[v] for v in self._digests if v in durable}
        self.world.up(self.stream, TrainerGone(self.stream, "killed"))
        if self.seeding:
            self.engine.kill()

    def hear(self, stream: int, message: m.ToTrainer) -> None:
        if not self.alive or stream != self.stream:
            return
        match message:
            case m.FinishedRollout():
                self._finished(message)
            case m.Parked():
                self._parked(message)
            case m.TokenScores():
                self._scored(message)
            case m.ResponsesWithdrawn(samples=samples):
                self._withdrawn(message.batch, m.unpack_ids(samples).tolist())
            case m.BatchReport():
                self._reported(message)
            case m.RequestRefused(reason=reason):
                raise AssertionError(f"the manager refused: {reason}")

    def hung_up(self, stream: int) -> None:
        if self.alive and stream == self.stream and self.world.exit is None:
            self.stream = 0
            life = self.lives
            self.world.later(REDIAL_SECONDS, lambda: self._dial() if life == self.lives else None)

    def _dial(self) -> None:
        if not self.alive:
            return
        if self.world.manager is None:
            life = self.lives
            self.world.later(REDIAL_SECONDS, lambda: self._dial() if life == self.lives else None)
            return
        self.stream = self.world.open(self)
        self._put(m.TrainerHello(run_id=RUN, window=None))
        again = self._again.get
        needed = [p for v, p in self._publishes.items() if v >= self.version_of(self.batch)]
        publishes = needed or list(self._publishes.values())[-1:]
        teachers = [m.Teach(manifests=(TEACHER,))] * self.scores
        batches = [x for asked in self.asked.values() for x in (asked.begin, *asked.extends)]
        batches += [item for _, item in self._to_score.values()]
        for message in (*publishes, *teachers, *batches, again("trained"), again("end")):
            if message is not None:
                self._put(message)
        over, self._over = self._over, []
        for message in over:
            self._say(message)

    def _say(self, message: m.TrainerMessage) -> None:
        """Now, or on the next stream."""
        match message:
            case m.Publish(manifest=said):
                self._publishes[said.version] = message
            case m.ExtendBatch(batch=batch):
                self.asked[batch].extends.append(message)
            case m.BatchTrained():
                self._again["trained"] = message
            case m.EndRun():
                self._again["end"] = message  # a manager that lives is asked to go by a signal
            case m.BatchCommitted() if not self.stream:
                self._over.append(message)
        if self.stream:
            self._put(message)

    def _put(self, message: m.TrainerMessage) -> None:
        self.world.up(self.stream, FromTrainer(self.stream, message))

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        """Unless this life of the trainer has ended by then."""
        life = self.lives
        self.world.later(seconds, lambda: what() if self.alive and life == self.lives else None)

    def _next_batch(self) -> None:
        """Turn to the oldest that is not trained."""
        if self.done:
            self._end()
            return
        self._training = False
        for version in range(self._published + 1, self.batch + 1):
            self._publish(version)
        self._begin(upto=self.batch + self.lag)
        if self.seeding and not self.lag:
            begin = self.asked[self.batch].begin
            self._later(self.world.random.uniform(0.0, 0.1), lambda: self._offer(begin))
        if self._complete(self.asked[self.batch]):
            self._train()

    def _complete(self, asked: Asked) -> bool:
        return asked.complete and (not self.scores or asked.needed <= asked.scored)

    def _publish(self, version: int) -> None:
        """Snapshots are written beside the batch, one after the other."""
        self._published = version
        snapshot = manifest(version, self._digest(version))
        self._written = max(self._written, self.world.now + self.world.random.uniform(0.0, 0.3))
        publish = lambda: self._say(m.Publish(manifest=snapshot))  # noqa: E731
        self._later(self._written - self.world.now, publish)

    def _begin(self, upto: int) -> None:
        """Begin the batches that are not begun yet."""
        for batch in range(max(self.asked, default=self.batch - 1) + 1, upto + 1):
            if batch < self.num_batches:
                version = self.version_of(batch)
                digest = self._digest(version)
                begin = begin_of(batch, version, digest, self.prompts, self.group_size, self.rules)
                needed = set(range(self.prompts * self.group_size))
                self.asked[batch] = Asked(begin, self.rules, self.prompts, needed)
                self._say(begin)

    def _offer(self, begin: m.BeginBatch) -> None:
        if begin.batch == self.batch:
            self.engine.offer(begin.version, begin.params_digest)

    def _finished(self, result: m.FinishedRollout) -> None:
        asked = self.asked.get(result.work.batch)
        assert asked is not None, (
            f"a rollout of batch {result.work.batch}, and {list(self.asked)} are open"
        )
        if result.work.purpose == "train" and result.work.prompt >= asked.prompts_known:
            return  # an earlier trainer has asked for it
        work = result.work
        sample, key = work.sample, (self.stream, work.batch, work.sample)
        known = asked.said.get(sample, [])
        if key in self._disputed and work.sequence > len(known):
            return  # on its way as what was before it was disputed: all comes again
        self._check_order(result, key, known)
        again = sample in asked.whole  # said again on a new stream
        asked.add(result)
        expected = asked.expected(work)
        wrong = self._first_wrong(asked, sample)
        if wrong is not None:
            assert self.world.lied, "tokens of other parameters than the batch says"
            asked.made_up.add(sample)
            if wrong is result:
                found = m.unpack_tokens(result.tokens).tolist()
                self._doubt(result, found, list(expected[work.sequence].tokens))
            return
        asked.made_up.discard(sample)
        asked.check(result, expected[work.sequence], routed=bool(self.world.settings.routing))
        if not result.last:
            return
        asked.whole.add(sample)
        if self.scores and not again:
            self._ask_scores(asked, sample)
        if self.extends and asked.prompts_known == self.prompts:
            self._extend(asked)
        oldest = asked.begin.batch == self.batch
        if oldest and self._complete(asked) and not (again or self._training):
            self._train()

    def _ask_scores(self, asked: Asked, sample: int) -> None:
        """Ask for scores of the first sequence of a response that is whole and right."""
        said, number = asked.said[sample][0], next(self._numbers)
        prompt = m.pack_tokens([said.work.prompt, asked.begin.batch, 1])
        item = m.ScoreTokens(
            number=number,
            batch=asked.begin.batch,
            teacher=TEACHER.params_digest,
            temperature=1.0,
            first=3,
            tokens=prompt + said.tokens,
        )
        self._to_score[number] = sample, item
        if self.stream:
            self._put(item)

    def _scored(self, scores: m.TokenScores) -> None:
        """A score is right, whatever servers say, and comes once a stream."""
        assert scores.number in self._to_score, "scores that were not asked for"
        sample, item = self._to_score.pop(scores.number)
        tokens = m.unpack_tokens(item.tokens).tolist()
        assert scores.logprobs == teacher_scores(tokens[item.first :]), "a wrong score is believed"
        asked = self.asked[item.batch]
        if sample in asked.whole:
            asked.scored.add(sample)
        self.world.seen.add("scored")
        if item.batch == self.batch and self._complete(asked) and not self._training:
            self._train()

    def _check_order(
        self, result: m.FinishedRollout, key: tuple[int, int, int], known: list[m.FinishedRollout]
    ) -> None:
        """The sequences of a response come in order, and again only for a reason."""
        sequence, due = result.work.sequence, self._due.get(key, 0)
        self._due[key] = sequence + 1
        if key in self._disputed or sequence == due:
            return
        assert sequence < due, f"sequence {sequence} of a response comes where {due} was due"
        assert result.attempt > known[sequence].attempt, "delivered twice"

    def _first_wrong(self, asked: Asked, sample: int) -> m.FinishedRollout | None:
        """The first sequence with tokens that were not sampled so; what follows it goes on from
        what it is, and nobody can tell that it is wrong."""
        said = asked.said[sample]
        right = asked.expected(said[0].work)
        for number, result in enumerate(said):
            found = m.unpack_tokens(result.tokens).tolist()
            if number >= len(right) or found != list(right[number].tokens):
                return result
        return None

    def _parked(self, parked: m.Parked) -> None:
        asked = self.asked.get(parked.work.batch)
        assert asked is not None, f"parked in batch {parked.work.batch}, and {list(self.asked)}"
        tokens = m.unpack_tokens(parked.tokens).tolist()
        sequences, number = asked.expected(parked.work), parked.work.sequence
        right = number < len(sequences) and tokens == list(sequences[number].tokens[: len(tokens)])
        assert right or self.world.lied, "parked with the wrong tokens"
        assert parked.turn == len(parked.runs) // 2 < self.rules.turns - 1
        if right:
            ends = [0, *itertools.accumulate(parked.runs or (len(tokens),))]
            sampled = [tokens[a:b] for a, b in itertools.pairwise(ends)][::2]
            values = [logprob(token) for row in sampled for token in row]
            assert parked.logprobs == m.pack_logprobs(values)
        self.world.seen.add("parked")
        self.environments.take(parked)

    def _environments(self) -> Environments:
        """Environments of this life; habits that nobody has met yet stay."""
        before = getattr(self, "environments", None)
        made = Environments(
            self.world.random,
            self._later,
            self._put,
            lambda: self.stream,
            several=self.rules.several,
        )
        if before is not None:
            made.habits, made.seen = before.habits, before.seen
        return made

    def _withdrawn(self, batch: int, samples: list[int]) -> None:
        """They are generated again, and delivered once more."""
        asked = self.asked[batch]
        for sample in samples:
            assert sample == self._measuring, "a response that is trained on"
            self._due.pop((self.stream, batch, sample), None)
            asked.forget(sample)

    def _extend(self, asked: Asked) -> None:
        """Some prompts more, in as many messages."""
        first, batch = self.prompts, asked.begin.batch
        asked.prompts_known = first + 2
        greedy = msgspec.structs.replace(asked.begin.sampling, temperature=0.0)
        for prompt, samples, sampling in ((first, 0, None), (first + 1, 0, None), (0, 1, greedy)):
            purpose: Purpose = "train" if sampling is None else "evaluate"
            tokens = m.pack_tokens([prompt, batch, 1])
            request = m.PromptRequest(prompt=prompt, tokens=tokens, purpose=purpose)
            self._say(
                m.ExtendBatch(batch=batch, prompts=(request,), samples=samples, sampling=sampling)
            )
            if prompt != first + 1:
                size = self.group_size
                asked.needed |= {
                    sample_number(prompt, place, group_size=size, purpose=purpose)
                    for place in range(samples or size)
                }

    def _doubt(self, result: m.FinishedRollout, found: list[int], tokens: list[int]) -> None:
        """As the learner would: a while later, on whatever stream there is then."""
        sample, batch = result.work.sample, result.work.batch
        doubt = doubt_of(result, found, tokens)

        def say() -> None:
            trained = batch == self.batch and self._training
            if self.stream and batch in self.asked and not trained:
                self.asked[batch].forget(sample)
                self._disputed.add((self.stream, batch, sample))
                self._say(doubt)

        self._later(self.world.random.uniform(0.0, 0.3), say)

    def _train(self) -> None:
        self._training = True  # nothing is disputed after the last micro-batch
        wait = self.world.random.uniform(0.0, 0.5)
        batch = self.batch
        trained = m.BatchTrained(batch=batch, train_wait_seconds=wait, train_seconds=wait + 0.1)

        def say() -> None:
            # The next version may be out, and its batch begun, before the manager hears of this.
            if self.lag and self.world.random.random() < 0.5:
                self._publish(batch + 1)
                self._begin(upto=batch + 1 + self.lag)
            self._say(trained)

        self._later(wait, say)

    def _reported(self, report: m.BatchReport) -> None:
        if report.batch < self.batch:
            return  # asked for again on a new stream
        assert report.batch == self.batch
        asked = self.asked.pop(report.batch)
        self._to_score = {n: x for n, x in self._to_score.items() if x[1].batch != report.batch}
        if not self.world.forgetful:
            measured = asked.sizes.pop(self._measuring, 0)
            assert report.tokens_measured == measured
            assert report.tokens_delivered in asked.possibly_delivered()
        assert report.tokens_generated == report.tokens_delivered + report.tokens_lost
        assert report.tokens_generated == report.tokens_reserved + report.tokens_preemptible
        self.reports.append(report)
        self._again.pop("trained", None)
        batch = self.batch
        self._later(self.world.random.uniform(0.0, 0.5), lambda: self._commit(batch))
        self.batch += 1
        self.done = self.batch == self.num_batches
        if not self.done:
            self._next_batch()

    def _commit(self, batch: int) -> None:
        self._durable = batch
        self._say(m.BatchCommitted(batch=batch))
        if self.done and batch == self.num_batches - 1:
            self._end()

    def _end(self) -> None:
        self._say(m.EndRun(reason="done", over=True))
