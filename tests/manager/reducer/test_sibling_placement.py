"""One response of each prompt leads, and the others follow where it is."""

from dataclasses import replace
from typing import Any

import pytest

from configs import tiny
from rlboost_jax import messages as m
from rlboost_jax.manager.events import ServerGone
from rlboost_jax.manager.settings import Settings
from rlboost_jax.settings import config_loading
from rlboost_jax.settings.speculation_config import SpeculationConfig
from tests.manager.desk import Desk, trained
from tests.manager.fakes import length, settings

A, B = 10, 11
GROUP = 4


def at_work(
    *, follow: bool = True, servers: tuple[int, ...] = (A, B), billed: bool = True, **changes: Any
) -> Desk:
    """Batch 0 of four prompts, of which servers with two slots each take what they can."""
    chosen = settings(deterministic=False, siblings_follow=follow, manager__max_pending=0)
    if not billed:
        chosen = replace(chosen, fleet=replace(chosen.fleet, reserved_price_per_hour=0.0))
    desk = Desk(chosen)
    desk.open_run(reserved=False)
    desk.publish(0)
    for stream in servers:
        desk.join(stream, version=0, **changes)
    desk.begin(0, prompts=4, group_size=GROUP)
    return desk


def places(requests: list[m.GenerateRequest]) -> list[tuple[int, int]]:
    """Prompt of each request, and its place in the group."""
    return [(r.work.prompt, r.work.sample % GROUP) for r in requests]


def test_those_that_lead_begin_first() -> None:
    desk = at_work()
    assert places(desk.requests(A)) == [(0, 0), (2, 0)]
    assert places(desk.requests(B)) == [(1, 0), (3, 0)]


def test_without_drafts_of_siblings_prompts_come_in_order() -> None:
    desk = at_work(follow=False)
    begun = places([*desk.requests(A), *desk.requests(B)])
    assert sorted(begun) == [(0, place) for place in range(GROUP)]


def test_the_others_follow_where_theirs_is_or_was() -> None:
    desk = at_work()
    requests = {stream: desk.requests(stream) for stream in (A, B)}
    prompts = {stream: {r.work.prompt for r in requests[stream]} for stream in (A, B)}
    for _ in range(3):  # its only rollout of a prompt ends, and a place is free
        for stream in (A, B):
            desk.tokens(stream, requests[stream][:1])
            (come,) = desk.requests(stream)
            assert come.work.prompt in prompts[stream]
            requests[stream] = [*requests[stream][1:], come]
            assert not desk.requests(A + B - stream)


def test_of_several_prompts_that_are_there_the_one_with_most_text_comes_first() -> None:
    desk = at_work(servers=(A,), slots=4)
    requests = {r.work.prompt: r for r in desk.requests(A)}
    assert places([*requests.values()]) == [(prompt, 0) for prompt in range(4)]
    whole = [length("d", 0, GROUP * prompt) for prompt in requests]
    longest, shortest = whole.index(max(whole)), whole.index(min(whole))
    desk.tokens(A, [requests[longest]], min(whole) + 1)
    desk.tokens(A, [requests[shortest]])
    assert places(desk.requests(A)) == [(longest, 1)]


def test_who_comes_takes_what_the_others_have_no_place_for() -> None:
    desk = at_work()
    desk.join(12, version=0, slots=GROUP)
    come = desk.requests(12)
    assert len(come) == GROUP and len({r.work.prompt for r in come}) == 2
    desk(ServerGone(12, "killed"))
    held = [*desk.manager.view.batch.rollouts] if desk.manager.view.batch else []
    assert sum(r.waiting for r in held) == 4 * GROUP - 4, "nothing is lost with it"


def test_prompts_that_come_later_lead_too() -> None:
    desk = at_work(servers=(A,), slots=6)
    before = desk.requests(A)
    assert len(before) == 6
    prompts = tuple(m.PromptRequest(prompt=p, tokens=m.pack_tokens([p, 0, 1])) for p in (4, 5))
    desk.trainer(m.ExtendBatch(batch=0, prompts=prompts))
    desk.join(B, version=0)
    assert places(desk.requests(B)) == [(4, 0), (5, 0)]


def test_what_measures_the_policy_comes_last() -> None:
    desk = at_work(servers=(A,), slots=6)
    prompts = tuple(
        m.PromptRequest(prompt=p, tokens=m.pack_tokens([p, 0, 1]), purpose="evaluate")
        for p in (0, 1)
    )
    desk.trainer(m.ExtendBatch(batch=0, prompts=prompts, samples=1))
    desk.join(B, version=0, slots=11)
    purposes = [r.work.purpose for r in desk.requests(B)]
    assert purposes == ["train"] * 10 + ["evaluate"]


@pytest.mark.parametrize(
    ("speculation", "expected"),
    [
        (SpeculationConfig(), False),
        (SpeculationConfig(enabled=True), True),
        (SpeculationConfig(enabled=True, drafters=("prompt",)), False),
    ],
)
def test_only_drafts_of_siblings_want_it(speculation: SpeculationConfig, expected: bool) -> None:
    run = replace(config_loading.run_config(tiny.get_config()), speculation=speculation)
    settings_of_run = Settings.of(run, "run")
    assert settings_of_run.siblings_follow is expected
    assert settings_of_run.drafts is speculation.enabled


def test_what_drafts_came_to_is_counted_by_server_and_step() -> None:
    desk = at_work(servers=(A,), slots=16)
    requests = desk.requests(A)
    drafts = m.DraftCounts(drafted=10, accepted=6, steps_saved=2)
    for _ in range(2):
        desk.server(A, m.Renew(drafts=drafts))
    (status,) = desk.manager.status(desk.now).instances
    assert status.drafts == (20, 12)
    desk.tokens(A, [], in_flight=99)
    desk.tokens(A, requests)
    desk.trainer(trained(0))
    (report,) = desk.sent(m.BatchReport)
    counted = report.tokens_drafted, report.drafts_accepted, report.decode_steps_saved
    assert counted == (20, 12, 4)
    (worked,) = desk.records("worked")
    assert (worked.detail["drafted"], worked.detail["steps_saved"]) == (20, 4)


@pytest.mark.parametrize("price", [0.0, 3600.0])
def test_dollars_saved_are_steps_saved_at_the_seconds_and_the_price_of_their_engine(
    price: float,
) -> None:
    desk = at_work(servers=(A,), slots=16, billed=price > 0, price_per_hour=price)
    requests = desk.requests(A)
    desk.tokens(A, [], in_flight=99)
    desk.now += 3.0
    desk.tokens(A, requests, 1, in_flight=99)  # one step of three seconds
    desk.now += 5.0
    desk.tokens(A, requests, 1, in_flight=99)  # and one of five
    for saved in (0, 1):
        drafts = m.DraftCounts(drafted=10, accepted=6, steps_saved=saved)
        desk.server(A, m.Renew(drafts=drafts))
    desk.tokens(A, requests)
    desk.trainer(trained(0))
    (report,) = desk.sent(m.BatchReport)
    # As the drafts saved one step, two tokens of the longest response took one step of 8 s.
    assert report.dollars_saved == (pytest.approx(8.0 * price / 3600) if price else None)


def test_without_drafts_there_are_no_numbers_of_them() -> None:
    desk = at_work(servers=(A,), slots=16)
    requests = desk.requests(A)
    desk.tokens(A, [], in_flight=99)
    desk.tokens(A, requests)
    desk.trainer(trained(0))
    (report,) = desk.sent(m.BatchReport)
    assert (report.tokens_drafted, report.drafts_accepted, report.decode_steps_saved) == (None,) * 3
    (worked,) = desk.records("worked")
    assert "drafted" not in worked.detail
