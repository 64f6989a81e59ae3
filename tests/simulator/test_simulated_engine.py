"""An engine against closed forms, and whatever interrupts it."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlboost_jax.simulator.rates import EngineRates
from rlboost_jax.simulator.row_clocks import Row
from rlboost_jax.simulator.simulated_engine import SimulatedEngine
from tests.simulator.conftest import make_config

RATES = EngineRates(make_config())


def engine(rates=RATES, *, slots=8, dispatch=1, message=10_000):
    return SimulatedEngine(rates, slots=slots, dispatch_tokens=dispatch, message_tokens=message)


def row(number, length, *, prompt=200, done=0):
    return Row(number, (0, number), prompt, length, done, done)


def run(machine, now=0.0):
    """Until nothing is held: (when, tokens reported per request)."""
    reported = {}
    while machine.held:
        now = machine.due_at
        machine.advance(now)
        for part in machine.report(now):
            reported[part.row.request_id] = reported.get(part.row.request_id, 0) + part.tokens
    return now, reported


def test_one_rollout_takes_its_prefill_and_its_steps():
    machine = engine()
    machine.add([row(1, 500)], 3.0)
    end, reported = run(machine)
    steps = 500 * RATES.step_seconds(1, 200 + 250)
    assert end == pytest.approx(3.0 + 200 * RATES.prefill_seconds + steps, rel=1e-6)
    assert reported == {1: 500}


def test_one_that_moved_here_pays_for_its_tokens_once():
    machine = engine()
    machine.add([row(1, 500, done=400)], 0.0)
    end, reported = run(machine)
    expected = 600 * RATES.prefill_seconds + 100 * RATES.step_seconds(1, 600 + 50)
    assert end == pytest.approx(expected, rel=1e-6)
    assert reported == {1: 100}


def test_a_group_shares_the_prefill_of_its_prompt():
    both, apart = engine(), engine()
    both.add([Row(n, (0, 0), 200, 50, 0, 0) for n in (1, 2)], 0.0)
    apart.add([Row(n, (0, n), 200, 50, 0, 0) for n in (1, 2)], 0.0)
    assert run(apart)[0] - run(both)[0] == pytest.approx(200 * RATES.prefill_seconds)


def test_beyond_the_slots_one_waits():
    machine = engine(slots=2)
    machine.add([row(n, 100) for n in range(3)], 0.0)
    assert (len(machine.running), machine.waiting) == (2, 1)
    assert run(machine)[1] == {0: 100, 1: 100, 2: 100}


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=12),
    cuts=st.lists(st.floats(0.0, 20.0), max_size=8),
)
def test_looking_at_it_changes_nothing(lengths, cuts):
    """Questions in between change neither tokens nor times."""
    calm, watched = engine(slots=4, dispatch=8), engine(slots=4, dispatch=8)
    for machine in (calm, watched):
        machine.add([row(n, length) for n, length in enumerate(lengths)], 0.0)
    end, reported = run(calm)
    seen, looked = 0, 0.0
    for now in sorted(cuts):
        if now < watched.due_at < math.inf:
            watched.advance(now)
            seen += sum(part.tokens for part in watched.report(now, everything=True))
            looked = now
    later, rest = run(watched)
    later = max(later, looked)  # the last token may have been there when it was looked at
    assert seen + sum(rest.values()) == sum(reported.values()) == sum(lengths)
    # A stretch's mean context stands for each of its steps, so cuts move little.
    assert later == pytest.approx(end, rel=0.02, abs=0.2)


@settings(deadline=None, max_examples=30)
@given(lengths=st.lists(st.integers(200, 3000), min_size=4, max_size=16))
def test_a_small_cache_is_never_overfull_and_all_end(lengths):
    small = EngineRates(make_config())
    small.kv_tokens = 5000
    machine = engine(small, slots=16, dispatch=8)
    machine.add([row(n, length) for n, length in enumerate(lengths)], 0.0)
    now, reported = 0.0, 0
    while machine.held:
        now = machine.due_at
        machine.advance(now)
        rows = machine.running.values()
        holds = sum(r.prompt_tokens + machine._clocks.position(r) for r in rows)
        assert holds <= small.kv_tokens or len(machine.running) == 1
        reported += sum(part.tokens for part in machine.report(now))
    assert reported == sum(lengths)


DRAFTS = {"engine__most_drafts": 7, "engine__draft_acceptance": 0.5, "engine__token_rows": 8}


def siblings(*lengths, prompt=0):
    return [Row(number, (0, prompt), 200, length, 0, 0) for number, length in enumerate(lengths)]


def test_a_sibling_that_ended_makes_the_others_faster_by_what_is_accepted():
    """Two rollouts of 100 and 340 tokens: 100 steps, then 240 tokens with 7 drafts in a step."""
    rates = EngineRates(make_config(**DRAFTS))
    machine = engine(rates)
    machine.add(siblings(100, 340), 0.0)
    end, reported = run(machine)
    tokens = 2 - 0.5**7  # 1 + 1/2 + … + 1/128
    steps = math.ceil(240 / tokens)
    expected = 200 * rates.prefill_seconds + 100 * rates.step_seconds(2, 2 * 250)
    expected += steps * rates.step_seconds(1, 200 + (100 + 340) / 2, drafts=7)
    assert end == pytest.approx(expected, rel=1e-4)
    assert reported == {0: 100, 1: 340}
    assert machine.spared_steps == pytest.approx(240 - steps, abs=2)  # of the last step too


def test_drafts_come_from_siblings_only_and_from_these_in_the_same_engine():
    plain, drafting = engine(), engine(EngineRates(make_config(**DRAFTS)))
    for machine in (plain, drafting):
        machine.add([row(number, 100 * (number + 1)) for number in range(4)], 0.0)
    assert run(plain) == run(drafting)
    # One that comes later drafts from the text that lies here.
    drafting.add([Row(9, (0, 3), 200, 400, 0, 0)], 1000.0)
    assert drafting.due_at - 1000.0 < plain._rates.step_seconds(1, 400) * 400


def test_one_that_begins_later_drafts_until_it_has_caught_up():
    """With a draft that is always right two tokens a step: 200 behind, it needs 200 steps."""
    always = {**DRAFTS, "engine__draft_acceptance": 1.0, "engine__most_drafts": 1}
    machine = engine(EngineRates(make_config(**always)))
    first, second = siblings(1000, 1000)
    machine.add([first], 0.0)
    now = machine._rates.prefill_seconds * 200 + 200 * machine._rates.step_seconds(1, 300)
    machine.advance(now)
    machine.report(now, everything=True)
    machine.add([second], now)
    run(machine)
    # All steps but the last one's are of the leader's pace: 200 are spared, less a dispatch a time.
    assert machine.spared_steps == pytest.approx(200, abs=3 * 8)


def test_beyond_all_texts_drafts_are_right_less_often():
    changes = {**DRAFTS, "engine__draft_beyond": 0.0}
    ends = {}
    for name, changed in (("same", DRAFTS), ("less", changes)):
        machine = engine(EngineRates(make_config(**changed)), dispatch=1)
        machine.add([Row(0, (0, 0), 200, 100, 0, 0)], 0.0)
        run(machine)
        rates, before = machine._rates, machine.spared_steps
        machine.add([Row(1, (0, 0), 200, 300, 0, 0)], 1000.0)
        ends[name] = run(machine)[0], machine.spared_steps - before
    tokens = rates.tokens_a_step(7)
    assert ends["less"][1] == pytest.approx(100 - 100 / tokens, abs=2)  # of the text's length
    assert ends["same"][1] == pytest.approx(300 - 300 / tokens, abs=2)
    assert ends["same"][0] < ends["less"][0]


def drafting_engine(*, earlier=0, **changes):
    return SimulatedEngine(
        EngineRates(make_config(**DRAFTS, **changes)), slots=8, dispatch_tokens=1,
        message_tokens=10_000, earlier_tokens=earlier,
    )  # fmt: skip


def again(number, length, prompt=b"what"):
    return Row(number, (number, 0), 1, length, 0, 0, prompt=prompt)


def spared_by(machine, added, at):
    before = machine.spared_steps
    machine.add([added], at)
    run(machine)
    return machine.spared_steps - before


def test_an_earlier_epochs_text_is_good_for_drafts_up_to_its_end():
    """100 of 300 tokens have drafts that are right with the chance 1/4; nothing goes beyond."""
    less = {"engine__draft_earlier": 0.5, "engine__draft_beyond": 0.0}
    tokens = (1 - 0.25**8) / 0.75  # 1 + 1/4 + … + (1/4)⁷
    for sampled_here in (True, False):
        machine = drafting_engine(earlier=1000, **less)
        if sampled_here:
            assert spared_by(machine, again(0, 100), 0.0) == 0.0
        else:
            machine.offer(b"what", 100)
        machine.forget(1)
        assert spared_by(machine, again(1, 300), 1000.0) == pytest.approx(100 - 100 / tokens, abs=2)
        assert spared_by(machine, again(2, 300, b"other"), 2000.0) == 0.0


def test_earlier_texts_are_kept_within_a_bound_those_written_longest_ago_go_first():
    """A text takes its tokens and four bytes of a prompt one more: two of 100 fit into 202."""
    for bound, spares in ((202, False), (303, True)):
        machine = drafting_engine(earlier=bound)
        for prompt in (b"what", b"when", b"whom"):
            machine.offer(prompt, 100)
        assert (spared_by(machine, again(1, 300), 0.0) > 0) == spares


def test_responses_to_other_prompts_are_good_for_drafts_once_any_has_ended():
    """Responses of 300 tokens, with the chance 1/4; the first of all has nothing."""
    machine = drafting_engine(engine__draft_recent=0.5)
    assert spared_by(machine, again(0, 100), 0.0) == 0.0
    machine.forget(1)
    found = spared_by(machine, again(1, 300, b"other"), 1000.0)
    assert found == pytest.approx(300 - 300 * 0.75 / (1 - 0.25**8), abs=2)


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=12),
    slots=st.integers(1, 8),
    dispatch=st.sampled_from([1, 8]),
    acceptance=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    cuts=st.lists(st.floats(0.0, 20.0), max_size=6),
)
def test_with_drafts_every_token_is_reported_once(lengths, slots, dispatch, acceptance, cuts):
    """And none of it takes longer; drafts that are never right change no time at all."""
    changes = {**DRAFTS, "engine__draft_acceptance": acceptance}
    calm = engine(slots=slots, dispatch=dispatch)
    drafting = engine(EngineRates(make_config(**changes)), slots=slots, dispatch=dispatch)
    for machine in (calm, drafting):
        machine.add(siblings(*lengths), 0.0)
    before, _ = run(calm)
    seen = {}
    for now in sorted(cuts):
        if now < drafting.due_at < math.inf:
            drafting.advance(now)
            drafting.lose_dispatch(now)
            for part in drafting.report(now, everything=True):
                seen[part.row.request_id] = seen.get(part.row.request_id, 0) + part.tokens
    end, rest = run(drafting)
    assert {n: seen.get(n, 0) + rest.get(n, 0) for n in range(len(lengths))} == dict(
        enumerate(lengths)
    )
    assert drafting._clocks.drafting == 0 and drafting._context == pytest.approx(0, abs=1e-6)
    if not cuts:
        assert end <= before * (1 + 1e-4)  # of a stretch the mean context counts
        if acceptance == 0.0:
            assert end == pytest.approx(before)


GROUPS = (  # of four responses, which made 144 tokens out of 144 - 3e-14
    (926, 351, 241, 258), (119, 50, 267, 168), (291, 283, 108, 196), (155, 145, 144, 136),
    (291, 283, 108, 196), (49, 129, 80, 34), (361, 584, 354, 373), (155, 145, 144, 136),
)  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(
    groups=st.lists(st.lists(st.integers(1, 400), min_size=1, max_size=4), min_size=1, max_size=8),
    slots=st.integers(1, 32),
    dispatch=st.sampled_from([1, 4, 8]),
    message=st.sampled_from([1, 8, 32]),
    most=st.integers(1, 7),
    rows=st.integers(1, 64),
    acceptance=st.floats(0.0, 1.0),
    beyond=st.floats(0.0, 1.0),
    begun=st.floats(0.0, 1e6),
    cuts=st.lists(st.floats(0.0, 10.0), max_size=6),
)
@example(
    groups=GROUPS, slots=32, dispatch=8, message=8, most=7, rows=32,
    acceptance=0.6031230164102541, beyond=1.0, begun=0.0, cuts=[],
)  # fmt: skip
def test_with_drafts_all_end_in_time_and_the_last_token_comes_with_the_end(
    groups, slots, dispatch, message, most, rows, acceptance, beyond, begun, cuts
):
    """The last token tells that a response is over: without one the manager waits for ever."""
    rates = EngineRates(make_config(
        engine__most_drafts=most, engine__draft_acceptance=acceptance,
        engine__draft_beyond=beyond, engine__token_rows=rows,
    ))  # fmt: skip
    machine = engine(rates, slots=slots, dispatch=dispatch, message=message)
    lengths = [(prompt, length) for prompt, group in enumerate(groups) for length in group]
    machine.add(
        [Row(n, (0, prompt), 200, length, 0, 0) for n, (prompt, length) in enumerate(lengths)],
        begun,
    )
    total = sum(length for _, length in lengths)
    context = total + 200 * len(lengths)
    step = rates.step_seconds(len(lengths), context, drafts=most * len(lengths))
    longest = begun + context * rates.prefill_seconds + (total + 16 * len(lengths)) * step
    now, left, later = begun, set(range(len(lengths))), sorted(begun + cut for cut in cuts)
    while machine.held:
        cut = bool(later) and later[0] < machine.due_at
        now = max(now, later.pop(0) if cut else machine.due_at)
        machine.advance(now)
        for part in machine.report(now, everything=cut):
            assert part.tokens > 0
            left -= {part.row.request_id} if part.ended else set()
        for each in machine.running.values():
            assert each.reported <= each.done < each.length
        assert now < longest * (1 + 1e-9)
    assert not left


def test_steps_that_are_due_are_done_however_coarse_time_is():
    """A nanosecond, the least that a fit gives, is no whole number of a day's last places."""
    quick = EngineRates(make_config(engine__table=((1.0, 0.0, 1e-9), (1.0, 4000.0, 1e-9))))
    machine = engine(quick, dispatch=8, message=8)
    machine.add([row(1, 500)], 86_400.0)
    for _ in range(500 // 8 + 1):
        now = machine.due_at
        machine.advance(now)
        machine.report(now)
    assert not machine.held


def test_what_is_taken_away_says_no_more():
    machine = engine()
    machine.add([row(1, 500), row(2, 500)], 0.0)
    machine.advance(2.0)
    before = {part.row.request_id: part.tokens for part in machine.report(2.0, everything=True)}
    machine.remove([1], 2.0)
    assert before[1] > 0
    assert run(machine)[1] == {2: 500 - before[2]}


def test_a_pause_is_time_lost():
    calm, paused = engine(), engine()
    for machine in (calm, paused):
        machine.add([row(1, 500)], 0.0)
    paused.pause(True, 1.0)
    assert paused.due_at == math.inf
    paused.pause(False, 8.0)
    assert run(paused)[0] == pytest.approx(run(calm)[0] + 7.0, abs=0.05)


def test_a_machine_that_vanishes_has_sent_its_whole_dispatches():
    """21 steps in dispatches of 8 have sent two dispatches; the third is lost."""
    machine = engine(dispatch=8)
    machine.add([row(n, 500) for n in range(3)], 0.0)
    seconds = 3 * 200 * RATES.prefill_seconds  # of the prompts, before the first step
    step = RATES.step_seconds(3, 3 * 200 + 504 * 3 / 2)  # mean of the stretch until the first end
    now = seconds + 21.5 * step
    machine.lose_dispatch(now)
    assert {part.row.request_id: part.tokens for part in machine.report(now, everything=True)} == {
        0: 16,
        1: 16,
        2: 16,
    }


def test_one_that_vanishes_between_two_dispatches_loses_none():
    machine = engine(dispatch=8)
    machine.add([row(1, 16)], 0.0)
    now = machine.due_at
    machine.lose_dispatch(now)
    assert [part.tokens for part in machine.report(now)] == [16]
