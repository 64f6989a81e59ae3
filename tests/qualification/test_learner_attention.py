"""The learner's attention as a problem: inputs, references, real kernels interpreted, and bits."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from configs import base
from rlboost_jax.models.attention import attend_dense
from rlboost_jax.models.chunked_attention import Form
from rlboost_jax.qualification import learner_attention
from rlboost_jax.qualification.checks import row_error, tried
from rlboost_jax.qualification.child_process import verdict_of
from rlboost_jax.qualification.learner_attention import (
    PLAIN,
    LearnerAttentionShape,
    problem,
    shape_of,
)
from rlboost_jax.qualification.problem import TrialProblem
from rlboost_jax.qualification.trial_records import Spec
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.run_config import RunConfig
from tests.patience import PATIENCE_SECONDS
from tests.qualification.candidates import candidate

SHAPE = LearnerAttentionShape(
    row_tokens=72,
    longest=50,
    query_heads=4,
    key_heads=2,
    head_dim=16,
    dtype="float32",
    scale=0.25,
    soft_cap=0.0,
    windows=(0,),
    refused={},
)


def of(shape: LearnerAttentionShape) -> TrialProblem:
    return problem(msgspec.to_builtins(shape))


def test_candidates_are_tried_in_the_order_of_their_bound() -> None:
    assert of(SHAPE).names == ("cudnn", "triton", "chunked")


@pytest.mark.parametrize("options", [{}, {"soft_cap": 2.0, "windows": (0, 9)}, {"key_heads": 1}])
def test_the_host_computes_what_the_dense_form_does(options: dict[str, Any]) -> None:
    shape = msgspec.structs.replace(SHAPE, **options)
    cases = of(shape).cases
    assert len(cases) == len(shape.windows)
    for case in cases:
        segments, *qkv, upstream = case.inputs
        form = Form(shape.scale, shape.soft_cap or None, case.options["window"])

        @jax.jit
        def with_gradients(segments: Any, upstream: Any, *qkv: Any, form: Any = form) -> Any:
            out, back = jax.vjp(partial(attend_dense, form, segments=segments, local=None), *qkv)
            return out, *back(upstream)

        results = with_gradients(segments, upstream, *qkv)
        for found, expected in zip(results, case.expected, strict=True):
            rows = np.pad(found, ((0, -len(found) % 16), (0, 0), (0, 0)))
            assert row_error(rows.reshape(expected.shape), expected) < 1e-5


def test_a_row_that_the_host_takes_too_long_for_is_cut_and_said() -> None:
    long = msgspec.structs.replace(SHAPE, row_tokens=1040, query_heads=2, key_heads=1)
    cut, whole = of(long).cases
    assert (cut.name, cut.weight) == ("a row cut to 1024 tokens", 0.0)
    assert (whole.name, whole.weight) == ("a row of 1040 tokens", 1.0)
    assert [len(case.inputs[1]) for case in (cut, whole)] == [1024, 1040]
    on_host = learner_attention.on_host(whole.inputs, shape=long, window=0)
    for found, expected in zip(whole.expected, on_host, strict=True):
        assert row_error(found, expected) < 1e-5


def test_rows_have_sequences_of_many_lengths_none_too_long() -> None:
    (case,) = of(SHAPE).cases
    assert np.unique_counts(case.inputs[0]).counts.tolist() == [36, 18, 9, 5, 2, 1, 1]
    (case,) = of(msgspec.structs.replace(SHAPE, longest=10)).cases
    assert np.unique_counts(case.inputs[0]).counts.max() == 10


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_plain_form_is_right_and_repeats_its_bits(dtype: str) -> None:
    found = of(msgspec.structs.replace(SHAPE, dtype=dtype, windows=(0, 7)))
    trial = tried(found, candidate(found, PLAIN), invariant=True)
    assert trial.outcome == "right" and trial.seconds, trial


@pytest.mark.parametrize("too_many", [1, -1])
def test_one_token_of_a_long_window_too_many_or_too_few_is_wrong(too_many: int) -> None:
    """The gradients of the last tokens show it, which few rows see."""
    shape = msgspec.structs.replace(SHAPE, row_tokens=2048, longest=1000, dtype="bfloat16")
    shape = msgspec.structs.replace(shape, query_heads=2, key_heads=1, windows=(700,))
    found = of(shape)
    found = replace(found, cases=(replace(found.cases[1], weight=0.0),))
    plain = candidate(found, PLAIN).run

    def shifted(*inputs: Any, window: int) -> Any:
        return plain(*inputs, window=window + too_many)

    assert tried(found, candidate(found, PLAIN), invariant=False).outcome == "right"
    trial = tried(found, candidate(found, PLAIN, run=shifted), invariant=False)
    assert trial.outcome == "wrong", trial


@pytest.fixture(scope="module")
def right() -> tuple[Any, ...]:
    """What the plain form makes of the case in bfloat16."""
    found = of(msgspec.structs.replace(SHAPE, dtype="bfloat16"))
    (case,) = found.cases
    return tuple(jax.jit(partial(candidate(found, PLAIN).run, **case.options))(*case.inputs))


@pytest.mark.parametrize("leaf", range(4))
def test_a_wrong_result_or_gradient_of_one_token_shows(leaf: int, right: tuple[Any, ...]) -> None:
    """The result and the gradients of queries, keys and values are each made wrong."""
    found = of(msgspec.structs.replace(SHAPE, dtype="bfloat16"))
    width = 64 if leaf < 2 else 32  # heads of queries, or of keys

    def wrong(*inputs: Any, **options: Any) -> Any:
        results = list(right)
        results[leaf] = results[leaf].at[20 // 16, 20 % 16 * width : 21 % 16 * width].multiply(1.5)
        return tuple(results)

    trial = tried(found, candidate(found, PLAIN, run=wrong), invariant=False)
    assert trial.outcome == "wrong" and trial.reason.startswith("a row of 72 tokens: a row is off")


def test_other_bits_at_a_second_call_show_where_they_matter() -> None:
    found, calls = of(msgspec.structs.replace(SHAPE, dtype="bfloat16")), iter(range(10**6))
    plain = candidate(found, PLAIN).run

    def restless(*inputs: Any, **options: Any) -> Any:
        """By a hundredth, which no comparison with the reference could tell."""
        out, *gradients = plain(*inputs, **options)
        call = jax.pure_callback(lambda: np.float32(next(calls) % 2), jnp.zeros((), jnp.float32))
        return out, *(g * (1 + 0.01 * call).astype(g.dtype) for g in gradients)

    trial = tried(found, candidate(found, PLAIN, run=restless), invariant=True)
    assert trial.outcome == "dependent", trial
    assert trial.reason == "a row of 72 tokens: other bits at a second call"
    assert tried(found, candidate(found, PLAIN, run=restless), invariant=False).outcome == "right"


@pytest.mark.usefixtures("child_unoptimized")
def test_a_kernel_passes_interpreted_in_a_real_child() -> None:
    shape = msgspec.structs.replace(SHAPE, dtype="bfloat16", windows=(0, 9), interpret=True)
    spec = Spec(
        problem="learner_attention",
        shape=msgspec.to_builtins(shape),
        invariant=True,
        candidates=of(shape).names,
        seconds=PATIENCE_SECONDS,
        on_cpu=True,
    )
    verdict = verdict_of(spec, start_seconds=PATIENCE_SECONDS)
    outcomes = {trial.candidate: trial.outcome for trial in verdict.trials}
    assert outcomes == {"cudnn": "unavailable", "triton": "right", "chunked": "right"}, verdict
    assert "it is for GPUs and this is cpu" in verdict.trials[0].reason


def learner(**changes: Any) -> RunConfig:
    config = base.get_config()
    config.model.dtype = "bfloat16"
    config.model.num_query_heads, config.model.num_key_heads, config.model.head_dim = 8, 2, 64
    config.learner.mesh, config.learner.pack_rows, config.learner.row_tokens = (1, 2, 4), 2, 4096
    config.deterministic = False
    for name, value in changes.items():
        section, _, field = name.rpartition("__")
        (config[section] if section else config)[field] = value
    return run_config(config)


def test_a_shape_is_what_a_run_asks_of_one_device() -> None:
    shape = shape_of(learner(model__attention_pattern="LG", model__sliding_window=32))
    assert shape is not None
    assert (shape.row_tokens, shape.longest) == (4096, learner().slot_tokens)
    assert (shape.query_heads, shape.key_heads, shape.windows) == (2, 1, (0, 32))
    assert shape.refused == {"cudnn": "cudnn is not used for windows"}


def test_a_deterministic_run_refuses_what_does_not_promise_equal_bits() -> None:
    shape = shape_of(learner(deterministic=True))
    assert shape is not None
    assert shape.refused == {"cudnn": "its gradients are added up in any order"}
    free = shape_of(learner())
    assert free is not None and not free.refused


@pytest.mark.parametrize(
    "changes",
    [
        {"learner__row_tokens": 256},  # dense
        {"model__dtype": "float32"},
        {"learner__mesh": (1, 1, 1), "learner__row_tokens": 1024},  # paged
    ],
)
def test_there_is_nothing_to_try_where_no_kernel_is_wanted(changes: dict[str, Any]) -> None:
    assert shape_of(learner(**changes)) is None
