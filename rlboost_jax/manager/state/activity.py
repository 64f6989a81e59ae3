"""Throughput and progress of a server: the dispatch in flight, and those before it."""

import math
from collections.abc import Iterable, Sequence

from rlboost_jax.manager.policies.returning import newer
from rlboost_jax.manager.policies.speeds import BusySpan
from rlboost_jax.manager.state.engine_usage import StepSeconds, Usage
from rlboost_jax.manager.state.rollouts import Rollout
from rlboost_jax.manager.state.score_work import ScoreWork
from rlboost_jax.messages import DraftCounts, TokenBatch

Known = tuple[Rollout, int, bool]  # with its length and whether this placement had given tokens
SLOWER = 10  # times its slowest dispatch so far: what a server may take, overloaded


class Activity:
    """Work of a server: what it runs, has sampled and is due to report.

    Attributes:
        next_sequence: of the token batch that is due.
        in_flight: the most tokens that the dispatch under way can yield.
        running: rollouts in slots, as it said last.
        waiting: rollouts in none, as it said last.
        tokens: taken in from it.
        batch_at: when the dispatch now running began; inf: none has.
        slowest: dispatch so far, in seconds.
        progress_at: of the last token or answer, or since when it holds work.
        bounced_at: since when it gives back what nobody asked for, and no token; inf: it does not.
        span: since all its tokens were known; None: it holds nothing.
        worked: it has been given work.
        slot_seconds: from one turn that ends to the next, of late; inf: not known.
        drafts: tokens that it drafted, and those of them that were accepted.
        scores: its part in scoring for teachers.
        token_seconds: of a token that it samples, of late, among all that it samples; inf.
    """

    __slots__ = (
        "_began_with",
        "_compiled",
        "_freed_at",
        "_steps",
        "_usage",
        "batch_at",
        "bounced_at",
        "drafts",
        "in_flight",
        "next_sequence",
        "progress_at",
        "running",
        "scores",
        "slot_seconds",
        "slowest",
        "span",
        "token_seconds",
        "tokens",
        "waiting",
        "worked",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.next_sequence = 0
        self.in_flight = 0
        self.running = 0
        self.waiting = 0
        self.tokens = 0
        self.batch_at = math.inf
        self.slowest = 0.0
        self.progress_at = now
        self.bounced_at = math.inf
        self.span: BusySpan | None = None
        self._began_with = 0  # rollouts in slots when the span began
        self.worked = False
        self.drafts = (0, 0)
        self.scores = ScoreWork()
        self.slot_seconds = self.token_seconds = math.inf
        self._freed_at = now
        self._usage, self._steps = Usage(), StepSeconds()  # since it was taken last; of all time
        self._compiled = 0  # programs

    def begin(self, now: float) -> None:
        """Start a busy span: the server held nothing and holds a rollout now."""
        self.progress_at, self.span, self._began_with = now, BusySpan(now), 0

    def end(self) -> None:
        """End the busy span: the server holds nothing any more."""
        self.span = None

    def given_work(self) -> bool:
        """Note that the server was given work; return whether for the first time."""
        first = not self.worked
        self.worked = True
        return first

    def prefill(self, tokens: int) -> None:
        """Count a rollout that comes with `tokens` to prefill."""
        self._usage.prefill(tokens)

    def dispatched(self, counts: Sequence[int], context: float, now: float) -> float:
        """Count the dispatch that has just yielded its tokens; returns its seconds.

        Args:
            counts: tokens of each rollout.
            context: mean length of the rollouts held.
        """
        seconds = now - self.batch_at
        self._usage.dispatched(counts, seconds=seconds, context=context)
        self._steps.dispatched(max(counts, default=0), seconds)
        if tokens := sum(counts):
            self.slowest = max(self.slowest, seconds)
            self.token_seconds = newer(self.token_seconds, seconds / tokens)
        return seconds

    def turn_ended(self, now: float) -> None:
        """Record that a slot came free."""
        self.slot_seconds = newer(self.slot_seconds, now - self._freed_at)
        self._freed_at = now

    def received(self, batch: TokenBatch, num_tokens: int, now: float) -> int:
        """Record a token batch, with which the next dispatch has begun.

        Returns by how many tokens more this dispatch can yield than the last.
        """
        self.next_sequence += 1
        self.tokens += num_tokens
        self.running, self.waiting = batch.running, batch.waiting
        self.batch_at = now
        return self.charge(batch.in_flight)

    def drafted(self, drafts: DraftCounts) -> float:
        """Count what its drafts came to; returns about how many seconds they saved."""
        drafted, accepted = self.drafts
        self.drafts = drafted + drafts.drafted, accepted + drafts.accepted
        self._usage.draft(drafts)
        return self._steps.save(drafts.steps_saved)

    def charge(self, tokens: int) -> int:
        """Set the most tokens the dispatch in flight can yield; returns the difference."""
        more, self.in_flight = tokens - self.in_flight, tokens
        return more

    def progressed(self, now: float) -> None:
        """Record progress: a useful token or an answer."""
        self.progress_at, self.bounced_at = now, math.inf

    def bounce(self, now: float) -> None:
        """Record that the server returned work it was not asked to release."""
        self.bounced_at = min(now, self.bounced_at)

    def changed(self) -> None:
        """Forget returned work: with other parameters or room the server may accept it now."""
        self.bounced_at = math.inf

    def patience(self, least: float) -> float:
        """Seconds for which the server may show no progress.

        A slow server may be ten times as slow under load, but none gets more than ten times `least`
        by pretending to be slow.
        """
        return max(least, SLOWER * min(self.slowest, least))

    def measured(
        self, known: Iterable[Known], now: float, *, alike: bool = True
    ) -> BusySpan | None:
        """Add the new tokens of a batch to the busy span.

        Returns the span if it is complete, which is when all tokens that the server has sampled are
        known.

        Args:
            known: rollouts of the batch as they were before it.
            alike: all rollouts sample a token in each step.
        """
        span = self.span
        if span is None:
            return None
        going_on = 0
        for rollout, length, yielded in known:
            count, placement = rollout.transcript.length - length, rollout.placement
            going_on += not rollout.dormant
            if count > 0:
                span.sampled(
                    placement.request_id,
                    length,
                    count,
                    first=not yielded,
                    spared=placement.spared,
                )
        if going_on < self.running:
            return None
        if not alike:  # who begins an idle server's work has not said how many it runs
            span.held(max(1.0, (self._began_with or self.running) / 2 + self.running / 2))
        self.span = BusySpan(now) if self.running else None
        self._began_with = self.running
        return span

    def compiled(self, programs: int) -> None:
        """Set the number of programs compiled in all."""
        self._compiled = programs

    @property
    def programs_compiled(self) -> int:
        return self._compiled

    def take_usage(self) -> Usage:
        """Return the usage since the last call, and start anew."""
        usage, self._usage = self._usage, Usage()
        return usage

    def forgive(self, seconds: float, now: float) -> None:
        """Move timestamps forward by a time in which this manager could hear nobody."""
        self.progress_at = min(now, self.progress_at + seconds)
        self.scores.forgive(seconds, now)
        if self.bounced_at < math.inf:
            self.bounced_at = min(now, self.bounced_at + seconds)
        if self.batch_at < math.inf:
            self.batch_at = min(now, self.batch_at + seconds)
