"""Responses in the making, and the batches that they belong to."""

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec

from rlboost_jax.manager.accounts import Books
from rlboost_jax.manager.state.waiting import Waiting
from rlboost_jax.messages import (
    BeginBatch,
    FinishedRollout,
    GenerateRequest,
    PromptRequest,
    RoutedRollout,
    Sampling,
)
from rlboost_jax.sequences.endings import finish_reason
from rlboost_jax.sequences.identities import Batch, Work, sample_number


class Rollout:
    """A response in the making."""

    __slots__ = (
        "asked_at",
        "attempt",
        "batch",
        "group",
        "holder",
        "logprobs",
        "measures",
        "num_tokens",
        "parts",
        "previous",
        "prompt_tokens",
        "request_id",
        "result",
        "routes",
        "sample",
        "sampling",
        "tokens",
        "work",
        "yielded",
    )  # fmt: skip

    def __init__(
        self, batch: "BatchRecord", prompt: PromptRequest, sample: int, sampling: Sampling | None
    ) -> None:
        """A response to be made, nothing of which is there yet.

        Args:
            sample: its number in the batch.
            sampling: None: as the batch says.
        """
        begin = batch.begin
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
        self.prompt_tokens = prompt.tokens
        self.measures = prompt.purpose == "evaluate"
        self.sampling = sampling or begin.sampling
        self.tokens = bytearray()  # int32
        self.logprobs = bytearray()  # float32
        self.routes = bytearray()  # of all positions but the newest, where a run replays them
        self.num_tokens = 0
        self.parts: list[tuple[str, int]] = []  # (instance, tokens that it sampled), in order
        self.holder = ""  # instance that has it now
        self.previous = ""  # instance that had it last
        self.request_id = 0  # of the present placement
        self.asked_at = math.inf  # when its holder was asked for it back
        self.yielded = False  # the present placement has given tokens
        self.result: FinishedRollout | None = None
        self.attempt = 0  # how often tokens were given up

    @property
    def waiting(self) -> bool:
        return not self.holder and self.result is None

    @property
    def releasing(self) -> bool:
        """Asked back, and not yet given."""
        return self.asked_at < math.inf

    @property
    def complete(self) -> bool:
        """Whether its last token ends it."""
        sampling = self.sampling
        reason = finish_reason(
            int.from_bytes(self.tokens[-4:], "little", signed=True),
            self.num_tokens,
            max_tokens=sampling.max_tokens,
            stop_ids=sampling.stop_ids,
        )
        return reason is not None

    @property
    def length(self) -> int:
        """Prompt and response so far, in tokens."""
        return len(self.prompt_tokens) // 4 + self.num_tokens

    @property
    def lead(self) -> int:
        """Routes that come with the next tokens besides one for each: those of the prompt."""
        return 0 if self.num_tokens else self.length - 1

    def request(self) -> GenerateRequest:
        begin = self.batch.begin
        return GenerateRequest(
            request_id=self.request_id,
            work=self.work,
            version=begin.version,
            prompt_tokens=self.prompt_tokens,
            response_tokens=bytes(self.tokens),
            sampling=self.sampling,
        )

    def place(self, request_id: int, name: str) -> None:
        """It goes to instance `name`."""
        self.request_id, self.holder = request_id, name
        self.asked_at, self.yielded = math.inf, False

    def ask_back(self, at: float) -> None:
        """Its holder was asked for it then."""
        self.asked_at = at

    def take_back(self) -> None:
        """Its holder has it no longer."""
        self.holder, self.previous, self.asked_at = "", self.holder, math.inf

    def set_aside(self, batch: "BatchRecord") -> None:
        """It belongs to another batch from now on."""
        self.batch = batch

    def take_in(self, tokens: bytes, logprobs: bytes, name: str, routes: bytes = b"") -> None:
        """Append what instance `name` sampled."""
        count = len(tokens) // 4
        self.tokens += tokens
        self.logprobs += logprobs
        self.routes += routes
        self.num_tokens += count
        if self.parts and self.parts[-1][0] == name:
            self.parts[-1] = name, self.parts[-1][1] + count
        else:
            self.parts.append((name, count))
        self.yielded = True

    def finish(self) -> None:
        """Make the result; to be called by its batch."""
        begin = self.batch.begin
        fields: dict[str, Any] = {
            "work": self.work,
            "tokens": bytes(self.tokens),
            "logprobs": bytes(self.logprobs),
            "versions": ((begin.version, self.num_tokens),),
            "instances": tuple(dict.fromkeys(name for name, _ in self.parts)),
            "attempt": self.attempt,
        }
        if self.routes:
            self.result = RoutedRollout(**fields, routes=bytes(self.routes))
        else:
            self.result = FinishedRollout(**fields)
        self._forget()  # the result has them

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens, no longer finished; to be called by its batch."""
        self.attempt += 1
        if self.result is not None:
            self.tokens, self.logprobs = (
                bytearray(self.result.tokens),
                bytearray(self.result.logprobs),
            )
            if isinstance(self.result, RoutedRollout):
                self.routes = bytearray(self.result.routes)
            self.result = None
        if length == 0:
            self._forget()
        elif length < self.num_tokens:
            route_bytes = len(self.routes) // (self.length - 1)
            del self.tokens[4 * length :], self.logprobs[4 * length :]
            del self.routes[route_bytes * (self.length - 1 - self.num_tokens + length) :]
        self.num_tokens, parts = length, self.parts
        self.parts = []
        for name, count in parts:
            kept = min(count, length)
            length -= kept
            if kept:
                self.parts.append((name, kept))

    def _forget(self) -> None:
        self.tokens, self.logprobs, self.routes = bytearray(), bytearray(), bytearray()

    def sampler_of(self, position: int) -> str:
        """The instance that sampled the token at a position of the response."""
        for name, count in self.parts:
            position -= count
            if position < 0:
                return name
        raise IndexError(f"sample {self.sample} has only {self.num_tokens} tokens")

    def first_of(self, name: str) -> int:
        """Position of the first token that instance `name` sampled; the length without one."""
        position = 0
        for sampler, count in self.parts:
            if sampler == name:
                break
            position += count
        return position


class BatchRecord:
    """The rollouts of one `BeginBatch`, and of what it was extended with."""

    def __init__(self, begin: BeginBatch, now: float) -> None:
        self.begin = begin
        self.begun_at = now
        self.last_token_at = now
        self.cancelled = False
        self.num_finished = 0
        self.books = Books()
        self.rollouts: list[Rollout] = []
        self._by_sample: dict[int, Rollout] = {}
        self._waiting: Waiting[Rollout] = Waiting()
        self.num_waiting = 0
        self.ask_for(begin.prompts)

    @property
    def finished(self) -> bool:
        return self.num_finished == len(self.rollouts)

    @property
    def rollout_seconds(self) -> float:
        """From its beginning to its last token."""
        return max(0.0, self.last_token_at - self.begun_at)

    @property
    def measures(self) -> bool:
        """Whether it was extended by anything that measures the policy."""
        return any(rollout.measures for rollout in self.rollouts)

    def delivered(self, *, measuring: bool) -> list[Rollout]:
        """Finished responses that are trained on, or those that measure the policy."""
        return [r for r in self.rollouts if r.result is not None and r.measures == measuring]

    def begin_at(self, at: float) -> None:
        """Start the clock."""
        self.begun_at = at

    def token_at(self, at: float) -> None:
        """Tokens that count came then."""
        self.last_token_at = max(self.last_token_at, at)

    def finish(self, rollout: Rollout) -> None:
        """A response of this batch is complete."""
        rollout.finish()
        self.num_finished += 1

    def cut(self, rollout: Rollout, length: int) -> None:
        """Keep the first `length` tokens of a response of this batch."""
        self.num_finished -= rollout.result is not None
        rollout.cut(length)

    def cancel(self) -> Books:
        """It is given up. Returns its counts; all that was sampled is lost."""
        self.cancelled = True
        books, self.books = self.books, Books()
        books.write_off()
        return books

    def recount(self, books: Books) -> None:
        """These are its counts so far."""
        self.books = books

    def settle(self) -> None:
        """Make the counts agree with the tokens that are there."""
        self.books.settle(sum(rollout.num_tokens for rollout in self.rollouts))

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
                self.books.lose(rollout.num_tokens)
                rollout.set_aside(aside)
                del self._by_sample[rollout.sample]
            self.rollouts = [rollout for rollout in self.rollouts if rollout.result is not None]
            self.requeue()

    def wait(self, rollout: Rollout) -> None:
        """Queue a rollout."""
        self._waiting.put(rollout, rollout.sample, fresh=rollout.num_tokens == 0)
        self.num_waiting += 1

    def take(self, count: int) -> list[Rollout]:
        """The next `count` of the queue, no longer in it."""
        self.num_waiting -= count
        return self._waiting.take(count)

    def waiting(self) -> Iterator[Rollout]:
        """In queue order, without taking them."""
        return iter(self._waiting)

    def rank(self, ranks: dict[int, float]) -> None:
        """Queue samples by these from now on; see `Waiting.rank`."""
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
            if rollout.result is None:
                self.wait(rollout)

    def results(self, samples: Collection[int]) -> Iterator[FinishedRollout]:
        """Those of some responses that are finished."""
        return (r.result for r in self.rollouts if r.result is not None and r.sample in samples)

    def same_work(self, begin: BeginBatch) -> bool:
        """Whether the tokens kept here are tokens of `begin` too."""
        return self.begin == begin
