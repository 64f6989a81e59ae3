"""Drafts change when a token is sampled and never which; and where they come from."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlboost_jax.engine import drafts
from rlboost_jax.engine.draft_policy import DraftPolicy, SpeculationCounts
from rlboost_jax.engine.drafts import LEAST_MATCH, MOST_DRAFTS, NO_TOKEN, DraftTexts, proposals
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.engine_rollouts import new_rollout
from rlboost_jax.engine.layouts import DRAFT_CONTEXT
from rlboost_jax.engine.program_plans import ProgramPlan
from rlboost_jax.engine.requests import RequestRejected
from rlboost_jax.engine.verify_steps import widths_of
from rlboost_jax.messages import GenerateRequest, pack_tokens
from rlboost_jax.sequences.prompt_memory import PromptMemory
from rlboost_jax.sequences.stop_table import END, pack
from rlboost_jax.settings.speculation_config import Drafter
from tests.engine.conftest import Rollouts

Build = Callable[..., Engine]
Drain = Callable[[Engine], Rollouts]
Requests = Callable[..., GenerateRequest]
BOTH = ("siblings", "prompt")


@pytest.fixture
def requests(request_of: Requests) -> list[GenerateRequest]:
    """Groups of three, more than there are slots, of which some end early."""
    random = np.random.default_rng(5)
    prompts = [random.integers(0, 37, n).tolist() for n in (2, 5, 13)]
    return [
        request_of(3 * group + member, prompt, group=group, stop_ids=(5,) if group else ())
        for group, prompt in enumerate(prompts)
        for member in range(3)
    ]


class Oracle:
    """Texts that hold what each rollout will say, as another engine found out."""

    def __init__(self, expected: Rollouts, spoil: Callable[[list[int]], list[int]]) -> None:
        self._expected, self._spoil = expected, spoil

    def __call__(self, texts: DraftTexts, rollouts: Any, rows: int) -> NDArray[np.int32]:
        packed = np.full((rows, texts._row_tokens), NO_TOKEN, np.int32)
        for row, rollout in zip(packed, rollouts, strict=False):
            known = rollout.tokens(0, rollout.known)
            row[:DRAFT_CONTEXT] = [-2] * max(0, DRAFT_CONTEXT - len(known)) + list(
                known[-DRAFT_CONTEXT:]
            )
            said = rollout.transcript.num_tokens
            coming = self._spoil(self._expected[rollout.request_id][0][said:])
            text = [*known[-DRAFT_CONTEXT:].tolist(), *coming]
            row[DRAFT_CONTEXT : DRAFT_CONTEXT + len(text)] = text
        return packed


@pytest.mark.parametrize(
    ("spoil", "least_gain"),
    [
        (lambda coming: coming, 2.0),
        (lambda coming: [(token + 1) % 37 for token in coming], 1.0),
        (lambda coming: coming[1:], 1.0),  # one token short
        (lambda coming: [t if n % 3 else 36 - t for n, t in enumerate(coming)], 1.0),
    ],
    ids=["right", "wrong", "short", "mixed"],
)
@pytest.mark.parametrize(
    "settings", [{}, {"num_pages": 11}, {"steps_per_dispatch": 1}, {"truncated_sampling": True}]
)
def test_right_and_wrong_drafts_cannot_show(
    build_engine: Build,
    drain: Drain,
    requests: list[GenerateRequest],
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[list[int]], list[int]],
    least_gain: float,
    settings: dict[str, Any],
) -> None:
    if "truncated_sampling" in settings:
        requests = [
            msgspec.structs.replace(r, sampling=msgspec.structs.replace(r.sampling, top_p=0.8))
            for r in requests
        ]
    usual = build_engine(**settings)
    usual.submit(requests)
    expected = drain(usual)
    engine = build_engine(slots=2, drafters=BOTH, **settings)
    oracle = Oracle(expected, spoil)
    monkeypatch.setattr(DraftTexts, "pack", lambda *arguments: oracle(*arguments))
    monkeypatch.setattr(engine.drafts, "wants", bool)
    engine.drafts.counts = SpeculationCounts()
    engine.submit(requests)
    assert drain(engine) == expected
    counts = engine.drafts.counts
    assert counts.drafted > 50 and counts.tokens > 80
    assert counts.tokens >= least_gain * counts.sequence_steps


@pytest.mark.parametrize("settings", [{}, {"num_pages": 22}])
def test_drafts_ride_beside_prefill(
    build_engine: Build,
    drain: Drain,
    request_of: Requests,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    """Beside prompts, behind copies of pages, and where rollouts are evicted."""
    random = np.random.default_rng(7)
    prompts = [random.integers(0, 37, n).tolist() for n in (20, 19, 18, 20)]
    requests = [
        request_of(4 * group + member, prompt, group=group, stop_ids=(5,))
        for group, prompt in enumerate(prompts)
        for member in range(4)
    ]
    usual, engine = build_engine(**settings), build_engine(slots=4, drafters=BOTH, **settings)
    usual.submit(requests)
    expected = drain(usual)
    oracle = Oracle(expected, lambda coming: coming)
    monkeypatch.setattr(DraftTexts, "pack", lambda *arguments: oracle(*arguments))
    monkeypatch.setattr(engine.drafts, "wants", bool)
    scheduler, plans, counts = engine._scheduler, list[ProgramPlan](), list[SpeculationCounts]()
    plan = scheduler.plan

    def planned() -> ProgramPlan | None:
        made = plan()
        plans.extend([made] if made else [])
        return made

    monkeypatch.setattr(scheduler, "plan", planned)
    monkeypatch.setattr(engine.drafts, "verified", counts.append)
    engine.submit(requests)
    assert drain(engine) == expected
    drafted = zip([each for each in plans if each.texts is not None], counts, strict=True)
    beside = [(each, count) for each, count in drafted if each.mixed]
    assert sum(count.accepted for _, count in beside) > 10
    assert all(count.steps == 1 for _, count in beside)
    assert any(each.copies for each in plans if each.texts is not None)
    assert any(each.prefilled_again for each, _ in beside) == bool(settings)


def test_texts_of_siblings_save_steps(
    build_engine: Build, drain: Drain, request_of: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A greedy sibling says what the first one has said; a finished one is known still."""
    plain, engine = build_engine(slots=1), build_engine(slots=1, drafters=("siblings",))
    monkeypatch.setattr(engine.drafts, "wants", bool)
    requests = [request_of(i, [7, 1, 3], temperature=0.0, stop_ids=()) for i in range(4)]
    found = []
    for each in (plain, engine):
        each.submit(requests)
        found.append(drain(each))
    assert found[0] == found[1]
    first, *others = (tokens for tokens, _ in found[1].values())
    assert all(tokens == first for tokens in others)
    counts = engine.drafts.counts
    assert counts.tokens == 4 * 24 - 1  # one comes from the prefill
    assert counts.steps == 23 + 3 * 4, "one that repeats takes five tokens, then eight a step"
    assert counts.steps_saved == counts.accepted, "one sequence in each step"
    for number, drafted in ((8, 19), (9, 0)):
        engine.submit([request_of(number, [7, 1, 3], temperature=0.0, stop_ids=())])
        engine.drafts.counts = SpeculationCounts()
        assert drain(engine)[number][0] == first
        assert engine.drafts.counts.drafted == drafted, "texts stay until other weights may come"
        engine.warm_up()


def test_stop_strings_and_turns(
    build_engine: Build, drain: Drain, request_of: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, engine = build_engine(), build_engine(slots=2, drafters=BOTH)
    monkeypatch.setattr(engine.drafts, "wants", bool)
    plain.submit([request_of(1, [7, 1], temperature=0.0, stop_ids=())])
    said = drain(plain)[1][0]
    stop = pack([(0, said[4], 1), (1, said[5], END)])
    requests = [
        request_of(1, [7, 1], temperature=0.0, stop_ids=(), stops=stop),
        request_of(2, [7, 1], temperature=0.0, stop_ids=(), max_tokens=9),
        request_of(3, [7, 1], [*said[:4], 3, 3], temperature=0.0, stop_ids=(), runs=(4, 2)),
    ]
    found = []
    for each in (plain, engine):
        each.submit(requests)
        found.append(drain(each))
    assert found[0] == found[1]
    assert found[0][1][0] == said[:6]


@given(
    wanted=st.lists(st.integers(0, MOST_DRAFTS + 1), min_size=1, max_size=12),
    spare=st.integers(0, 40),
)
def test_rows_are_shared_evenly_and_used_up(wanted: list[int], spare: int) -> None:
    num_rows = sum(1 for each in wanted if each) + spare
    widths = np.asarray(widths_of(jnp.array(wanted, jnp.int32), num_rows)).tolist()
    assert all(
        0 <= w <= most and (w > 0) == (most > 0) for w, most in zip(widths, wanted, strict=True)
    )
    assert sum(widths) == min(num_rows, sum(wanted)) or sum(widths) == 0
    short = [w for w, most in zip(widths, wanted, strict=True) if w < most]
    if short:
        assert max(widths) <= min(short) + 1


def matches(newest: list[int], before: list[int]) -> tuple[int, int]:
    """Equal tokens up to the second unequal pair, and up to the first."""
    pairs = zip(reversed(newest), reversed(before[-DRAFT_CONTEXT:]), strict=False)
    equal = [a == b for a, b in pairs]
    until = [n for n, each in enumerate(equal) if not each] + 2 * [len(equal)]
    return sum(equal[: until[1]]), until[0]


def proposed(newest: list[int], text: list[int]) -> list[int]:
    """What follows the best match, the last of equally good ones, and no more than matches."""
    usable = [
        (*matches(newest, text[: place + 1]), place)
        for place in range(len(text) - 1)
        if text[place + 1] != NO_TOKEN
    ]
    most, _, place = max(usable, default=(0, 0, 0))
    if most < LEAST_MATCH:
        return []
    following = text[place + 1 : place + 1 + min(most, MOST_DRAFTS)]
    return following[: [*following, NO_TOKEN].index(NO_TOKEN)]


@given(seed=st.integers(0, 2**32 - 1), alphabet=st.integers(2, 6), length=st.integers(2, 60))
def test_drafts_follow_the_best_match(seed: int, alphabet: int, length: int) -> None:
    random = np.random.default_rng(seed)
    newest = random.integers(0, alphabet, (3, DRAFT_CONTEXT))
    newest[1, : random.integers(DRAFT_CONTEXT)] = -2  # a short prompt
    texts = random.integers(-1, alphabet, (3, 60))
    texts[:, length:] = NO_TOKEN
    found = np.asarray(proposals(jnp.asarray(newest), jnp.asarray(texts)))
    for n, row in enumerate(found):
        wanted = proposed(newest[n].tolist(), texts[n].tolist())
        assert row.tolist() == wanted + [NO_TOKEN] * (MOST_DRAFTS - len(wanted))


def test_texts_hold_the_longest_sibling_last_and_what_is_older_goes(
    build_engine: Build, request_of: Requests
) -> None:
    layout = build_engine().layout
    rollouts = [
        new_rollout(request_of(i, [1, 2, 3], [10 + i] * (4 + i)), layout, i) for i in range(3)
    ]
    texts = DraftTexts(BOTH, DRAFT_CONTEXT + 24)
    for rollout in rollouts:
        texts.join(rollout)
    other, own, longest = ([1, 2, 3, *[10 + i] * (4 + i)] for i in range(3))
    (row, unused) = texts.pack(rollouts[1:2], 2).tolist()
    assert row[:DRAFT_CONTEXT] == own
    kept = [*own, NO_TOKEN, *other, NO_TOKEN, *longest, NO_TOKEN][-24:]
    assert row[DRAFT_CONTEXT:] == kept
    assert set(unused[DRAFT_CONTEXT:]) == {NO_TOKEN}
    texts.leave(rollouts[0])
    assert texts.pack(rollouts[1:2], 1).tolist()[0] == row, "finished siblings are known still"
    for rollout in rollouts[1:]:
        texts.leave(rollout)
    texts.join(rollouts[1])
    assert texts.pack(rollouts[1:2], 1).tolist()[0] == row, "also where none was held meanwhile"
    texts.leave(rollouts[1])
    texts.forget()
    texts.join(rollouts[1])
    assert texts.pack(rollouts[1:2], 1).tolist()[0] != row, "other weights say other things"
    lone = DraftTexts(("siblings",), DRAFT_CONTEXT + 24)
    lone.join(rollouts[0])
    assert set(lone.pack(rollouts[:1], 1)[0, DRAFT_CONTEXT:].tolist()) == {NO_TOKEN}


def test_of_long_siblings_texts_hold_what_lies_ahead(
    build_engine: Build, request_of: Requests
) -> None:
    """Every token says where it is."""
    layout = build_engine().layout
    prompt, sizes = list(range(10)), (150, 900, 20, 500)
    rollouts = [
        new_rollout(request_of(i, prompt, range(10, 10 + size)), layout, i)
        for i, size in enumerate(sizes)
    ]
    texts = DraftTexts(("siblings",), DRAFT_CONTEXT + 392)
    for rollout in rollouts:
        texts.join(rollout)
    row = texts.pack(rollouts[:1], 1)[0, DRAFT_CONTEXT:].tolist()
    around = [*range(160 + 50 - 100, 160 + 50), NO_TOKEN]  # the row's quarter
    whole = [*range(2, 30), NO_TOKEN]  # what is known of the shortest, from before its response on
    assert row == [NO_TOKEN] * (392 - 231) + whole + around + around
    row = texts.pack(rollouts[2:3], 1)[0, DRAFT_CONTEXT:].tolist()
    assert row[-101:] == [*range(2, 102), NO_TOKEN], "at the beginning all of it lies ahead"


def test_texts_of_other_prompts_are_those_that_left_last(
    build_engine: Build, request_of: Requests
) -> None:
    layout = build_engine().layout
    said = [[10] * 4, [11] * 5, [11] * 3, [12] * 6, [13] * 2]
    rollouts = [
        new_rollout(request_of(i, [1, 2, i], text, group=i), layout, i)
        for i, text in enumerate(said)
    ]
    texts = DraftTexts(("recent",), DRAFT_CONTEXT + 14)
    for rollout in rollouts:
        texts.join(rollout)

    def row() -> list[int]:
        packed = texts.pack(rollouts[4:], 1)[0]
        assert packed[:DRAFT_CONTEXT].tolist() == [-2] * 3 + [1, 2, 4, 13, 13]
        return [token for token in packed[DRAFT_CONTEXT:].tolist()]

    assert row() == [NO_TOKEN] * 14
    for rollout in rollouts[:3]:
        texts.leave(rollout)
    newest = [*said[0], NO_TOKEN, *said[1], NO_TOKEN]
    assert row() == [NO_TOKEN] * 3 + newest, "the third is a part of the second"
    texts.forget()
    assert row() == [NO_TOKEN] * 3 + newest, "under other weights, too"
    texts.leave(rollouts[3])
    assert row() == [*newest, *said[3], NO_TOKEN][-14:], "what is oldest goes"


@pytest.mark.parametrize(("drafters", "kept"), [(BOTH, 3), (("prompt",), 0)])
def test_texts_of_prompts_that_left_are_bounded(
    build_engine: Build,
    request_of: Requests,
    monkeypatch: pytest.MonkeyPatch,
    drafters: tuple[Drafter, ...],
    kept: int,
) -> None:
    layout = build_engine().layout
    rollouts = [
        new_rollout(request_of(i, [1, 2, i], [4] * 5, group=i), layout, i) for i in range(9)
    ]
    monkeypatch.setattr(drafts, "MOST_LEFT", 3 * rollouts[0].known)
    texts = DraftTexts(drafters, DRAFT_CONTEXT + 24)
    for rollout in rollouts:
        texts.join(rollout)
    for rollout in rollouts:
        texts.leave(rollout)
    assert list(texts._groups) == [r.prompt_key for r in rollouts[len(rollouts) - kept :]]


def test_drafts_that_gain_little_pause_for_longer_and_longer() -> None:
    policy, useless = DraftPolicy(lambda _: 8, enabled=True), SpeculationCounts(8, 16, 40, 17)
    pauses = []
    for _ in range(9):
        assert policy.wants(2)
        policy.verified(useless)
        pauses.append(0)
        while not policy.wants(2):
            policy.passed()
            pauses[-1] += 1
    assert pauses == [1, 2, 4, 8, 16, 16, 16, 16, 16]
    policy.verified(SpeculationCounts(8, 16, 40, 48))
    assert policy.wants(2) and policy.most_tokens(8) == 32
    policy.verified(useless)
    assert policy.wants(2), "the mean of two dispatches is good still"
    assert policy.most_tokens(8) == int(8 * 1.5 * (48 / 2 + 17) / (16 / 2 + 16))
    assert policy.likely_tokens(8) == round(8 * (48 / 2 + 17) / (16 / 2 + 16))
    for _ in range(4):
        assert policy.wants(2)
        policy.verified(useless)
    assert not policy.wants(2)
    policy.passed()
    assert policy.wants(2), "after a good time the pause is short again"


def test_drafts_take_free_rows_alone() -> None:
    policy = DraftPolicy(lambda _: 8, enabled=True)
    assert [n for n in range(9) if policy.wants(n)] == [1, 2, 3, 4, 5]
    off = DraftPolicy(lambda _: 8, enabled=False)
    assert not any(off.wants(n) for n in range(9))


def test_nothing_follows_a_program_with_drafts(build_engine: Build, request_of: Requests) -> None:
    """Nobody knows yet where its sequences will be."""
    engine = build_engine(slots=2, drafters=BOTH)
    engine.submit([request_of(1, [7, 1, 7, 1], stop_ids=())])
    engine.begin()
    engine.finish()
    engine.drafts._left, engine.drafts._tokens, engine.drafts._steps = 0, 0.0, 0.0
    most = engine.begin()
    assert (most, engine.in_flight) == (16, 4), "what it can yield, and what is likely"
    assert engine.follow() == 0
    assert 4 <= len(engine.finish().tokens) <= most
    engine.release([1])


EPOCHS = ("siblings", "prompt", "epochs")


def test_texts_of_the_last_epoch_outlive_the_weights(
    build_engine: Build, drain: Drain, request_of: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build_engine(slots=1, drafters=EPOCHS)
    monkeypatch.setattr(engine.drafts, "wants", bool)
    engine.submit([request_of(1, [7, 1, 3], temperature=0.0, stop_ids=())])
    first = drain(engine)[1][0]
    engine.warm_up()
    engine.submit([request_of(2, [7, 1, 3], temperature=0.0, stop_ids=(), step=9, group=5)])
    engine.drafts.counts = SpeculationCounts()
    assert drain(engine)[2][0] == first
    assert engine.drafts.counts.steps == 4, "five, then eight a step, in another batch and place"


@pytest.mark.parametrize("kind", ["right", "random", "of another prompt", "short", "huge", "none"])
def test_offered_texts_cannot_show(
    build_engine: Build,
    drain: Drain,
    requests: list[GenerateRequest],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    usual = build_engine()
    usual.submit(requests)
    expected = drain(usual)
    engine = build_engine(slots=2, drafters=EPOCHS)
    monkeypatch.setattr(engine.drafts, "wants", bool)
    random = np.random.default_rng(3)

    def text(place: int) -> bytes:
        said = expected[requests[place].request_id][0]
        match kind:
            case "random":
                said = random.integers(0, 37, 40).tolist()
            case "of another prompt":
                said = expected[requests[(place + 3) % len(requests)].request_id][0]
            case "short":
                said = said[1:]
            case "huge":
                said = random.integers(0, 37, 2**18).tolist()
            case "none":
                said = []
        return pack_tokens(said)

    engine.texts.offer(
        [(r.prompt_tokens, text(place)) for place, r in enumerate(requests)], engine.limits
    )
    engine.drafts.counts = SpeculationCounts()
    engine.submit(requests)
    assert drain(engine) == expected
    counts = engine.drafts.counts
    if kind == "right":
        assert counts.tokens > 1.5 * counts.sequence_steps
    assert engine.texts._earlier.num_tokens <= drafts.MOST_EARLIER
    engine.texts._earlier = PromptMemory(drafts.MOST_EARLIER)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"abc", r"texts: one has 3 bytes; a token is 4 bytes"),
        (pack_tokens([1, 37]), r"texts: one has token id 37; model.vocab_size is 37"),
        (pack_tokens([-2]), r"texts: one has token id -2"),
    ],
)
def test_texts_that_are_no_tokens_of_the_model_are_refused(
    build_engine: Build, text: bytes, why: str
) -> None:
    engine = build_engine(drafters=EPOCHS)
    with pytest.raises(RequestRejected, match=why):
        engine.texts.offer([(pack_tokens([1]), pack_tokens([2])), (b"", text)], engine.limits)
    assert engine.texts._earlier.num_tokens == 0, "nothing of the call is taken"


def test_earlier_texts_come_before_those_of_siblings_and_are_bounded(
    build_engine: Build, request_of: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build_engine()
    monkeypatch.setattr(drafts, "MOST_EARLIER", 40)
    texts = DraftTexts(("siblings", "epochs"), DRAFT_CONTEXT + 40)
    one, other = (
        new_rollout(request_of(i, [1, 2, 3], [10 + i] * (4 + i)), engine.layout, i)
        for i in range(2)
    )
    prompt = pack_tokens([1, 2, 3])
    texts.offer([(prompt, pack_tokens([20, 21])), (prompt, pack_tokens([22]))], engine.limits)
    texts.join(one)
    texts.join(other)
    row = texts.pack([one], 1)[0, DRAFT_CONTEXT:].tolist()
    kept = [1, 2, 3, 22, -1, 1, 2, 3, 20, 21, -1, 1, 2, 3, *[11] * 5, -1]
    assert row == [-1] * (40 - len(kept)) + kept
    for rollout in (one, other):
        texts.leave(rollout)
    texts.forget()
    assert texts._earlier.of(prompt) == (pack_tokens([11] * 5), pack_tokens([10] * 4))
    for n in range(9):
        texts.offer([(pack_tokens([n]), pack_tokens([4] * 9))], engine.limits)
        assert texts._earlier.num_tokens <= 40
    assert texts._earlier.of(prompt) is None, "the oldest goes first"


def test_of_a_long_earlier_response_the_row_has_what_lies_around_the_place(
    build_engine: Build, request_of: Requests
) -> None:
    """A quarter of 400 numbers, half of it ahead of 203 known tokens of 1,003, ends at 253."""
    engine = build_engine()
    texts = DraftTexts(("epochs",), 400)
    said = (np.arange(1000) % 37).tolist()
    rollout = new_rollout(request_of(1, [1, 2, 3], said[:200]), engine.layout, 0)
    texts.offer([(pack_tokens([1, 2, 3]), pack_tokens(said))], engine.limits)
    texts.join(rollout)
    row = texts.pack([rollout], 1)[0].tolist()
    assert row[-101:] == [*said[150:250], -1]
    assert set(row[DRAFT_CONTEXT:-101]) == {-1}
