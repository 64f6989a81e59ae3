"""The trainer of a simulated run: steps, checkpoints, crashes, and its link to the manager.

It checks all that it is given, bit for bit. What it has said and must say again on a new stream is
what `rlboost_jax.learner.link.ManagerLink` says again.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from rlboost_jax import messages as m
from rlboost_jax.manager.events import FromTrainer, TrainerGone
from rlboost_jax.sequences.identities import Purpose, sample_number
from tests.manager.fakes import RUN, begin_batch, manifest, response, response_logprobs, routes
from tests.simulate.server import REDIAL_SECONDS, Server


@functools.cache
def begin_of(step: int, flavour: int, prompts: int, group_size: int) -> m.BeginBatch:
    digest = f"parameters {step} of {flavour}"
    return begin_batch(step, step, digest, prompts=prompts, group_size=group_size)


class Trainer:
    """Trains `num_steps` and ends the run.

    After a crash it begins again at the step after the last durable one, with the same
    parameters, or with others if `same_bits` is False. One that `extends` asks for more prompts
    with the first response: one that it needs, one that it trains without if need be, and one
    that is sampled in another way.
    """

    def __init__(
        self,
        world: Any,
        num_steps: int,
        *,
        seeding: bool = True,
        extends: bool = False,
        prompts: int = 2,
        group_size: int = 2,
    ) -> None:
        self.world = world
        self.num_steps, self.prompts, self.group_size = num_steps, prompts, group_size
        self.reports: list[m.BatchReport] = []
        self.alive = False
        self.done = False
        self.lives = 0
        self.seeding, self.extends = seeding, extends
        self.stream = 0
        self._got: set[tuple[int, int, int]] = set()  # (stream, step, sample)
        self._doubted: set[tuple[int, int, int]] = set()
        self._durable = -1
        self._written = 0.0
        self._flavour = 0
        world.trainer = self

    @property
    def begin(self) -> m.BeginBatch:
        return begin_of(self.step, self._flavour, self.prompts, self.group_size)

    def start(self) -> None:
        """A new process, from the last durable checkpoint."""
        self.alive = True
        self.lives += 1
        self.step = self._durable + 1
        self.done = self.step == self.num_steps
        self._again: dict[str, m.TrainerMessage] = {}
        self._extends = []
        self._over: list[m.TrainerMessage] = []  # commits not yet said
        self._begin_step()
        if self.seeding:
            self.engine = Server(self.world, reserved=True)
            self.engine.connect()
        self._dial()

    def crash(self, *, same_bits: bool) -> None:
        self.alive = False
        self._flavour += not same_bits
        self.world.up(self.stream, TrainerGone(self.stream, "killed"))
        if self.seeding:
            self.engine.kill()

    def hear(self, stream: int, message: m.ToTrainer) -> None:
        if not self.alive or stream != self.stream:
            return
        match message:
            case m.FinishedRollout():
                self._finished(message)
            case m.Withdrawn(samples=samples):
                self._withdrawn(message.batch, m.unpack_ids(samples).tolist())
            case m.BatchReport():
                self._reported(message)
            case m.Refused(reason=reason):
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
        begun = [again("publish"), again("begin"), *self._extends]
        for message in (*begun, again("trained"), again("end")):
            if message is not None:
                self._put(message)
        over, self._over = self._over, []
        for message in over:
            self._say(message)

    def _say(self, message: m.TrainerMessage) -> None:
        """Now, or on the next stream."""
        match message:
            case m.Publish():
                self._again["publish"] = message
            case m.BeginBatch():
                self._again["begin"] = message
                self._again.pop("trained", None)
                self._extends: list[m.TrainerMessage] = []
            case m.ExtendBatch():
                self._extends.append(message)
            case m.BatchTrained():
                self._again["trained"] = message
            case m.EndRun():
                self._again["end"] = message  # a manager that lives is told to go by a signal
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

    def _begin_step(self) -> None:
        if self.done:
            self._end()
            return
        self._training = False
        self.results: dict[int, m.FinishedRollout] = {}
        self._sizes: dict[int, int] = {}  # tokens of what was delivered, believed or not
        self._made_up: set[int] = set()  # samples of which the last that came was not believed
        self.prompts_known = self.prompts
        self._measuring = sample_number(  # of what measures the policy
            0, 0, group_size=self.group_size, purpose="evaluate"
        )
        self.needed = set(range(self.prompts * self.group_size))
        begin, delay = self.begin, self.world.random.uniform
        snapshot = manifest(begin.version, begin.params_digest)
        # Snapshots are written beside the step, one after the other.
        self._written = max(self._written, self.world.now + delay(0.0, 0.3))
        publish = lambda: self._say(m.Publish(manifest=snapshot))  # noqa: E731
        self._later(self._written - self.world.now, publish)
        self._say(begin)
        if self.seeding:
            self._later(delay(0.0, 0.1), lambda: self._offer(begin))

    def _offer(self, begin: m.BeginBatch) -> None:
        if begin.batch == self.step:
            self.engine.offer(begin.version, begin.params_digest)

    def _finished(self, result: m.FinishedRollout) -> None:
        assert result.work.batch == self.step, (
            f"a rollout of step {result.work.batch} in step {self.step}"
        )
        if result.work.purpose == "train" and result.work.prompt >= self.prompts_known:
            return  # an earlier trainer has asked for it
        key = self.stream, result.work.batch, result.work.sample
        # A doubt about an attempt that is gone already brings the present one once more.
        assert key not in self._got or key in self._doubted, "delivered twice"
        self._got.add(key)
        self._sizes[result.work.sample] = len(result.tokens) // 4
        whose = self.begin.params_digest, result.work.batch, result.work.sample
        tokens = list(response(*whose))
        found = m.unpack_tokens(result.tokens).tolist()
        if found != tokens and self.world.lied:
            self._made_up.add(result.work.sample)
            self._doubt(result, found, tokens)
            return
        assert found == tokens
        self._made_up.discard(result.work.sample)
        assert result.logprobs == response_logprobs(*whose)
        assert result.versions == ((self.step, len(tokens)),)
        if self.world.settings.routing:
            assert isinstance(result, m.RoutedRollout) and result.routes == routes(2, tokens)
        else:
            assert type(result) is m.FinishedRollout
        known = result.work.sample in self.results  # said again on a new stream
        self.results[result.work.sample] = result
        if self.extends and self.prompts_known == self.prompts:
            self._extend()
        if not (known or self._training) and self.needed <= self.results.keys():
            self._train()

    def _withdrawn(self, step: int, samples: list[int]) -> None:
        """They are generated again, and delivered once more."""
        assert step == self.step
        for sample in samples:
            assert sample == self._measuring, "a response that is trained on"
            self._got.discard((self.stream, step, sample))
            self.results.pop(sample, None)
            self._sizes.pop(sample, None)

    def _extend(self) -> None:
        """Some prompts more, in as many messages."""
        first = self.prompts
        self.prompts_known = first + 2
        greedy = msgspec.structs.replace(self.begin.sampling, temperature=0.0)
        for prompt, samples, sampling in ((first, 0, None), (first + 1, 0, None), (0, 1, greedy)):
            purpose: Purpose = "train" if sampling is None else "evaluate"
            tokens = m.pack_tokens([prompt, self.step, 1])
            request = m.PromptRequest(prompt=prompt, tokens=tokens, purpose=purpose)
            self._say(
                m.ExtendBatch(
                    batch=self.step, prompts=(request,), samples=samples, sampling=sampling
                )
            )
            if prompt != first + 1:
                size = self.group_size
                self.needed |= {
                    sample_number(prompt, place, group_size=size, purpose=purpose)
                    for place in range(samples or size)
                }

    def _doubt(self, result: m.FinishedRollout, found: list[int], tokens: list[int]) -> None:
        """As the learner would: a while later, on whatever stream there is then."""
        sample = result.work.sample
        pairs = itertools.zip_longest(found, tokens)
        position = next(i for i, (one, other) in enumerate(pairs) if one != other)
        doubt = m.Doubt(
            batch=self.step,
            samples=m.pack_ids([sample]),
            attempts=m.pack_ids([result.attempt]),
            positions=m.pack_ids([position]),
            gap=9.0,
        )

        def say() -> None:
            if self.stream and self.step == doubt.batch and not self._training:
                self.results.pop(sample, None)
                self._sizes.pop(sample, None)
                self._doubted.add((self.stream, doubt.batch, sample))
                self._say(doubt)

        self._later(self.world.random.uniform(0.0, 0.3), say)

    def _train(self) -> None:
        self._training = True  # nothing is doubted after the last micro-batch
        wait = self.world.random.uniform(0.0, 0.5)
        trained = m.BatchTrained(batch=self.step, train_wait_seconds=wait, train_seconds=wait + 0.1)
        self._later(wait, lambda: self._say(trained))

    def _reported(self, report: m.BatchReport) -> None:
        if report.batch < self.step:
            return  # asked for again on a new stream
        assert report.batch == self.step
        if not self.world.forgetful:
            measured = self._sizes.pop(self._measuring, 0)
            assert report.tokens_measured == measured
            assert report.tokens_delivered in self._possibly_delivered()
        assert report.tokens_generated == report.tokens_delivered + report.tokens_lost
        assert report.tokens_generated == report.tokens_reserved + report.tokens_preemptible
        self.reports.append(report)
        self._again.pop("begin", None)
        self._again.pop("trained", None)
        self._extends = []
        step = self.step
        self._later(self.world.random.uniform(0.0, 0.5), lambda: self._commit(step))
        self.step += 1
        self.done = self.step == self.num_steps
        if not self.done:
            self._begin_step()

    def _possibly_delivered(self) -> set[int]:
        """Tokens of all responses, but that training may begin before those come again that were
        made up and are not needed."""
        sums = {0}
        for sample, size in self._sizes.items():
            absent = sample in self._made_up and sample not in self.needed
            sums = {known + size for known in sums} | (sums if absent else set())
        return sums

    def _commit(self, step: int) -> None:
        self._durable = step
        self._say(m.BatchCommitted(batch=step))
        if self.done and step == self.num_steps - 1:
            self._end()

    def _end(self) -> None:
        self._say(m.EndRun(reason="done", over=True))
