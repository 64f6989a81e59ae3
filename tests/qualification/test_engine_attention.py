"""The engine's attention as a problem: its inputs, its reference, and real kernels interpreted."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from rlboost_kernels import ragged_paged_attention
from rlboost_kernels.attention import attention_mosaic_gpu
from rlboost_kernels.problems import Arguments

from configs import base
from rlboost_jax.qualification import engine_attention
from rlboost_jax.qualification.checks import row_error, tried
from rlboost_jax.qualification.child_process import verdict_of
from rlboost_jax.qualification.engine_attention import EngineAttentionShape, problem, shape_of
from rlboost_jax.qualification.problem import TrialProblem
from rlboost_jax.qualification.trial_records import Spec
from rlboost_jax.settings.config_loading import run_config
from tests.patience import PATIENCE_SECONDS
from tests.qualification.candidates import candidate

SHAPE = EngineAttentionShape(
    mixed_rows=16,
    decode_rows=16,
    slots=4,
    slot_tokens=70,
    pages_per_slot=2,
    page_size=64,
    query_heads=4,
    key_heads=2,
    head_dim=64,
    dtype="float32",
    kv_dtype="float32",
    scale=0.1,
    soft_cap=0.0,
    windows=(0,),
    mixed_share=0.1,
)


def of(shape: EngineAttentionShape) -> TrialProblem:
    return problem(msgspec.to_builtins(shape))


def test_candidates_are_tried_in_the_order_of_their_bound() -> None:
    assert of(SHAPE).names == ("mosaic_gpu", "triton", "xla")


@pytest.mark.parametrize(
    "options",
    [{}, {"soft_cap": 5.0, "windows": (0, 33)}, {"query_heads": 6, "key_heads": 1, "slots": 1}],
)
def test_the_reference_is_that_of_the_kernels(options: dict[str, Any]) -> None:
    shape = msgspec.structs.replace(SHAPE, **options)
    found = of(shape)
    assert len(found.cases) == 2 * len(shape.windows)
    for case in found.cases:
        attend = partial(
            ragged_paged_attention,
            sm_scale=shape.scale,
            soft_cap=shape.soft_cap or None,
            implementation="reference",
            **case.options,
        )
        found_rows = np.asarray(jax.jit(attend)(*case.inputs))
        assert row_error(found_rows, *case.expected) < 1e-5


def test_rows_are_those_of_the_run_and_all_kinds_of_them() -> None:
    decode, mixed = (Arguments(*case.inputs) for case in of(SHAPE).cases)
    assert decode.q.shape == mixed.q.shape == (16, 4, 64)
    assert decode.kv_lens.tolist()[:4] == [1, 24, 47, 70] and decode.kv_lens.shape == (16,)
    assert np.diff(mixed.cu_q_lens).tolist() == [1, 12, 1, 1]  # and one row is nobody's
    assert mixed.kv_lens.tolist() == [35, 70, 23, 17]


@pytest.mark.optimized  # for the bits of rows
def test_plain_attention_is_right_and_its_rows_alone() -> None:
    found = of(SHAPE)
    trial = tried(found, candidate(found, "xla"), invariant=True)
    assert trial.outcome == "right", trial
    assert trial.error is not None and trial.error < 1e-5 and trial.seconds


def test_a_row_that_looks_one_token_too_far_back_is_wrong() -> None:
    found = of(SHAPE)
    wrong = partial(candidate(found, "xla").run)

    def shifted(q: Any, pages: Any, lens: Any, *rest: Any, **options: Any) -> Any:
        return wrong(q, pages, jnp.maximum(lens - (lens == 70), 1), *rest, **options)

    trial = tried(found, candidate(found, "xla", run=shifted), invariant=True)
    assert trial.outcome == "wrong" and trial.reason.startswith("decode step: a row is off by")


@pytest.mark.parametrize("step", ["decode step", "mixed step"])
@pytest.mark.parametrize("too_many", [1, -1])
def test_one_token_of_a_long_window_too_many_or_too_few_is_wrong(step: str, too_many: int) -> None:
    """It changes a row of standard normal values by less than what rounding may."""
    window = 4096
    shape = msgspec.structs.replace(
        SHAPE, dtype="bfloat16", kv_dtype="bfloat16", windows=(window,), query_heads=2, key_heads=1
    )
    shape = msgspec.structs.replace(shape, slot_tokens=4480, pages_per_slot=70)
    found = of(shape)
    case = next(case for case in found.cases if case.name.startswith(step))
    case = replace(case, weight=0.0)  # nobody asks how long it takes
    found, plain = replace(found, cases=(case,)), candidate(found, "xla").run

    def shifted(*inputs: Any, sliding_window: int) -> Any:
        return plain(*inputs, sliding_window=sliding_window + too_many)

    assert tried(found, candidate(found, "xla"), invariant=False).outcome == "right"
    trial = tried(found, candidate(found, "xla", run=shifted), invariant=False)
    assert trial.outcome == "wrong", trial


PLACES = {"the first rows": slice(2), "the last rows": slice(-2, None)}


@pytest.mark.parametrize("on", ["companions", "a chunk's companions", *PLACES])
def test_bits_that_depend_on_companions_or_place_show(on: str) -> None:
    """By half the tolerance, which no comparison with the reference could tell."""
    found = of(msgspec.structs.replace(SHAPE, dtype="bfloat16", kv_dtype="bfloat16"))
    plain = candidate(found, "xla").run

    def dependent(*inputs: Any, **options: Any) -> Any:
        out, num = plain(*inputs, **options), inputs[5]
        rows = PLACES.get(on, slice(None) if on == "companions" else slice(1, 3))
        crowded = jnp.where((num[0] > 1) | (on in PLACES), 1.01, 1.0)
        return out.at[rows].multiply(crowded.astype(out.dtype))

    trial = tried(found, candidate(found, "xla", run=dependent), invariant=True)
    assert trial.outcome == "dependent" and "other bits" in trial.reason, trial
    assert tried(found, candidate(found, "xla", run=dependent), invariant=False).outcome == "right"


def test_what_cannot_run_here_says_so() -> None:
    found = of(SHAPE)
    trial = tried(found, candidate(found, "triton"), invariant=True)
    assert trial.outcome == "unavailable" and "it is for GPU and this is cpu" in trial.reason


@pytest.mark.usefixtures("child_unoptimized")
def test_kernels_for_gpu_pass_interpreted_in_a_real_child() -> None:
    """All is real from the run's own records to a verdict, but for the device."""
    shape = msgspec.structs.replace(
        SHAPE, dtype="bfloat16", kv_dtype="bfloat16", query_heads=2, key_heads=1, interpret=True
    )
    names = ["triton", "xla"]
    if not attention_mosaic_gpu.why_not(*_abstract(shape), interpret=True):
        names.insert(0, "mosaic_gpu")
    spec = Spec(
        problem="engine_attention",
        shape=msgspec.to_builtins(shape),
        invariant=True,
        candidates=of(shape).names,
        seconds=PATIENCE_SECONDS,
        on_cpu=True,
    )
    verdict = verdict_of(spec, start_seconds=PATIENCE_SECONDS)
    right = [trial.candidate for trial in verdict.trials if trial.outcome == "right"]
    assert right == names, verdict


def _abstract(shape: EngineAttentionShape) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    q = jax.ShapeDtypeStruct((16, shape.query_heads, shape.head_dim), shape.dtype)
    pages = (8, shape.page_size, 2 * shape.key_heads, shape.head_dim)
    return q, jax.ShapeDtypeStruct(pages, shape.kv_dtype)


def test_a_shape_is_what_a_run_asks_of_one_device() -> None:
    config = base.get_config()
    config.model.num_query_heads, config.model.num_key_heads = 8, 4
    config.model.attention_pattern, config.model.sliding_window = "LG", 32
    config.engine.tensor_parallel, config.learner.mesh = 2, (1, 2, 1)
    run = run_config(config)
    shape = shape_of(run)
    assert (shape.query_heads, shape.key_heads, shape.windows) == (4, 2, (0, 32))
    assert shape.slots == run.engine.slots and shape.slot_tokens == run.slot_tokens
    assert shape.decode_rows == shape.mixed_rows == run.engine.token_rows  # as on a GPU
    assert engine_attention.PLAIN in of(shape).names
