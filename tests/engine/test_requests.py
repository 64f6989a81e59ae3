"""What is refused, and that the message names value, limit and setting."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from rlboost_jax.engine.layouts import make_layout
from rlboost_jax.engine.requests import EngineLimits, RequestRejected, RequestTooLong, check_request
from rlboost_jax.messages import GenerateRequest
from rlboost_jax.settings.engine_config import EngineConfig

LIMITS = EngineLimits(vocab_size=37, slot_tokens=44, truncated_sampling=False)
Requests = Callable[..., GenerateRequest]


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        ([], {}, "empty prompt"),
        ([1, 37], {}, "token id 37 in prompt_tokens; model.vocab_size is 37"),
        ([-1], {}, "token id -1"),
        ([1], {"response": [40]}, "token id 40 in response_tokens"),
        ([1], {"version": 2}, "version 2 and the engine holds version 1"),
        ([1], {"temperature": -0.5}, "temperature -0.5"),
        ([1], {"temperature": float("nan")}, "temperature nan"),
        ([1], {"top_p": 0.0}, "top_p 0.0"),
        ([1], {"top_p": 1.5}, "top_p 1.5"),
        ([1], {"top_k": -1}, "top_k -1"),
        ([1], {"top_k": 2**31}, "top_k 2147483648"),
        ([1], {"top_p": 0.9}, "truncated_sampling off; set sampling.top_p"),
        ([1], {"top_k": 3}, "truncated_sampling off; set sampling.top_p"),
        ([1], {"max_tokens": 0}, "max_tokens 0"),
        ([1], {"stop_ids": tuple(range(9))}, "9 stop ids; at most 8"),
        ([1], {"stop_ids": (37,)}, "stop id 37; model.vocab_size is 37"),
        ([1], {"seed": -1}, "seed -1"),
        ([1], {"seed": 2**32}, "seed 4294967296"),
        ([1], {"step": -2}, "batch -2"),
        ([1], {"response": [2, 5], "stop_ids": (5,)}, "has stop id 5 in its response"),
        ([1], {"response": [2, 3, 4], "max_tokens": 3}, "already has 3 of its response of at"),
        ([1], {"response": [2, 3, 4], "runs": (2, 2)}, "runs of 2, 2 tokens do not make up 3 of"),
        ([1], {"response": [2, 3], "runs": (2, 0)}, "runs of 2, 0 tokens do not make up 2 of"),
        ([1], {"response": [5, 2, 7], "runs": (2, 1), "stop_ids": (5,)}, "stop id 5 in its"),
        (
            [1],
            {"response": [2, 7, 5], "runs": (1, 1, 1), "stop_ids": (5,)},
            "stop id 5 in its",
        ),
        (
            [1],
            {"response": [2, 3, 9, 9], "runs": (2, 2), "max_tokens": 2},
            "already has 2 of its",
        ),
    ],
)
def test_is_refused(
    request_of: Requests, prompt: list[int], settings: dict[str, Any], message: str
) -> None:
    request = request_of(9, prompt, settings.pop("response", ()), **settings)
    with pytest.raises(RequestRejected, match=message) as caught:
        check_request(request, LIMITS, version=1)
    assert str(caught.value).startswith("request 9 ")
    assert "\n" not in str(caught.value)


def test_a_rollout_must_fit_in_a_slot(request_of: Requests) -> None:
    check_request(request_of(9, [1] * 20, max_tokens=24), LIMITS, version=1)
    with pytest.raises(
        RequestTooLong, match=r"45 tokens \(20 of prompt, 25 of response\); a slot holds 44"
    ):
        check_request(request_of(9, [1] * 20, max_tokens=25), LIMITS, version=1)


def test_a_turn_that_was_answered_may_have_ended(request_of: Requests) -> None:
    """And what was given may have any ids, and counts in no budget."""
    turns = request_of(9, [1], [2, 5, 5, 7, 5], runs=(2, 3), stop_ids=(5,), max_tokens=3)
    check_request(turns, LIMITS, version=1)
    cut_short = request_of(9, [1], [2, 3, 5, 7], runs=(2, 1, 1), stop_ids=(5,), max_tokens=4)
    check_request(cut_short, LIMITS, version=1)


def test_a_turn_that_is_as_long_as_it_may_be_goes_on_only_where_it_was_answered(
    request_of: Requests,
) -> None:
    limits: dict[str, Any] = {"turn_tokens": 2, "max_tokens": 9}
    for response, runs in (([2], ()), ([2, 3, 7], (2, 1)), ([2, 3, 7, 2], (2, 1, 1))):
        check_request(request_of(9, [1], response, runs=runs, **limits), LIMITS, version=1)
    for response, runs in (([2, 3], ()), ([2, 3, 4], ()), ([2, 7, 2, 3], (1, 1, 2))):
        with pytest.raises(RequestRejected, match="turn that is over is not continued"):
            check_request(request_of(9, [1], response, runs=runs, **limits), LIMITS, version=1)


def test_what_is_given_takes_room_in_a_slot(request_of: Requests) -> None:
    turns = {"response": [2] * 12, "runs": (1, 11)}
    check_request(request_of(9, [1] * 10, **turns, max_tokens=23), LIMITS, version=1)
    with pytest.raises(
        RequestTooLong, match=r"45 tokens \(10 of prompt, 11 given since, 24 of response\)"
    ):
        check_request(request_of(9, [1] * 10, **turns, max_tokens=24), LIMITS, version=1)


def test_half_a_token_is_refused(request_of: Requests) -> None:
    torn = msgspec.structs.replace(request_of(9, [1]), prompt_tokens=b"12345")
    with pytest.raises(RequestRejected, match="5 bytes of prompt_tokens"):
        check_request(torn, LIMITS, version=1)


def test_nothing_runs_before_weights_are_loaded(request_of: Requests) -> None:
    with pytest.raises(RequestRejected, match="the engine holds no version"):
        check_request(request_of(9, [1]), LIMITS, version=None)


def test_greedy_requests_may_carry_any_truncation(request_of: Requests) -> None:
    check_request(request_of(9, [1], temperature=0, top_k=3), LIMITS, version=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slots": 0}, "engine.slots is 0"),
        ({"page_size": 0}, "engine.page_size is 0"),
        ({"steps_per_dispatch": 0}, "engine.steps_per_dispatch is 0"),
        ({"slots": 65}, "engine.slots is 65 and engine.token_rows 64"),
        ({"num_pages": 10}, "engine.num_pages is 10; the longest rollout needs 11 pages"),
    ],
)
def test_layout_settings_must_fit_together(
    engine_config: EngineConfig, settings: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_layout(replace(engine_config, **settings), 44, any_rows=True)


def test_slots_cannot_outgrow_the_positions(engine_config: EngineConfig) -> None:
    with pytest.raises(ValueError, match="longer than the 262144 positions"):
        make_layout(engine_config, 300_000, any_rows=True)
    with pytest.raises(ValueError, match="a slot of 1 tokens"):
        make_layout(engine_config, 1, any_rows=True)


def test_a_pool_of_no_stated_size_holds_every_slot(engine_config: EngineConfig) -> None:
    assert make_layout(engine_config, 43, any_rows=True).num_pages == 6 * 11


@pytest.mark.parametrize(
    ("slots", "rows"),
    [(1, (8,)), (9, (8, 16)), (16, (8, 16)), (64, (8, 16, 64)), (33, (8, 16, 40))],
)
def test_decode_steps_for_all_slots_and_for_ever_fewer(
    engine_config: EngineConfig, slots: int, rows: tuple[int, ...]
) -> None:
    layout = make_layout(replace(engine_config, slots=slots), 44, any_rows=True)
    assert layout.decode_rows == rows
    assert [layout.rows_for(n) for n in (1, slots)] == [rows[0], rows[-1]]
    tied = make_layout(replace(engine_config, slots=slots), 44, any_rows=False)
    assert tied.decode_rows == (64,)
    assert tied.sampled_rows == 64


def test_head_and_sampler_run_over_slots_where_layers_run_over_more(
    engine_config: EngineConfig,
) -> None:
    """In whole tiles of 64, and on CPU over as many rows as ever."""
    config = replace(engine_config, token_rows=512)
    for slots, rows in ((1, 64), (64, 64), (65, 128), (512, 512)):
        layout = make_layout(replace(config, slots=slots), 44, any_rows=False)
        assert (layout.decode_rows, layout.sampled_rows) == ((512,), rows)
    few = replace(config, token_rows=96, slots=70)
    assert make_layout(few, 44, any_rows=False).sampled_rows == 96
    assert make_layout(few, 44, any_rows=False, exact=False).decode_rows == (96,)
    assert make_layout(config, 44, any_rows=False, on_cpu=True).sampled_rows == 512
    assert make_layout(config, 44, any_rows=True, on_cpu=True).sampled_rows == 8


def test_decode_steps_run_over_slots_where_bits_may_be_others(engine_config: EngineConfig) -> None:
    """On GPUs; products of CPUs need no more rows in exact runs either, or are XLA's."""
    config = replace(engine_config, token_rows=512)
    for slots, rows in ((1, 64), (64, 64), (65, 128), (512, 512)):
        layout = make_layout(replace(config, slots=slots), 44, any_rows=False, exact=False)
        assert (layout.decode_rows, layout.sampled_rows) == ((rows,), rows)
        assert layout.token_rows == 512
    assert make_layout(config, 44, any_rows=False, on_cpu=True, exact=False).decode_rows == (512,)
    assert make_layout(config, 44, any_rows=True, exact=False).decode_rows == (8,)
