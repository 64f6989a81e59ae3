"""An engine in virtual time: slots, a cache of bounded size, a queue, decode steps in stretches.

Rollouts in slots advance together, a token per step, so that one number says how far they are
(`row_clocks.py`). Those that carry drafts advance by their expected tokens per step
(`EngineRates.paces`). A rollout carries drafts while the text of a sibling in the same engine goes
on where it is, so until it has caught up, or one of an earlier epoch, which the engine sampled or
was sent; beyond all of these, where drafts are right as often as `draft_beyond` says; and without
any text of its prompt, as often as `draft_recent` says, once any response has ended here.

A stretch is a run of steps in which nothing changes: it ends with the first response that
ends (rounded up to whole dispatches), when tokens are to be reported, or when the cache is full.
Whatever comes in between cuts it short at the step that is done by then.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from rlboost_jax.sequences.prompt_memory import PromptMemory
from rlboost_jax.simulator.rates import EngineRates
from rlboost_jax.simulator.row_clocks import AHEAD, BEYOND, EARLIER, PLAIN, Row, RowClocks

MOST_OF_PROMPT = 8  # texts of earlier epochs, as in `rlboost_jax/engine/drafts.py`
FULL = 0.95  # share of the cache up to which rollouts are admitted; the rest is for growth


@dataclass(frozen=True, slots=True)
class NewTokens:
    row: Row
    tokens: int  # new ones
    ended: bool


class SimulatedEngine:
    """A simulated engine.

    Args:
        message_tokens: steps after which everything is reported at the latest.
        earlier_tokens: of earlier epochs that are kept, prompts included.
    """

    def __init__(
        self,
        rates: EngineRates,
        *,
        slots: int,
        dispatch_tokens: int,
        message_tokens: int,
        earlier_tokens: int = 0,
    ) -> None:
        self._rates = rates
        self._slots, self._dispatch, self._message = slots, dispatch_tokens, message_tokens
        self.running: dict[int, Row] = {}  # oldest first
        self._queue: deque[Row] = deque()
        self._clocks = RowClocks()
        self._groups: dict[tuple[int, int], dict[int, Row]] = {}  # rollouts in slots, by prompt
        self._texts: dict[tuple[int, int], list[int]] = {}  # responses that ended, by prompt
        self._prompts: dict[tuple[int, int], bytes] = {}  # … and its tokens
        self._earlier: PromptMemory[tuple[int, ...]] = PromptMemory(earlier_tokens)
        self._recent = False  # whether any response has ended here
        self._version = 0  # that samples
        self._steps = 0
        self._begun = 0  # step count when the stretch began, and a dispatch with it
        self._reported_at = 0  # step count when everything was reported last
        self._context: float = 0  # tokens held in slots
        self._at = 0.0  # the time that `_steps` belongs to
        self._prefill = 0.0  # seconds of it that come before the next decode step
        self._stretch, self._seconds = 0, 0.0  # steps planned, and how long they take
        # Rollouts that may come back: tokens, others that pages were free for as they left, and
        # tokens that pages had been taken for by then. `rlboost_jax.engine.prefixes`, in tokens.
        self._left: dict[tuple[int, int], tuple[int, float, float]] = {}
        self._taken: float = 0
        self._seen_at = 0.0
        self.slot_seconds = 0.0  # of slots with a rollout in them
        self.prefilled = self.spared = 0  # tokens of rollouts that came with any sampled
        self.prefilled_again = 0  # tokens, because of evictions, since it was last asked
        self.spared_steps = 0.0  # of single rollouts, by drafts
        self.paused = False

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def queued(self) -> list[int]:
        """Requests that wait for a slot, in order."""
        return [row.request_id for row in self._queue]

    @property
    def held(self) -> int:
        return len(self.running) + len(self._queue)

    @property
    def due_at(self) -> float:
        """Time at which the stretch ends unless something happens before; inf: never."""
        if self.paused or not self.running:
            return math.inf
        return self._at + self._prefill + self._seconds

    def add(self, rows: Iterable[Row], now: float) -> None:
        self.advance(now)
        for row in rows:
            self._queue.append(row)
        self._plan(now)

    def remove(self, request_ids: Iterable[int], now: float) -> None:
        """Drop rollouts, whose tokens must have been reported before."""
        self.advance(now)
        gone = set(request_ids)
        for request_id in gone & self.running.keys():
            self._leave_slot(self.running.pop(request_id))
        if any(row.request_id in gone for row in self._queue):
            self._queue = deque(row for row in self._queue if row.request_id not in gone)
        self._plan(now)

    def pause(self, paused: bool, now: float) -> None:
        """Stop while the learner uses the chips, or resume."""
        self.advance(now)
        self.paused = paused
        self._at = now

    def advance(self, now: float) -> None:
        """Account for the steps done by now, whose tokens `tell` then reports."""
        self.slot_seconds += len(self.running) * (now - self._seen_at)
        self._seen_at = now
        if self.paused or not self.running:
            self._at = now
            return
        elapsed = now - self._at
        due = now >= self.due_at  # time may be too coarse to tell from what has elapsed
        if elapsed < self._prefill and not due:
            self._prefill -= elapsed
            self._at = now
            return
        share = (elapsed - self._prefill) / self._seconds if self._seconds and not due else 1.0
        steps = min(self._stretch, int(self._stretch * share + 1e-6))
        seconds = self._seconds * steps / self._stretch if self._stretch else 0.0
        self._at += self._prefill + seconds
        self._prefill = 0.0
        self._take(steps)
        self._stretch -= steps
        self._seconds -= seconds

    def lose_dispatch(self, now: float) -> None:
        """Discard the tokens of the unfinished dispatch: the machine is lost with them."""
        self.advance(now)
        self._take(-((self._steps - self._begun) % self._dispatch))

    def report(self, now: float, *, everything: bool = False) -> list[NewTokens]:
        """Return the new tokens of rollouts that ended, and remove these; then continue.

        Of the others too, if everything is asked for or that was long ago: to tell every
        token as it comes would cost more than all else, and changes nothing.
        """
        reported = [NewTokens(row, row.length - row.reported, ended=True) for row in self._ended()]
        if self._rates.most_drafts:
            for each in reported:
                self._learn(each.row)
        if everything or self._steps >= self._reported_at + self._message:
            self._reported_at = self._steps
            for row in self.running.values():
                self._clocks.settle(row)
            for row in (*self.running.values(), *self._queue):
                if row.done > row.reported:
                    reported.append(NewTokens(row, row.done - row.reported, ended=False))
                    row.reported = row.done
        self._plan(now)
        return reported

    def forget(self, version: int | None = None) -> None:
        """Drop the reusable pages, which other weights make worthless, and texts of old batches.

        Args:
            version: of the weights; None: as before.
        """
        self._left.clear()
        self._version = self._version if version is None else version
        held = {row.group for row in (*self.running.values(), *self._queue)}
        for group in [group for group in self._texts if group not in held]:
            texts = sorted(self._texts.pop(group), reverse=True)[:MOST_OF_PROMPT]
            if prompt := self._prompts.pop(group, b""):
                self._earlier.keep(prompt, tuple(texts), sum(texts))

    def know(self, group: tuple[int, int], tokens: int) -> None:
        """Add a text of so many tokens, to draft the responses to a prompt from."""
        self._texts.setdefault(group, []).append(tokens)

    def offer(self, prompt: bytes, tokens: int) -> None:
        """Keep a response to a prompt, of so many tokens, that was sampled elsewhere before."""
        both = dict.fromkeys((tokens, *(self._earlier.of(prompt) or ())))
        texts = tuple(both)[:MOST_OF_PROMPT]
        self._earlier.keep(prompt, texts, sum(texts))

    def _yield(self) -> float:
        """Tokens of a decode step."""
        return len(self.running) + self._clocks.spared()

    def _take(self, steps: int) -> None:
        """Account for decode steps, or for less of them."""
        tokens = steps * self._yield()
        self._steps += steps
        self._context += tokens
        self._taken += max(0, tokens)
        self.spared_steps += steps * self._clocks.spared()
        self._clocks.take(steps)

    def _ended(self) -> list[Row]:
        """Take rollouts that have ended out of their slots; others get the clock that is theirs."""
        ended, others = [], []
        for row in self._clocks.due(self.running):
            if row.until < row.length and self._clocks.position(row) < row.length:
                others.append(row)
                continue
            del self.running[row.request_id]
            self._leave_slot(row)
            self._leave_pages(row)
            ended.append(row)
        for row in others:
            self._change_clock(row)
        return ended

    def _learn(self, ended: Row) -> None:
        """Let siblings draft from a response that has ended."""
        self.know(ended.group, ended.length)
        self._prompts[ended.group] = ended.prompt
        self._recent = True
        for row in self._groups.get(ended.group, {}).values():
            self._change_clock(row)

    def _change_clock(self, row: Row) -> None:
        self._clocks.settle(row)
        clock, until = self._clock_of(row)
        if (clock, until) != (row.clock, row.until):
            self._clocks.change(row, clock, until)

    def _clock_of(self, row: Row) -> tuple[int, int]:
        """The clock of a rollout, and up to how many tokens.

        A text that is less than a dispatch ahead is no help: the engine looks once a dispatch.
        """
        if not self._rates.most_drafts:
            return PLAIN, row.length
        text = known = max(self._texts.get(row.group, ()), default=0)
        for other in self._groups.get(row.group, {}).values():
            if other is not row:
                text = max(text, int(self._clocks.position(other)))
        if text > row.done + self._dispatch:
            return AHEAD, min(row.length, text)
        earlier = max(self._earlier.of(row.prompt) or (), default=0)
        if earlier > row.done + self._dispatch:
            return EARLIER, min(row.length, earlier)
        return BEYOND if known or earlier else PLAIN, row.length

    def _leave_pages(self, row: Row) -> None:
        """Free the pages of a parked turn, whose contents may be reused."""
        if row.parks >= 0:
            tokens = row.prompt_tokens + row.length
            free = int(self._rates.kv_tokens) - self._context - tokens
            self._left[row.group[0], row.parks] = tokens, free, self._taken

    def _leave_slot(self, row: Row) -> None:
        self._context -= row.prompt_tokens + self._clocks.position(row)
        self._clocks.leave(row)
        siblings = self._groups[row.group]
        del siblings[row.request_id]
        if not siblings:
            del self._groups[row.group]

    def _plan(self, now: float) -> None:
        """Fill the slots and begin a stretch of decode steps."""
        self._begun = self._steps
        if not self.running:
            self._at = max(self._at, now)
        while self._queue and len(self.running) < self._slots:
            row = self._queue[0]
            length = row.prompt_tokens + row.done
            if self.running and self._context + length > FULL * self._rates.kv_tokens:
                break
            self._queue.popleft()
            self._admit(row)
        while len(self.running) > 1 and self._room() < self._dispatch:
            self._evict(self.running.popitem()[1])
        batch = len(self.running)
        if not batch:
            self._stretch, self._seconds, self._prefill = 0, 0.0, 0.0
            return
        clocks = self._clocks
        drafts, clocks.pace = self._rates.paces(
            clocks.count, self._context, self._version, recent=self._recent
        )
        steps = math.ceil(clocks.steps_to_next(self.running) / self._dispatch) * self._dispatch
        quiet = self._reported_at + self._message - self._steps
        self._stretch = max(1, min(steps, quiet, max(self._room(), self._dispatch)))
        context = self._context + self._stretch * self._yield() / 2
        self._seconds = self._stretch * self._rates.step_seconds(batch, context, drafts=drafts)

    def _room(self) -> int:
        """Number of decode steps until the cache is full."""
        return int((self._rates.kv_tokens - self._context) // max(1, self._yield()))

    def _admit(self, row: Row) -> None:
        siblings = self._groups.setdefault(row.group, {})
        shared = not row.done and bool(siblings)
        siblings[row.request_id] = self.running[row.request_id] = row
        self._clocks.join(row, *self._clock_of(row))
        if row.done and self._rates.most_drafts:  # it may be ahead of others
            for other in siblings.values():
                self._change_clock(other)
        self._context += row.prompt_tokens + row.done
        tokens = row.prompt_tokens + row.done
        found, free, taken = self._left.pop((row.group[0], row.parks), (0, 0, 0))
        if self._taken - taken > free:
            found = 0
        self._taken += tokens
        if not shared:
            self._prefill += (tokens - found) * self._rates.prefill_seconds
        if row.done and row.parks >= 0:
            self.prefilled += tokens - found
            self.spared += found
        if row.evicted:
            self.prefilled_again += row.prompt_tokens + row.done

    def _evict(self, row: Row) -> None:
        """Put a rollout back in front of the queue; its tokens are kept."""
        self._leave_slot(row)
        # One that has just ended is reported before it could be taken up again.
        row.done = min(row.length - 1, int(self._clocks.position(row)))
        row.evicted = True
        self._queue.appendleft(row)
