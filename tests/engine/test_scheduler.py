"""The scheduler against a device that computes with symbols.

A page remembers, for every token, the tokens up to it that its keys and values stand for. A
step that would attend to anything else, or write a page twice, is caught.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from rlboost_jax.engine.engine_rollouts import EngineRollout, new_rollout
from rlboost_jax.engine.layouts import StepLayout
from rlboost_jax.engine.program_plans import ProgramPlan, ScheduledTokens
from rlboost_jax.engine.scheduler import Scheduler
from rlboost_jax.messages import GenerateRequest, Sampling, pack_tokens
from rlboost_jax.sequences.identities import Work

MAX_STEPS = 4
STOP = 5

Yields = Sequence[list[int]]


def next_token(tokens: tuple[int, ...]) -> int:
    return hash(tokens) % 11


def known_of(rollout: EngineRollout) -> tuple[int, ...]:
    return tuple(rollout.tokens(0, rollout.known).tolist())


class SymbolicDevice:
    """Runs plans, and knows which tokens every place of every page stands for."""

    def __init__(self, layout: StepLayout) -> None:
        self.layout = layout
        self.kv: dict[tuple[int, int], tuple[int, ...]] = {}
        self.seen: set[tuple[int, int]] = set()  # (rollout, position) that was once in its pages

    def run(self, plan: ProgramPlan, before: Yields = ()) -> Yields:
        """What each piece of work yields; `before`: that of a plan that was not reported yet."""
        sources, targets = [c[0] for c in plan.copies], [c[1] for c in plan.copies]
        assert len(set(targets)) == len(targets) <= self.layout.slots
        assert len(plan.work) <= self.layout.slots
        copied = {
            (target, place): self.kv[source, place]
            for source, target in zip(sources, targets, strict=True)
            for place in range(self.layout.page_size)
            if (source, place) in self.kv
        }
        self.kv.update(copied)
        if plan.mixed:
            assert sum(work.count for work in plan.work) <= self.layout.token_rows
            again = 0
            written: set[tuple[int, int]] = set()
            for work in plan.work:
                known = known_of(work.rollout)
                for position in range(work.start, work.start + work.count):
                    place = self.place(work.rollout, position)
                    assert place not in written, "two rows write one place"
                    written.add(place)
                    self.kv[place] = known[: position + 1]
                    again += (work.rollout.arrival, position) in self.seen
            assert again == plan.prefilled_again
            for work in plan.work:
                known = known_of(work.rollout)
                assert work.budget == (work.start + work.count == len(known))
                self.attend(work.rollout, known[: work.start + work.count])
        return [self.decode(work, plan.mixed, before) for work in plan.work]

    def decode(self, work: ScheduledTokens, mixed: bool, before: Yields) -> list[int]:
        rollout = work.rollout
        known = known_of(rollout)
        if work.follows is not None:
            known += tuple(before[work.follows])
            if known[-1] in rollout.limits.stop_ids:
                return []
        assert mixed or len(known) == work.start + work.count
        start = len(known)
        while len(known) - start < work.budget:
            if not mixed:
                self.kv[self.place(rollout, len(known) - 1)] = known
            self.attend(rollout, known)
            known += (next_token(known),)
            if known[-1] in rollout.limits.stop_ids:
                break
        return list(known[start:])

    def attend(self, rollout: EngineRollout, known: tuple[int, ...]) -> None:
        for position in range(len(known)):
            assert self.kv[self.place(rollout, position)] == known[: position + 1]
            self.seen.add((rollout.arrival, position))

    def place(self, rollout: EngineRollout, position: int) -> tuple[int, int]:
        size = self.layout.page_size
        return rollout.pages[position // size], position % size


def oracle(request: GenerateRequest) -> tuple[int, ...]:
    """All after the prompt."""
    prompt = tuple(np.frombuffer(request.prompt_tokens, "<i4").tolist())
    response = tuple(np.frombuffer(request.response_tokens, "<i4").tolist())
    sampled = len(response) - sum(request.runs[1::2])
    while sampled < request.sampling.max_tokens:
        response, sampled = (*response, next_token(prompt + response)), sampled + 1
        if response[-1] in request.sampling.stop_ids:
            break
    return response


def draw_layout(random: np.random.Generator) -> StepLayout:
    """Small sizes, more often than not with fewer pages than the slots would like."""
    slots, pages = int(random.integers(1, 6)), int(random.integers(2, 7))
    return StepLayout(
        token_rows=slots + int(random.integers(0, 12)),
        decode_rows=(8,),
        sampled_rows=8,
        slots=slots,
        page_size=int(random.integers(1, 6)),
        pages_per_slot=pages,
        num_pages=pages + int(random.integers(0, pages * slots)) // 2,
    )


def draw_request(
    random: np.random.Generator, request_id: int, prompts: list[list[int]], slot_tokens: int
) -> GenerateRequest:
    """One of the prompts, fresh, with some of its tokens sampled elsewhere, or in a second turn."""
    group = int(random.integers(len(prompts)))
    prompt = prompts[group]
    most = slot_tokens - len(prompt)
    stop_ids = (STOP,) if random.random() < 0.5 else ()
    response = oracle(make_request(request_id, prompt, (), group, most, stop_ids))
    chance = random.random()
    if chance < 0.3 and most > 2:
        return draw_turn(random, request_id, prompt, group, most, stop_ids)
    have = int(random.integers(len(response))) if chance > 0.7 else 0
    return make_request(request_id, prompt, response[:have], group, most, stop_ids)


def draw_turn(
    random: np.random.Generator,
    request_id: int,
    prompt: list[int],
    group: int,
    most: int,
    stop_ids: tuple[int, ...],
) -> GenerateRequest:
    """Up to `most` tokens after the prompt: a turn, something that is given, perhaps the STOP
    itself, and none or some of the next turn."""
    given = int(random.integers(1, most - 1))
    budget = most - given
    turn = oracle(make_request(request_id, prompt, (), group, budget, stop_ids))
    have = int(random.integers(1, min(len(turn), budget - 1) + 1))
    known = turn[:have] + tuple(random.integers(0, STOP + 1, given).tolist())
    request = make_request(request_id, prompt, known, group, budget, stop_ids, (have, given))
    more = int(random.integers(len(oracle(request)) - len(known)))
    if more == 0:
        return request
    known = oracle(request)[: len(known) + more]
    return make_request(request_id, prompt, known, group, budget, stop_ids, (have, given, more))


@given(seed=st.integers(0, 2**32 - 1))
def test_every_rollout_gets_its_tokens_whatever_happens(seed: int) -> None:
    """Random submissions, releases, page shortages and plans that follow others unseen.

    Nothing is lost, doubled, mixed up or stuck.
    """
    random = np.random.default_rng(seed)
    layout = draw_layout(random)
    scheduler, device = Scheduler(layout, MAX_STEPS), SymbolicDevice(layout)
    slot_tokens = layout.pages_per_slot * layout.page_size
    prompts = [
        random.integers(0, 11, random.integers(1, slot_tokens)).tolist()
        for _ in range(random.integers(1, 5))
    ]
    requests: dict[int, GenerateRequest] = {}
    held: dict[int, EngineRollout] = {}
    released: set[int] = set()
    done: dict[int, tuple[int, ...]] = {}
    turns, num_requests = 0, int(random.integers(1, 16))
    while held or len(requests) < num_requests:
        turns += 1
        assert turns < 2000, "no end"
        while len(requests) < num_requests and (not held or random.random() < 0.6):
            request = draw_request(random, len(requests), prompts, slot_tokens)
            requests[request.request_id] = request
            rollout = new_rollout(request, layout, request.request_id)
            held[request.request_id] = rollout
            scheduler.add(rollout)
        if held and random.random() < 0.03:
            leaving = int(random.choice(sorted(held)))
            scheduler.remove(held.pop(leaving))
            released.add(leaving)
        plan = scheduler.plan()
        assert (plan is None) == (not held)
        if plan is None:
            continue
        yields = device.run(plan)
        while plan is not None:
            following = scheduler.follow(plan) if random.random() < 0.7 else None
            later = device.run(following, yields) if following is not None else ()
            for work, tokens in zip(plan.work, yields, strict=True):
                assert len(tokens) <= work.budget
                if tokens and scheduler.report(work.rollout, np.array(tokens, np.int32)):
                    rollout = held.pop(work.rollout.request_id)
                    done[rollout.request_id] = known_of(rollout)[rollout.prompt_length :]
            check_invariants(scheduler, layout)
            plan, yields = following, later
    assert done == {i: oracle(r) for i, r in requests.items() if i not in released}
    assert scheduler.pool.num_free == layout.num_pages


def make_request(
    request_id: int,
    prompt: list[int],
    response: tuple[int, ...],
    group: int,
    max_tokens: int,
    stop_ids: tuple[int, ...] = (STOP,),
    runs: tuple[int, ...] = (),
) -> GenerateRequest:
    return GenerateRequest(
        work=Work(seed=0, batch=0, prompt=group, sample=request_id),
        request_id=request_id,
        version=1,
        prompt_tokens=pack_tokens(prompt),
        response_tokens=pack_tokens(response),
        runs=runs,
        sampling=Sampling(
            temperature=1, top_p=1, top_k=0, max_tokens=max_tokens, stop_ids=stop_ids
        ),
    )


def check_invariants(scheduler: Scheduler, layout: StepLayout) -> None:
    running, waiting = scheduler.running, scheduler.waiting
    order = [rollout.arrival for rollout in [*running, *waiting]]
    assert order == sorted(order), "a younger rollout runs before an older one"
    assert len(running) <= layout.slots
    assert all(not rollout.pages for rollout in waiting)
    for rollout in running:
        assert len(rollout.pages) * layout.page_size >= rollout.computed
        assert len(set(rollout.pages)) == len(rollout.pages)
        assert all(scheduler.pool.holders(page) for page in rollout.pages)


def report(scheduler: Scheduler, plan: ProgramPlan, yields: Yields) -> None:
    for work, tokens in zip(plan.work, yields, strict=True):
        if tokens:
            scheduler.report(work.rollout, np.array(tokens, np.int32))


LAYOUT = StepLayout(
    token_rows=64,
    decode_rows=(8,),
    sampled_rows=8,
    slots=2,
    page_size=4,
    pages_per_slot=8,
    num_pages=32,
)


@pytest.fixture
def settle() -> Callable[[Scheduler, SymbolicDevice], list[ProgramPlan]]:
    def run(scheduler: Scheduler, device: SymbolicDevice) -> list[ProgramPlan]:
        plans = []
        while (plan := scheduler.plan()) is not None:
            plans.append(plan)
            report(scheduler, plan, device.run(plan))
        return plans

    return run


def test_a_group_prefills_its_prompt_once(
    settle: Callable[[Scheduler, SymbolicDevice], list[ProgramPlan]],
) -> None:
    layout = replace(LAYOUT, slots=4)
    scheduler, prompt = Scheduler(layout, MAX_STEPS), list(range(20, 30))
    for i in range(4):
        scheduler.add(new_rollout(make_request(i, prompt, (), 0, 8), layout, i))
    first = scheduler.plan()
    assert first is not None and first.mixed
    assert [(w.rollout.arrival, w.count) for w in first.work] == [(0, 10)]
    device = SymbolicDevice(layout)
    report(scheduler, first, device.run(first))
    second = scheduler.plan()
    assert second is not None and not second.mixed  # the siblings have nothing to prefill
    assert len(second.copies) == 3
    tables = [rollout.pages for rollout in scheduler.running]
    assert len({tuple(pages[:2]) for pages in tables}) == 1  # 8 of 10 tokens in full pages
    assert len({pages[2] for pages in tables}) == 4
    # Two shared pages, and for each rollout the page that begins with the last prompt tokens
    # and one for the four tokens to come; the published page is the first member's own.
    assert scheduler.pool.num_held == 2 + 4 * 2
    report(scheduler, second, device.run(second))
    settle(scheduler, device)
    assert scheduler.pool.num_held == 0


def test_a_sibling_that_comes_after_the_first_has_left_still_shares(
    settle: Callable[[Scheduler, SymbolicDevice], list[ProgramPlan]],
) -> None:
    layout = replace(LAYOUT, slots=1)
    scheduler, prompt = Scheduler(layout, MAX_STEPS), list(range(20, 30))
    for i in range(3):
        scheduler.add(new_rollout(make_request(i, prompt, (), 0, 8), layout, i))
    plans = settle(scheduler, SymbolicDevice(layout))
    assert sum(work.count for plan in plans if plan.mixed for work in plan.work) == 10


def test_what_follows_a_plan_goes_on_from_all_that_it_may_yield() -> None:
    layout = replace(LAYOUT, slots=3, num_pages=9)
    scheduler, device = Scheduler(layout, MAX_STEPS), SymbolicDevice(layout)
    limits = (2, 8, 14)
    for i, limit in enumerate(limits):
        request = make_request(i, [20 + i, 7], (), i, limit, stop_ids=())
        scheduler.add(new_rollout(request, layout, i))
    first = scheduler.plan()
    assert first is not None and scheduler.follow(first) is None  # a mixed step
    report(scheduler, first, device.run(first))
    plan = scheduler.plan()  # one token, four and four: known are 3 of each
    assert plan is not None
    yields = device.run(plan)
    following = scheduler.follow(plan)
    assert following is not None
    assert [(w.follows, w.start, w.budget) for w in following.work] == [(1, 6, 3), (2, 6, 4)]
    later = device.run(following, yields)
    report(scheduler, plan, yields)
    last = scheduler.follow(following)
    assert last is not None
    assert [(w.follows, w.start, w.budget) for w in last.work] == [(1, 10, 4)]
    yields = device.run(last, later)
    report(scheduler, following, later)
    scheduler.add(new_rollout(make_request(3, [1, 2], (), 3, 4), layout, 3))
    assert scheduler.follow(last) is None  # one waits, who can have the place of another
    report(scheduler, last, yields)


def test_nothing_follows_for_want_of_pages() -> None:
    layout = replace(LAYOUT, pages_per_slot=4, num_pages=5)
    scheduler, device = Scheduler(layout, MAX_STEPS), SymbolicDevice(layout)
    for i in range(2):
        request = make_request(i, [20 + i, 7], (), i, 14, stop_ids=())
        scheduler.add(new_rollout(request, layout, i))
    first = scheduler.plan()
    assert first is not None
    report(scheduler, first, device.run(first))
    plan = scheduler.plan()  # up to token 6: two pages each, and to token 10 three
    assert plan is not None and scheduler.pool.num_free == 1
    assert scheduler.follow(plan) is None
    assert scheduler.pool.num_free == 1


def test_nothing_follows_a_plan_that_leaves_someone_out() -> None:
    """Its pages may come from a rollout that the plan is about to end."""
    layout = replace(LAYOUT, page_size=16, pages_per_slot=2, num_pages=3)
    scheduler, device = Scheduler(layout, MAX_STEPS), SymbolicDevice(layout)
    for i, length in enumerate((13, 12)):
        request = make_request(i, list(range(20, 20 + length)), (), i, 18, stop_ids=())
        scheduler.add(new_rollout(request, layout, i))
    for _ in range(2):  # the prompts, and up to tokens 18 and 17
        plan = scheduler.plan()
        assert plan is not None
        report(scheduler, plan, device.run(plan))
    plan = scheduler.plan()
    assert plan is not None and not plan.mixed
    assert len(plan.work) == 1 and len(scheduler.running) == 2
    assert scheduler.follow(plan) is None


def test_the_youngest_gives_way_and_comes_back(
    settle: Callable[[Scheduler, SymbolicDevice], list[ProgramPlan]],
) -> None:
    layout = replace(LAYOUT, num_pages=8)
    scheduler = Scheduler(layout, MAX_STEPS)
    rollouts = [
        new_rollout(make_request(i, [20 + i, 7], (), i, 30, stop_ids=()), layout, i)
        for i in range(2)
    ]
    for rollout in rollouts:
        scheduler.add(rollout)
    plans = settle(scheduler, SymbolicDevice(layout))
    assert [rollout.known for rollout in rollouts] == [32, 32]
    again = [plan for plan in plans if plan.prefilled_again]
    assert again and {work.rollout.arrival for plan in again for work in plan.work} == {1}


def test_a_rollout_that_comes_back_goes_on_from_its_full_pages() -> None:
    layout = LAYOUT
    scheduler, prompt = Scheduler(layout, MAX_STEPS), list(range(20, 30))
    device = SymbolicDevice(layout)
    first = new_rollout(make_request(0, prompt, (), 0, 16, stop_ids=()), layout, 0)
    scheduler.add(first)
    for _ in range(3):  # the prompt, and twice four tokens
        plan = scheduler.plan()
        assert plan is not None
        report(scheduler, plan, device.run(plan))
    assert first.known == 19
    scheduler.remove(first)
    assert scheduler.pool.num_held == 0

    response = known_of(first)[10:]
    other = (*response[:-5], (response[-5] + 1) % 11, *response[-4:])  # differs at token 14
    for arrival, (have, start) in enumerate([(response, 16), (other, 12), ((), 8)], start=1):
        again = make_request(arrival, prompt, have, arrival, 16, stop_ids=())
        scheduler.add(new_rollout(again, layout, arrival))
        plan = scheduler.plan()
        assert plan is not None
        assert [work.start for work in plan.work] == [start]
        device.run(plan)  # attends to nothing but what the tokens stand for
        scheduler.remove(scheduler.running[0])

    scheduler.prefixes.forget()  # new weights
    scheduler.add(new_rollout(make_request(9, prompt, response, 9, 16), layout, 9))
    plan = scheduler.plan()
    assert plan is not None and plan.work[0].start == 0
