"""Unfinished and finished responses, and their batches."""

from collections.abc import Collection, Iterable, Iterator

import msgspec

from rlboost_jax.manager.accounts import Books
from rlboost_jax.manager.state.episode_sequences import EpisodeSequences
from rlboost_jax.manager.state.rollout_placement import RolloutPlacement
from rlboost_jax.manager.state.rollout_queue import RolloutQueue
from rlboost_jax.messages import (
    BeginBatch,
    FinishedRollout,
    GenerateRequest,
    Parked,
    PromptRequest,
    Sampling,
)
from rlboost_jax.sequences.identities import Batch, Work, sample_number
from rlboost_jax.sequences.sequence import common_tokens
from rlboost_jax.sequences.transcript import Transcript


class Rollout:
    """One response: waiting, held by an instance, parked or finished.

    *Parked* is one whose turn has ended and that goes on once it is answered. Nothing else says
    so: it follows from the tokens.

    Attributes:
        sequences: its tokens.
        placement: where it is.
        group: one number for all responses to a prompt.
    """

    __slots__ = ("batch", "finished", "group", "measures", "parked", "placement", "sample",
                 "sequences")  # fmt: skip

    def __init__(
        self, batch: "BatchRecord", prompt: PromptRequest, sample: int, sampling: Sampling | None
    ) -> None:
        """Create a response without tokens.

        Args:
            sample: its number in the batch.
            sampling: None: as the batch says.
        """
        begin = batch.begin
        work = Work(
            seed=begin.seed,
            batch=Batch(begin.batch),
            purpose=prompt.purpose,
            prompt=prompt.prompt,
            sample=sample,
        )
        self.batch = batch
        self.sample = sample
        self.group = sample // begin.group_size
        self.measures = prompt.purpose == "evaluate"
        self.sequences = EpisodeSequences(work, prompt.tokens, sampling or begin.sampling)
        self.placement = RolloutPlacement()
        self.parked = self.finished = False

    @property
    def transcript(self) -> Transcript:
        """Its newest sequence."""
        return self.sequences.newest

    @property
    def waiting(self) -> bool:
        return not self.placement.holder and not self.dormant

    @property
    def dormant(self) -> bool:
        """Whether it is finished or parked, so that no instance has anything to sample."""
        return self.finished or self.parked

    @property
    def turn_over(self) -> bool:
        """Whether its last token ends its turn."""
        return self.sequences.newest.turn_over(self.sequences.sampling)

    @property
    def result(self) -> FinishedRollout | None:
        """Its last sequence, for the trainer; None: it is not finished."""
        return self.results[-1] if self.finished else None

    @property
    def results(self) -> tuple[FinishedRollout, ...]:
        """Its completed sequences, for the trainer, in order."""
        count, version = len(self.sequences.ended) + self.finished, self.batch.begin.version
        return tuple([self.sequences.completed(number, version) for number in range(count)])

    def awaits(self, sequence: int, attempt: int, turn: int) -> bool:
        """Whether it is parked and waits for exactly this answer."""
        asked = len(self.sequences.ended), self.sequences.attempt, self.transcript.turn
        return self.parked and asked == (sequence, attempt, turn)

    def request(self) -> GenerateRequest:
        """Message by which its holder continues the newest sequence."""
        transcript = self.sequences.newest
        return GenerateRequest(
            request_id=self.placement.request_id,
            work=self.sequences.work,
            version=self.batch.begin.version,
            prompt_tokens=transcript.prompt,
            response_tokens=bytes(transcript.tokens),
            sampling=self.sequences.sampling,
            runs=transcript.runs,
        )

    def set_aside(self, batch: "BatchRecord") -> None:
        """Move it to another batch."""
        self.batch = batch

    def take_in(self, tokens: bytes, logprobs: bytes, name: str, routes: bytes = b"") -> None:
        """Append what instance `name` sampled."""
        self.sequences.append(tokens, logprobs, name, routes)
        self.placement.yields()

    def park(self) -> None:
        """Park it after a turn that another may follow; to be called by its batch."""
        self.parked = True

    def answer(self, tokens: bytes, *, over: bool, prompt: bytes) -> None:
        """Apply the environment's answer to a parked response; to be called by its batch.

        Pages left behind serve another sequence as far as both begin with equal tokens.

        Args:
            over: its sequence is, whether or not anything was said.
            prompt: of the one that follows; b"": it is finished.
        """
        before = self.transcript
        if tokens:
            before.give(tokens)
        if over and prompt:
            self.sequences.follow(prompt)
            self.placement.keep(common_tokens(before.prompt + before.tokens, prompt))
        self.finished, self.parked = over and not prompt, False

    def finish(self) -> None:
        """Mark it as finished; to be called by its batch."""
        self.finished = True

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens, no longer finished; to be called by its batch."""
        before = self.transcript
        self.sequences.cut(length)
        # Pages left behind are of the newest sequence before.
        self.placement.keep(self.transcript.length if self.transcript is before else 0)
        self.finished = self.parked = False


class BatchRecord:
    """The rollouts of one `BeginBatch`, and of what it was extended with.

    It has its turn while it is the oldest that is open: since `begun_at`. It is `resumed` if it was
    begun last with what was here of it before.
    """

    def __init__(self, begin: BeginBatch, now: float) -> None:
        self.begin = begin
        self.begun_at = now
        self.last_token_at = now
        self.cancelled = False
        self.resumed = False
        self.num_finished = 0
        self.num_parked = 0
        self.books = Books()
        self.rollouts: list[Rollout] = []
        self._by_sample: dict[int, Rollout] = {}
        self._waiting: RolloutQueue[Rollout] = RolloutQueue()
        self.num_waiting = 0
        self.ask_for(begin.prompts)

    @property
    def finished(self) -> bool:
        return self.num_finished == len(self.rollouts)

    @property
    def num_dormant(self) -> int:
        """Number of rollouts with nothing to sample: finished or parked ones."""
        return self.num_finished + self.num_parked

    @property
    def at_rest(self) -> bool:
        return self.num_dormant == len(self.rollouts)

    @property
    def rollout_seconds(self) -> float:
        """Seconds from the beginning of its turn to its last token."""
        return max(0.0, self.last_token_at - self.begun_at)

    @property
    def measures(self) -> bool:
        """Whether it was extended by prompts that measure the policy."""
        return any(rollout.measures for rollout in self.rollouts)

    def delivered(self, *, measuring: bool) -> list[Rollout]:
        """Finished responses that are trained on, or those that measure the policy."""
        return [r for r in self.rollouts if r.finished and r.measures == measuring]

    def resume(self, resumed: bool) -> None:
        """Mark it as begun, anew or with its earlier tokens."""
        self.resumed = resumed

    def begin_at(self, at: float) -> None:
        """Begin its turn: start the clock."""
        self.begun_at = at

    def token_at(self, at: float) -> None:
        """Record the time of tokens that count."""
        self.last_token_at = max(self.last_token_at, at)

    def end_turn(self, rollout: Rollout) -> None:
        """End the turn of a response: it is finished, unless the environment may answer."""
        if rollout.sequences.last_turn(self.begin.turns):
            rollout.finish()
            self.num_finished += 1
        else:
            rollout.park()
            self.num_parked += 1

    def answer(self, rollout: Rollout, tokens: bytes, *, over: bool, prompt: bytes = b"") -> None:
        """Apply the environment's answer to a parked response of this batch."""
        rollout.answer(tokens, over=over, prompt=prompt)
        self.num_parked -= 1
        self.num_finished += rollout.finished

    def cut(self, rollout: Rollout, length: int) -> None:
        """Keep the first `length` tokens of a response of this batch."""
        self.num_finished -= rollout.finished
        self.num_parked -= rollout.parked
        rollout.cut(length)

    def cancel(self) -> Books:
        """Abandon the batch. Returns its counts; all its tokens are lost."""
        self.cancelled = True
        books, self.books = self.books, Books()
        books.write_off()
        return books

    def recount(self, books: Books) -> None:
        """Replace its counts."""
        self.books = books

    def settle(self) -> None:
        """Correct the counts to the tokens that are present."""
        self.books.settle(sum(rollout.sequences.num_sampled for rollout in self.rollouts))

    def ask_for(
        self,
        prompts: Iterable[PromptRequest],
        samples: int = 0,
        sampling: Sampling | None = None,
    ) -> bool:
        """Queue the first `samples` of each group (0: all) that are missing; whether any was.

        Args:
            sampling: None: as the batch says.
        """
        before = len(self.rollouts)
        for prompt in prompts:
            for sample in self.samples_of(prompt, samples):
                if sample not in self._by_sample:
                    rollout = Rollout(self, prompt, sample, sampling)
                    self._by_sample[sample] = rollout
                    self.rollouts.append(rollout)
                    self.wait(rollout)
        return len(self.rollouts) > before

    def samples_of(self, prompt: PromptRequest, count: int = 0) -> range:
        """Numbers of the first `count` samples of a prompt's group (0: all)."""
        size = self.begin.group_size
        first = sample_number(prompt.prompt, 0, group_size=size, purpose=prompt.purpose)
        return range(first, first + (count or size))

    def drop_unfinished(self) -> None:
        """Drop unfinished responses; they belong to a cancelled batch from now on."""
        dropped = [rollout for rollout in self.rollouts if not rollout.finished]
        if dropped:
            aside = BatchRecord(msgspec.structs.replace(self.begin, prompts=()), self.begun_at)
            aside.cancel()
            for rollout in dropped:
                self.books.lose(rollout.sequences.num_sampled)
                rollout.set_aside(aside)
                del self._by_sample[rollout.sample]
            self.rollouts = [rollout for rollout in self.rollouts if rollout.finished]
            self.num_parked = 0
            self.requeue()

    def wait(self, rollout: Rollout) -> None:
        """Queue a rollout."""
        home = rollout.placement.home or (None if rollout.sequences.begun else rollout.group)
        self._waiting.put(rollout, rollout.sample, fresh=not rollout.sequences.begun, home=home)
        self.num_waiting += 1

    def take(self, count: int) -> list[Rollout]:
        """Remove and return the next `count` rollouts of the queue."""
        self.num_waiting -= count
        return self._waiting.take(count)

    def take_one(self, groups: Iterable[int]) -> Rollout:
        """Remove and return a rollout of these groups if the next one may wait, or that one."""
        self.num_waiting -= 1
        return self._waiting.take_one(groups)

    def first_of(self, home: str) -> Rollout | None:
        """The next rollout that has left pages at an instance, still in the queue."""
        return self._waiting.first_of(home)

    def take_first_of(self, home: str) -> Rollout:
        """Remove and return the rollout that `first_of` names."""
        self.num_waiting -= 1
        return self._waiting.take_first_of(home)

    def waiting(self) -> Iterator[Rollout]:
        """Iterate over the queue in order, without taking rollouts."""
        return iter(self._waiting)

    def rank(self, ranks: dict[int, float]) -> None:
        """Order the queue by these ranks from now on; see `RolloutQueue.rank`."""
        self._waiting.rank(ranks)

    def rank_of(self, rollout: Rollout) -> float:
        return self._waiting.rank_of(rollout.sample)

    def rollout_of(self, sample: int) -> Rollout | None:
        return self._by_sample.get(sample)

    def requeue(self) -> None:
        """Queue all unfinished rollouts; no instance holds any."""
        self._waiting.clear()
        self.num_waiting = 0
        for rollout in self.rollouts:
            if not rollout.dormant:
                self.wait(rollout)

    def results(self, samples: Collection[int]) -> Iterator[FinishedRollout]:
        """Completed sequences of some responses."""
        return (one for r in self.rollouts if r.sample in samples for one in r.results)

    def questions(self, samples: Collection[int]) -> Iterator[Parked]:
        """Questions of those responses among `samples` that are parked."""
        return (r.sequences.question() for r in self.rollouts if r.parked and r.sample in samples)

    def same_work(self, begin: BeginBatch) -> bool:
        """Whether the tokens kept here are also valid for `begin`."""
        return self.begin == begin
