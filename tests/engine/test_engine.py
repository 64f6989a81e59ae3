"""The engine against a dense float64 oracle, and its promises about calls and errors."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from rlboost_jax.engine.compiles import num_compiles
from rlboost_jax.engine.dispatches import NonFiniteLogits
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.requests import EngineBusy, RequestRejected, RequestTooLong
from rlboost_jax.engine.step_programs import AttentionNotAvailable
from rlboost_jax.messages import GenerateRequest
from rlboost_jax.sequences.endings import finish_reason
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.model_config import ModelConfig

Build = Callable[..., Engine]
Requests = Callable[..., GenerateRequest]
Drain = Callable[[Engine], dict[int, tuple[list[int], list[int]]]]

pytestmark = pytest.mark.optimized(False)  # but for one case against float64

PROMPTS = ([7], [1, 2, 3], [30, 4, 4, 9, 8, 2, 2], list(range(6, 24)))


@pytest.mark.parametrize(
    ("truncated", "sampling"),
    [
        pytest.param(False, {"temperature": 0.8}, marks=pytest.mark.optimized),
        (False, {"temperature": 0.0}),
        (True, {"temperature": 1.3, "top_k": 9, "top_p": 0.85}),
    ],
)
def test_tokens_and_logprobs_are_those_of_dense_float64(
    build_engine: Build,
    request_of: Requests,
    drain: Drain,
    oracle: Any,
    truncated: bool,
    sampling: dict[str, Any],
) -> None:
    engine = build_engine(truncated_sampling=truncated)
    requests = [
        request_of(10 * group + member, prompt, group=group, **sampling)
        for group, prompt in enumerate(PROMPTS)
        for member in range(2)
    ]
    engine.submit(requests)
    rollouts = drain(engine)
    for request in requests:
        tokens, bits = rollouts[request.request_id]
        expected_tokens, expected_logprobs = oracle.rollout(request)
        assert tokens == expected_tokens
        ends = request.sampling.max_tokens, request.sampling.stop_ids
        reasons = [
            finish_reason(token, n, max_tokens=ends[0], stop_ids=ends[1])
            for n, token in enumerate(tokens, start=1)
        ]
        assert reasons[-1] is not None and not any(reasons[:-1]), "the device's mask is another"
        logprobs = np.array(bits, np.int32).view(np.float32)
        np.testing.assert_allclose(logprobs, expected_logprobs, atol=1e-5)
    lengths = {len(tokens) for tokens, _ in rollouts.values()}
    assert len(lengths) > 1 or sampling["temperature"] == 0, "stop ids were never met"


def test_mixed_requests_keep_their_own_settings(
    build_engine: Build, request_of: Requests, drain: Drain, oracle: Any
) -> None:
    engine = build_engine(truncated_sampling=True)
    requests = [
        request_of(0, PROMPTS[1], temperature=0.0),
        request_of(1, PROMPTS[1], temperature=1.0, stop_ids=()),
        request_of(2, PROMPTS[2], group=1, temperature=0.5, top_k=4, stop_ids=(1, 2, 3, 4)),
        request_of(3, PROMPTS[2], group=1, temperature=2.0, top_p=0.5, max_tokens=1),
        request_of(4, PROMPTS[3], group=2, seed=12, step=4, max_tokens=7),
        request_of(5, PROMPTS[3], group=2, sequence=3, max_tokens=7),
    ]
    engine.submit(requests)
    rollouts = drain(engine)
    assert {i: rollouts[i][0] for i in rollouts} == {
        request.request_id: oracle.rollout(request)[0] for request in requests
    }


def test_what_is_measured_with_a_cut_changes_no_bit_of_what_is_trained_on(
    build_engine: Build, request_of: Requests, drain: Drain, oracle: Any
) -> None:
    """Held-out responses with a top-p and a top-k of their own, in the batch of a step's."""
    trained = [request_of(i, prompt, group=i) for i, prompt in enumerate(PROMPTS)]
    cuts = ({"top_p": 0.7}, {"top_k": 2}, {"top_p": 0.9, "top_k": 5}, {"top_k": 1}, {"top_p": 1e-6})
    measured = [
        request_of(10 + i, PROMPTS[i % 4], group=i, temperature=1.2, **cut)
        for i, cut in enumerate(cuts)
    ]
    plain = build_engine()
    plain.submit(trained)
    alone = drain(plain)
    engine = build_engine(truncated_sampling=True)
    engine.submit([*trained, *measured])
    together = drain(engine)
    assert {request.request_id: together[request.request_id] for request in trained} == alone
    for request in measured:
        tokens, bits = together[request.request_id]
        expected_tokens, expected_logprobs = oracle.rollout(request)
        assert tokens == expected_tokens
        logprobs = np.array(bits, np.int32).view(np.float32)
        np.testing.assert_allclose(logprobs, expected_logprobs, atol=1e-5)


def test_nothing_is_compiled_after_warm_up(
    model: ModelConfig,
    engine_config: EngineConfig,
    params: dict[str, Any],
    request_of: Requests,
) -> None:
    engine = Engine(model, engine_config, slot_tokens=44, truncated_sampling=False)
    said: list[str] = []
    engine.warm_up(said.append)
    engine.assert_row_invariance()
    assert len(said) == 3 and all(line.startswith("preparing ") for line in said)
    on_device = jax.device_put(params)
    before = num_compiles()
    assert before > 0
    for version, weights in enumerate((params, on_device, on_device)):
        compiled = num_compiles()
        engine.load(weights, version)
        if version == 1:  # the first of its kind: how to take the learner's apart, once
            before += num_compiles() - compiled
        requests = [
            request_of(i, PROMPTS[i % 4], [9] * (i % 3), group=i % 4, version=version)
            for i in range(15)
        ]
        engine.submit(requests)
        engine.begin()
        engine.finish()
        engine.release([3, 4, 5])
        assert sum(engine.in_flight > 0 for _ in engine.run()) > 0  # some were followed
        assert num_compiles() == before


@pytest.mark.parametrize("name", ["mosaic_gpu", "triton", "fastest"])
def test_attention_that_cannot_run_here(
    model: ModelConfig, engine_config: EngineConfig, name: str
) -> None:
    with pytest.raises(AttentionNotAvailable, match=f"engine.attention is '{name}'.*'auto'"):
        Engine(
            replace(model, head_dim=64),
            replace(engine_config, attention=name),
            slot_tokens=44,
            truncated_sampling=False,
        )


def test_padding_alone_is_finite(build_engine: Build) -> None:
    engine = build_engine()
    engine.warm_up()
    assert engine.begin() == 0
    assert all(np.isfinite(np.asarray(pool)).all() for pool in engine.device_state.pools)


def test_what_a_dispatch_says_is_what_it_may_yield(
    build_engine: Build, request_of: Requests
) -> None:
    engine = build_engine()
    assert engine.begin() == 0
    engine.submit([request_of(i, PROMPTS[2], stop_ids=(), max_tokens=6) for i in (4, 9)])
    assert (engine.running, engine.waiting, engine.held()) == (0, 2, (4, 9))
    assert engine.begin() == 1  # the first member prefills, its sibling waits for the pages
    assert (engine.running, engine.waiting) == (2, 0)
    first = engine.finish()
    assert first.request_ids.tolist() == [4] and first.counts.tolist() == [1]
    assert engine.begin() == 8  # both decode four steps
    second = engine.finish()
    assert second.request_ids.tolist() == [4, 9] and second.counts.tolist() == [4, 4]
    assert (second.version, second.finished, second.prefilled_again) == (1, (), 0)
    assert engine.begin() == 1 + 2
    assert engine.finish().finished == (4, 9)
    assert engine.begin() == 0 and engine.held() == ()


def test_a_long_prompt_is_prefilled_within_one_begin(
    build_engine: Build, request_of: Requests, drain: Drain, oracle: Any
) -> None:
    engine = build_engine(steps_per_dispatch=7, slot_tokens=180)
    prompt = np.random.default_rng(0).integers(0, 37, 150).tolist()
    request = request_of(1, prompt, max_tokens=3)
    engine.submit([request])
    assert engine.begin() == 1  # 64 + 64 + 22 rows; the last row samples
    assert engine.finish().request_ids.tolist() == [1]
    engine.release([1])
    engine.submit([request])
    assert drain(engine)[1][0] == oracle.rollout(request)[0]


def test_tokens_run_again_are_counted(build_engine: Build, request_of: Requests) -> None:
    requests = [request_of(i, [i, 4], group=i, stop_ids=()) for i in range(6)]

    def prefilled_again(engine: Engine) -> int:
        engine.submit(requests)
        again = 0
        while engine.begin():
            again += engine.finish().prefilled_again
        return again

    assert prefilled_again(build_engine()) == 0
    assert prefilled_again(build_engine(num_pages=11)) > 0  # six rollouts on the pages of one


def test_release_between_dispatches_only(build_engine: Build, request_of: Requests) -> None:
    engine = build_engine()
    engine.submit([request_of(i, PROMPTS[1]) for i in range(8)])
    engine.begin()
    with pytest.raises(EngineBusy, match="call finish first"):
        engine.release([1])
    with pytest.raises(EngineBusy, match="begin came twice"):
        engine.begin()
    engine.submit([request_of(8, PROMPTS[1])])  # takes effect at the next begin
    engine.finish()
    assert engine.release([7, 99, 1, 1]) == [7, 1]  # 7 was waiting, 1 was running
    assert engine.held() == (0, 2, 3, 4, 5, 6, 8)
    assert engine.release(engine.held()) == [0, 2, 3, 4, 5, 6, 8]
    with pytest.raises(EngineBusy, match="finish came without begin"):
        engine.finish()


def test_weights_change_only_between_rollouts(
    build_engine: Build, request_of: Requests, params: dict[str, Any]
) -> None:
    engine = build_engine()
    engine.submit([request_of(1, PROMPTS[1])])
    for call in (
        lambda: engine.load(params, 2),
        engine.warm_up,
        engine.assert_row_invariance,
    ):
        with pytest.raises(EngineBusy, match="1 are held: finish or release"):
            call()
    engine.release([1])
    assert engine.version == 1


def test_a_bad_request_takes_nothing_of_the_call(build_engine: Build, request_of: Requests) -> None:
    engine = build_engine()
    good = request_of(1, PROMPTS[1])
    with pytest.raises(RequestTooLong):
        engine.submit([good, request_of(2, PROMPTS[1], max_tokens=200)])
    with pytest.raises(RequestRejected, match="different ids"):
        engine.submit([good, good])
    assert engine.held() == ()
    engine.submit([good])
    with pytest.raises(RequestRejected, match="request 1 is held already"):
        engine.submit([request_of(2, PROMPTS[1]), good])
    assert engine.release(engine.held()) == [1]


def test_weights_of_another_model_are_refused(build_engine: Build, params: dict[str, Any]) -> None:
    engine = build_engine()
    with pytest.raises(ValueError, match=r"parameter head.norm.scale has shape \(2,\)"):
        bad_head = {**params["head"], "norm": {"scale": np.ones(2)}}
        engine.load({**params, "head": bad_head}, 2)
    with pytest.raises(ValueError, match=r"parameter embedding.table is missing"):
        engine.load({k: v for k, v in params.items() if k != "embedding"}, 2)
    with pytest.raises(ValueError, match=r"parameter extra is unknown"):
        engine.load({**params, "extra": np.ones(1)}, 2)
    assert engine.version == 1


def test_loading_copies(
    build_engine: Build, params: dict[str, Any], request_of: Requests, drain: Drain
) -> None:
    """The caller may reuse or donate its arrays at once."""
    engine = build_engine()
    engine.submit([request_of(1, PROMPTS[1])])
    expected = drain(engine)
    mutable = jax.tree.map(np.array, params)
    engine.load(mutable, 1)
    for leaf in jax.tree.leaves(mutable):
        leaf[...] = 0
    donated = jax.tree.map(jax.numpy.asarray, params)
    engine.submit([request_of(1, PROMPTS[1])])
    assert drain(engine) == expected
    engine.load(donated, 1)
    for leaf in jax.tree.leaves(donated):
        leaf.delete()
    engine.submit([request_of(1, PROMPTS[1])])
    assert drain(engine) == expected


def test_broken_weights_are_an_error(
    model: ModelConfig, params: dict[str, Any], build_engine: Build, request_of: Requests
) -> None:
    engine = build_engine(num_pages=11)
    broken = {**params["head"], "kernel": params["head"]["kernel"] * np.nan}
    engine.load({**params, "head": broken}, 2)
    engine.submit([request_of(1, PROMPTS[1], version=2)])
    engine.begin()
    with pytest.raises(NonFiniteLogits, match="version 2 gives"):
        engine.finish()
    engine.release(engine.held())
    engine.load(params, 1)
