"""Responses in the making, and the batches that they belong to."""

from collections.abc import Collection, Iterable, Iterator

import msgspec

from rlboost_jax.manager.accounts import Books
from rlboost_jax.manager.state.placed_episode import PlacedEpisode
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


class Rollout(PlacedEpisode):
    """A response in the making: waiting, held by an instance, parked or finished.

    *Parked* is one whose turn has ended and that goes on once it is answered. Nothing else says
    so: it follows from the tokens.
    """

    __slots__ = ("attempt", "batch", "group", "measures", "parked", "result", "sample", "work")

    def __init__(
        self, batch: "BatchRecord", prompt: PromptRequest, sample: int, sampling: Sampling | None
    ) -> None:
        """A response to be made, without a token yet.

        Args:
            sample: its number in the batch.
            sampling: None: as the batch says.
        """
        begin = batch.begin
        super().__init__(prompt.tokens, sampling or begin.sampling)
        self.batch = batch
        self.work = Work(
            seed=begin.seed,
            batch=Batch(begin.batch),
            purpose=prompt.purpose,
            prompt=prompt.prompt,
            sample=sample,
        )
        self.sample = sample
        self.group = sample // begin.group_size  # one number for all responses to the prompt
        self.measures = prompt.purpose == "evaluate"
        self.parked = False
        self.result: FinishedRollout | None = None
        self.attempt = 0  # how often tokens were discarded

    @property
    def waiting(self) -> bool:
        return not self.holder and not self.dormant

    @property
    def dormant(self) -> bool:
        """Nobody has anything to sample of it: it is finished or parked."""
        return self.result is not None or self.parked

    @property
    def last_turn(self) -> bool:
        """Whether no other turn can follow this one."""
        turns = self.batch.begin.turns
        if self.turn + 1 >= turns or (self.ended and self.all_turns >= turns):
            return True
        return self.num_sampled >= self.sampling.max_tokens

    @property
    def results(self) -> tuple[FinishedRollout, ...]:
        """Its sequences that are over, in order."""
        ended = tuple([one.result for one in self.ended])
        return ended if self.result is None else (*ended, self.result)

    def awaits(self, sequence: int, attempt: int, turn: int) -> bool:
        """Whether it is parked, and just this is to be answered."""
        asked = len(self.ended), self.attempt, self.turn
        return self.parked and asked == (sequence, attempt, turn)

    def request(self) -> GenerateRequest:
        return GenerateRequest(
            request_id=self.request_id,
            work=self.work,
            version=self.batch.begin.version,
            prompt_tokens=self.prompt_tokens,
            response_tokens=bytes(self.tokens),
            sampling=self.sampling,
            runs=self.runs,
        )

    def question(self) -> Parked:
        """What the trainer is asked while it is parked."""
        return Parked(
            work=self.work,
            attempt=self.attempt,
            turn=self.turn,
            tokens=bytes(self.tokens),
            runs=self.runs,
            logprobs=bytes(self.logprobs),
        )

    def set_aside(self, batch: "BatchRecord") -> None:
        """It belongs to another batch from now on."""
        self.batch = batch

    def park(self) -> None:
        """Its turn is over, and another may follow; to be called by its batch."""
        self.parked = True

    def answer(self, tokens: bytes) -> None:
        """It goes on after what the environment says; to be called by its batch."""
        self._append_given(tokens)
        self.parked = False

    def follow(self, prompt_tokens: bytes) -> None:
        """Its sequence is over, and another begins; to be called by its batch."""
        self._follow(self.work, self.batch.begin.version, self.attempt, prompt_tokens)
        self.work = msgspec.structs.replace(self.work, sequence=len(self.ended))
        self.parked = False

    def finish(self) -> None:
        """Make the result; to be called by its batch."""
        self.result = self._closed(self.work, self.batch.begin.version, self.attempt)
        self.parked = False

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens, no longer finished; to be called by its batch."""
        self.attempt += 1
        if self.result is not None:
            self._reopen(self.result)
            self.result = None
        self.parked = False
        self._go_back(length)
        self.work = msgspec.structs.replace(self.work, sequence=len(self.ended))
        self._truncate(length - self.tokens_before)


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
        """Rollouts that nobody has anything to sample of: finished or parked."""
        return self.num_finished + self.num_parked

    @property
    def at_rest(self) -> bool:
        return self.num_dormant == len(self.rollouts)

    @property
    def rollout_seconds(self) -> float:
        """From the beginning of its turn to its last token."""
        return max(0.0, self.last_token_at - self.begun_at)

    @property
    def measures(self) -> bool:
        """Whether it was extended by anything that measures the policy."""
        return any(rollout.measures for rollout in self.rollouts)

    def delivered(self, *, measuring: bool) -> list[Rollout]:
        """Finished responses that are trained on, or those that measure the policy."""
        return [r for r in self.rollouts if r.result is not None and r.measures == measuring]

    def resume(self, resumed: bool) -> None:
        """It is begun, anew or with what is here of it."""
        self.resumed = resumed

    def begin_at(self, at: float) -> None:
        """Its turn has come: start the clock."""
        self.begun_at = at

    def token_at(self, at: float) -> None:
        """Tokens that count came then."""
        self.last_token_at = max(self.last_token_at, at)

    def end_turn(self, rollout: Rollout) -> None:
        """The turn of a response of this batch is over: it is finished, unless the environment
        may answer."""
        if rollout.last_turn:
            self.finish(rollout)
        else:
            rollout.park()
            self.num_parked += 1

    def answer(self, rollout: Rollout, tokens: bytes, *, over: bool, prompt: bytes = b"") -> None:
        """What the environment says to a parked response of this batch.

        Args:
            over: its sequence is, whether or not anything was said.
            prompt: of the one that follows; b"": it is finished.
        """
        if tokens:
            rollout.answer(tokens)
            self.num_parked -= 1
        if over and prompt:
            self.num_parked -= rollout.parked
            rollout.follow(prompt)
        elif over:
            self.finish(rollout)

    def finish(self, rollout: Rollout) -> None:
        """A response of this batch is complete."""
        self.num_parked -= rollout.parked
        rollout.finish()
        self.num_finished += 1

    def cut(self, rollout: Rollout, length: int) -> None:
        """Keep the first `length` tokens of a response of this batch."""
        self.num_finished -= rollout.result is not None
        self.num_parked -= rollout.parked
        rollout.cut(length)

    def cancel(self) -> Books:
        """It is abandoned. Returns its counts; all that was sampled is lost."""
        self.cancelled = True
        books, self.books = self.books, Books()
        books.write_off()
        return books

    def recount(self, books: Books) -> None:
        """These are its counts so far."""
        self.books = books

    def settle(self) -> None:
        """Make the counts agree with the tokens that are there."""
        self.books.settle(sum(rollout.all_sampled for rollout in self.rollouts))

    def ask_for(
        self,
        prompts: Iterable[PromptRequest],
        samples: int = 0,
        sampling: Sampling | None = None,
    ) -> bool:
        """Let the first `samples` of each group (0: all) wait, where they are not here yet;
        whether any was not.

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
        """The first `count` of a prompt's group (0: all)."""
        size = self.begin.group_size
        first = sample_number(prompt.prompt, 0, group_size=size, purpose=prompt.purpose)
        return range(first, first + (count or size))

    def drop_unfinished(self) -> None:
        """Give up what is not finished; it belongs to a cancelled batch from now on."""
        dropped = [rollout for rollout in self.rollouts if rollout.result is None]
        if dropped:
            aside = BatchRecord(msgspec.structs.replace(self.begin, prompts=()), self.begun_at)
            aside.cancel()
            for rollout in dropped:
                self.books.lose(rollout.all_sampled)
                rollout.set_aside(aside)
                del self._by_sample[rollout.sample]
            self.rollouts = [rollout for rollout in self.rollouts if rollout.result is not None]
            self.num_parked = 0
            self.requeue()

    def wait(self, rollout: Rollout) -> None:
        """Queue a rollout."""
        self._waiting.put(rollout, rollout.sample, fresh=not rollout.begun, home=rollout.home)
        self.num_waiting += 1

    def take(self, count: int) -> list[Rollout]:
        """The next `count` of the queue, no longer in it."""
        self.num_waiting -= count
        return self._waiting.take(count)

    def first_of(self, home: str) -> Rollout | None:
        """The next that has left pages there, still in the queue."""
        return self._waiting.first_of(home)

    def take_first_of(self, home: str) -> Rollout:
        """That one, no longer in it."""
        self.num_waiting -= 1
        return self._waiting.take_first_of(home)

    def waiting(self) -> Iterator[Rollout]:
        """In queue order, without taking them."""
        return iter(self._waiting)

    def rank(self, ranks: dict[int, float]) -> None:
        """Queue samples by these from now on; see `RolloutQueue.rank`."""
        self._waiting.rank(ranks)

    def rank_of(self, rollout: Rollout) -> float:
        return self._waiting.rank_of(rollout.sample)

    def rollout_of(self, sample: int) -> Rollout | None:
        return self._by_sample.get(sample)

    def requeue(self) -> None:
        """Let all that is not finished wait, for nobody holds anything."""
        self._waiting.clear()
        self.num_waiting = 0
        for rollout in self.rollouts:
            if not rollout.dormant:
                self.wait(rollout)

    def results(self, samples: Collection[int]) -> Iterator[FinishedRollout]:
        """What is over of some responses, sequence by sequence."""
        return (one for r in self.rollouts if r.sample in samples for one in r.results)

    def questions(self, samples: Collection[int]) -> Iterator[Parked]:
        """Those of some responses that are parked."""
        return (r.question() for r in self.rollouts if r.parked and r.sample in samples)

    def same_work(self, begin: BeginBatch) -> bool:
        """Whether the tokens kept here are tokens of `begin` too."""
        return self.begin == begin
