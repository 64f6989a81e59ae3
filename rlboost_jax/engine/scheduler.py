"""Which rollouts run next, and on which pages. Decisions only: no device, clock or thread.

- Rollouts enter slots in the order they came. All that run are older than all that wait.
- While known tokens are to be run (a prompt, or a response begun elsewhere), the next program
  is a mixed step: prefill first, then as many ready rollouts as rows are left, oldest first, then
  drafts. Otherwise it is up to `max_steps` decode steps of all.
- The members of a group share the pages of their prompt. A sibling waits for an older member
  that is running the prompt, holds its full pages by reference, and gets a copy of the
  page with the last prompt token, from which on it computes for itself.
- A rollout whose first pages are still there, its own from before an eviction or those of another
  one with the same tokens, begins after them.
- When pages run out the youngest rollout goes back to waiting. It keeps its tokens and runs
  them again later. The oldest is never evicted for another and can have every page, so it
  always goes on: nothing is dropped and nothing waits for ever.
- Decode steps may be followed by others before it is known what they yield, if that cannot lead
  to a plan that is better for anyone: nobody waits for a slot, and there are pages enough.

Any of this may change when a token is sampled, and none of it which.
"""

from collections import deque
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.engine.draft_policy import DraftPolicy
from rlboost_jax.engine.drafts import DraftTexts
from rlboost_jax.engine.engine_rollouts import EngineRollout, PromptKey
from rlboost_jax.engine.layouts import StepLayout
from rlboost_jax.engine.pages import PagePool
from rlboost_jax.engine.prefixes import Prefixes
from rlboost_jax.engine.program_plans import ProgramAllowance, ProgramPlan, ScheduledTokens
from rlboost_jax.engine.shared_prompts import SharedPrompts
from rlboost_jax.settings.speculation_config import Drafter


class Scheduler:
    """Rollouts, waiting and running, and the pages they hold.

    Attributes:
        slots: that may be filled: those of the layout, or fewer.
        allowance: for the next plan; None: whatever fits.
    """

    def __init__(
        self, layout: StepLayout, max_steps: int, drafters: Collection[Drafter] = ()
    ) -> None:
        """
        Args:
            max_steps: decode steps of a dispatch.
            drafters: of the tokens that decode steps verify; (): they verify none.
        """
        self._layout, self._max_steps = layout, max_steps
        self.texts = DraftTexts(drafters, layout.text_tokens)
        self.drafts = DraftPolicy(layout.rows_for, bool(drafters))
        self.slots = layout.slots
        self.allowance: ProgramAllowance | None = None
        self.pool = PagePool(layout.num_pages)
        self.prompts = SharedPrompts(self.pool)
        self.prefixes = Prefixes(self.pool, layout.page_size)
        self.waiting: deque[EngineRollout] = deque()
        self.running: list[EngineRollout] = []  # oldest first
        self._copies: list[tuple[int, int]] = []  # of the plan being made

    def add(self, rollout: EngineRollout) -> None:
        """Take a rollout younger than all before it."""
        self.waiting.append(rollout)
        self.prompts.join(rollout)
        self.texts.join(rollout)

    def remove(self, rollout: EngineRollout) -> None:
        """Forget a rollout and free its pages."""
        (self.running if rollout in self.running else self.waiting).remove(rollout)
        self._drop_pages(rollout)
        self.prompts.leave(rollout)
        self.texts.leave(rollout)

    def report(self, rollout: EngineRollout, tokens: NDArray[np.int32]) -> bool:
        """Record the tokens a rollout yielded. True if that finishes it; it is then forgotten."""
        before = rollout.computed
        rollout.append(tokens)
        self._share(rollout, before)
        if finished := rollout.finished:
            self.remove(rollout)
        return finished

    def plan(self) -> ProgramPlan | None:
        """The next program, or None if there are no rollouts, or nothing that is allowed.

        The plan counts as carried out: chunks it runs are computed from now on. What it
        yields is given to `report` before the next plan is made, if that does not `follow`.
        """
        self._copies = []
        self._admit()
        for rollout in tuple(self.running):
            if rollout.ready and not self._holds(rollout, rollout.known) and self._runs(rollout):
                self._reserve(rollout, rollout.known)
        prefill = self._prefill()
        ready = [r for r in self.running if r.ready and self._holds(r, r.known)]
        if self.allowance is not None:
            ready = ready[: self.allowance.rows]
        rows = self._layout.token_rows - sum(work.count for work in prefill)
        ready = ready[:rows]
        most, likely, texts = self._drafting(prefill, ready, rows - len(ready))
        work = prefill + [_decode(r, self._decode_budget(r, most)) for r in ready]
        if not work:
            assert not self.running or self.allowance, "the oldest rollout can always go on"
            return None
        again = sum(work.run_before for work in prefill)
        for item in prefill:
            self._advance(item.rollout, item.count)
        return ProgramPlan(
            mixed=bool(prefill),
            copies=tuple(self._copies),
            work=tuple(work),
            prefilled_again=again,
            texts=texts,
            likely=likely,
        )

    def _drafting(
        self, prefill: list[ScheduledTokens], ready: list[EngineRollout], free_rows: int
    ) -> tuple[int, int, NDArray[np.int32] | None]:
        """How many tokens ready rollouts yield at most and likely, and texts for drafts, if any.

        With an allowance, rows and steps are counted by others: no drafts then.
        """
        steps, layout = 1 if prefill else self._max_steps, self._layout
        if self.allowance is not None:
            steps = 1 if prefill else min(steps, self.allowance.steps)
            return steps, steps, None
        held = [work.rollout for work in prefill] + ready
        if not ready or 2 * free_rows < len(ready) or not self.drafts.wants(len(held)):
            self.drafts.passed()
            return steps, steps, None
        rows = layout.drafted_for(layout.token_rows) if prefill else layout.rows_for(len(ready))
        most, likely = self.drafts.most_tokens(steps), self.drafts.likely_tokens(steps)
        return most, likely, self.texts.pack(held, rows)

    def follow(self, plan: ProgramPlan) -> ProgramPlan | None:
        """Decode steps for right after `plan`, before anything of `plan` was reported.

        Every rollout is taken to yield all that it may. One that meets a stop id first is
        passed over on the device, which does not touch its pages: they may be freed as soon as
        `plan` is reported. Of a stop string the device knows nothing, and writes on behind the
        rollout's last token: on pages that no other program reads before it has written there
        itself. None if `plan` is a mixed step, has drafts
        or leaves out a rollout in a slot, if the next steps are to have drafts, if others wait for
        the slot of one that ends, or if more pages are needed than are free.
        """
        everyone = {work.rollout for work in plan.work}.issuperset(self.running)
        if plan.mixed or plan.texts is not None or self.waiting or not everyone:
            return None
        if self.drafts.wants(len(plan.work)):
            return None
        after = [work.after(row, self._max_steps) for row, work in enumerate(plan.work)]
        work = [item for item in after if item.budget > 0 and not item.rollout.finished]
        need = [self._pages_for(w.start + w.budget) - len(w.rollout.pages) for w in work]
        if not work or sum(count for count in need if count > 0) > self.pool.num_free:
            return None
        for item, count in zip(work, need, strict=True):
            if count > 0:
                item.rollout.take_pages(self.pool.alloc(count))
        self.drafts.passed()
        return ProgramPlan(mixed=False, copies=(), work=tuple(work), prefilled_again=0)

    def resize(self, slots: int, num_pages: int) -> dict[int, int]:
        """Go on with so many slots and pages. Returns the pages that move: source → destination.

        Nothing is in flight. What is in slots has room: see `victims.py`. Prompts that nobody in a
        slot holds are forgotten first where pages are short.
        """
        self.slots = slots
        while self.pool.num_held > num_pages and self.prompts.release_one():
            pass
        moves = self.pool.moves_below(num_pages)
        self.pool.resize(num_pages, moves)
        self.prefixes.resize(num_pages, moves)
        self.prompts.move(moves)
        for rollout in self.running:
            rollout.move_pages(moves)
        return moves

    def _admit(self) -> None:
        """Fill slots from the head of the queue, leaving each rollout a page to grow into."""
        promised = 0
        while self.waiting and len(self.running) < self.slots:
            rollout = self.waiting[0]
            shared = self.prompts.find(rollout) or ()
            full = (rollout.prompt_length - 1) // self._layout.page_size
            found = [page for page in self.prefixes.find(rollout) if self.pool.holders(page)]
            need = self._pages_for(rollout.known) - max(len(shared[:full]), len(found))
            if self.running and need + promised + len(self.running) > self.pool.num_free:
                return
            promised += need
            self.running.append(self.waiting.popleft())

    def _prefill(self) -> list[ScheduledTokens]:
        """Chunks of known tokens, oldest rollout first, in at most T rows.

        Who has had a turn keeps it: a later, younger one evicts only those younger still.
        """
        chunks: list[ScheduledTokens] = []
        if all(rollout.ready for rollout in self.running):
            return chunks
        rows = self._layout.token_rows
        if self.allowance is not None:
            rows = min(rows, self.allowance.prefill_tokens)
        if rows == 0:
            return chunks
        leading: set[PromptKey] = set()
        for rollout in tuple(self.running):
            if not self._runs(rollout):
                continue
            if rollout.ready:
                leading |= self._leads(rollout)
                continue
            if rollout.computed == 0 and not self._resume(rollout, leading):
                continue
            leading |= self._leads(rollout)
            count = self._chunk_tokens(rollout, rows)
            if rollout.ready or count == 0:
                continue
            rows -= count
            start = rollout.computed
            ends = start + count == rollout.known
            chunks.append(
                ScheduledTokens(rollout=rollout, start=start, count=count, budget=int(ends))
            )
        return chunks

    def _resume(self, rollout: EngineRollout, leading: set[PromptKey]) -> bool:
        """Start after the pages that already hold its first tokens. False if it has to wait."""
        found = self.prefixes.find(rollout)
        if 1 < rollout.prompt_length > len(found) * self._layout.page_size:
            shared = self.prompts.find(rollout)
            if shared is not None:
                return self._fork(rollout, shared)
            if rollout.prompt_key in leading:
                return False
        self.pool.revive(found)
        rollout.take_pages(list(found))
        rollout.computed = len(found) * self._layout.page_size
        rollout.remembered = len(found)
        return True

    def _leads(self, rollout: EngineRollout) -> set[PromptKey]:
        """The prompt that the rollout will soon have run, which siblings wait for."""
        through = rollout.computed >= rollout.prompt_length
        return set() if through or self.prompts.find(rollout) else {rollout.prompt_key}

    def _chunk_tokens(self, rollout: EngineRollout, rows: int) -> int:
        """Number of the rollout's tokens that can run in `rows` rows. Takes the pages for them."""
        count = min(rows, rollout.known - rollout.computed)
        if not self._reserve(rollout, rollout.computed + count):
            size = self._layout.page_size
            held = (len(rollout.pages) + self.pool.num_free) * size
            count = min(count, held - rollout.computed)
            self._reserve(rollout, rollout.computed + count)
        return count

    def _fork(self, rollout: EngineRollout, shared: tuple[int, ...]) -> bool:
        """Start after the prompt on shared pages. False if there is no page for the copy."""
        full = shared[: (rollout.prompt_length - 1) // self._layout.page_size]
        self.pool.share(full)
        rollout.take_pages(list(full))
        if not self._reserve(rollout, rollout.prompt_length):
            self._drop_pages(rollout)
            return False
        # The source may have been evicted for this very reservation. What it holds is still
        # there when the copy runs, before anything else of this plan.
        self._copies.append((shared[len(full)], rollout.pages[-1]))
        rollout.computed = min(rollout.prompt_length, rollout.known - 1)
        return True

    def _decode_budget(self, rollout: EngineRollout, most: int) -> int:
        """Tokens the rollout may yield at once: `most`, or as free pages allow, at least 1."""
        steps = min(most, rollout.room)
        if self._holds(rollout, rollout.known + steps - 1):
            return steps
        need = self._pages_for(rollout.known + steps - 1) - len(rollout.pages)
        rollout.take_pages(self.pool.alloc(min(need, self.pool.num_free)))
        held = len(rollout.pages) * self._layout.page_size
        return min(steps, held - rollout.known + 1)

    def _reserve(self, rollout: EngineRollout, tokens: int) -> bool:
        """Give the rollout pages for so many tokens, evicting younger ones for it."""
        need = self._pages_for(tokens) - len(rollout.pages)
        while need > self.pool.num_free:
            if self.prompts.release_one():
                continue
            if self.running[-1] is rollout:
                return False
            self._evict(self.running.pop())
        if need > 0:
            rollout.take_pages(self.pool.alloc(need))
        return True

    def _evict(self, rollout: EngineRollout) -> None:
        self._drop_pages(rollout)
        self.waiting.appendleft(rollout)

    def _drop_pages(self, rollout: EngineRollout) -> None:
        """Free its pages so that the last, useless without the others, is reused first."""
        self.pool.free(reversed(rollout.drop_pages()))

    def _advance(self, rollout: EngineRollout, count: int) -> None:
        before = rollout.computed
        rollout.computed += count
        rollout.most_computed = max(rollout.most_computed, rollout.computed)
        self._share(rollout, before)

    def _share(self, rollout: EngineRollout, before: int) -> None:
        """Offer its full pages to all rollouts, and a prompt that has been run to siblings."""
        self.prefixes.remember(rollout)
        if before < rollout.prompt_length <= rollout.computed and rollout.prompt_length > 1:
            self.prompts.publish(rollout, self._pages_for(rollout.prompt_length))

    def _runs(self, rollout: EngineRollout) -> bool:
        """Whether the rollout is still in a slot. The youngest are evicted first."""
        return bool(self.running) and rollout.arrival <= self.running[-1].arrival

    def _holds(self, rollout: EngineRollout, tokens: int) -> bool:
        return len(rollout.pages) * self._layout.page_size >= tokens

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self._layout.page_size)


def _decode(rollout: EngineRollout, budget: int) -> ScheduledTokens:
    return ScheduledTokens(rollout=rollout, start=rollout.known - 1, count=1, budget=budget)
