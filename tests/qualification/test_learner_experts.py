"""The learner's experts as a problem: its reference, real kernels interpreted, and bits."""

from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from rlboost_kernels.grouped import grouped_mosaic_gpu

from configs import base
from rlboost_jax.qualification.checks import row_error, tried
from rlboost_jax.qualification.child_process import verdict_of
from rlboost_jax.qualification.learner_experts import PLAIN, ExpertsShape, problem, shape_of
from rlboost_jax.qualification.problem import TrialProblem
from rlboost_jax.qualification.trial_records import Spec
from rlboost_jax.settings.config_loading import run_config
from tests.patience import PATIENCE_SECONDS
from tests.qualification.candidates import candidate

SHAPE = ExpertsShape(
    tokens=40,
    num_experts=4,
    experts_per_token=2,
    embed_dim=128,
    expert_dim=128,
    dtype="float32",
    activation="silu",
)


def of(shape: ExpertsShape) -> TrialProblem:
    return problem(msgspec.to_builtins(shape))


def test_candidates_are_tried_in_the_order_of_their_bound() -> None:
    assert of(SHAPE).names == ("mosaic_gpu", "blocks")


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_reference_is_the_sum_over_all_experts(activation: str) -> None:
    """The sum is of every token with every expert, differentiated by jax."""
    (case,) = of(msgspec.structs.replace(SHAPE, activation=activation)).cases
    x, chosen, weights, *matrices, upstream = case.inputs
    activate = jax.nn.silu if activation == "silu" else jax.nn.gelu

    def added(x: Any, weights: Any, gate: Any, up: Any, down: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            hidden = activate(jnp.einsum("ne,xef->nxf", x, gate))
            out = jnp.einsum("nxf,xfe->nxe", hidden * jnp.einsum("ne,xef->nxf", x, up), down)
        share = (jax.nn.one_hot(chosen, SHAPE.num_experts) * weights[:, :, None]).sum(axis=1)
        return (share[:, :, None] * out).sum(axis=1)

    @jax.jit
    def with_gradients(upstream: Any, *given: Any) -> Any:
        out, back = jax.vjp(added, *given)
        return out, *back(upstream)

    results = with_gradients(upstream, x, weights, *matrices)
    for found, expected in zip(results, case.expected, strict=True):
        assert row_error(np.asarray(found).reshape(expected.shape), expected) < 1e-5


def test_experts_have_unequal_shares_and_one_has_none() -> None:
    (case,) = of(SHAPE).cases
    counts = np.bincount(np.ravel(case.inputs[1]), minlength=4)
    assert counts.sum() == 80 and counts[0] > counts[2] > 0 and counts[3] == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_are_right_and_repeat_their_bits(dtype: str) -> None:
    found = of(msgspec.structs.replace(SHAPE, dtype=dtype))
    trial = tried(found, candidate(found, PLAIN), invariant=True)
    assert trial.outcome == "right" and trial.seconds, trial


@pytest.fixture(scope="module")
def right() -> tuple[Any, ...]:
    """What blocks make of the case in bfloat16."""
    found = of(msgspec.structs.replace(SHAPE, dtype="bfloat16"))
    (case,) = found.cases
    return tuple(jax.jit(candidate(found, PLAIN).run)(*case.inputs))


@pytest.mark.parametrize("leaf", range(6))
def test_a_wrong_row_of_any_result_shows(leaf: int, right: tuple[Any, ...]) -> None:
    found = of(msgspec.structs.replace(SHAPE, dtype="bfloat16"))

    def wrong(*inputs: Any) -> Any:
        results = list(right)
        results[leaf] = results[leaf].at[7].multiply(1.05)
        return tuple(results)

    trial = tried(found, candidate(found, PLAIN, run=wrong), invariant=False)
    assert trial.outcome == "wrong", trial
    assert trial.reason.startswith("40 tokens, 4 experts: a row is off")


@pytest.mark.usefixtures("child_unoptimized")
def test_the_kernel_passes_interpreted_in_a_real_child() -> None:
    shape = msgspec.structs.replace(SHAPE, dtype="bfloat16", interpret=True)
    spec = Spec(
        problem="learner_experts",
        shape=msgspec.to_builtins(shape),
        invariant=True,
        candidates=of(shape).names,
        seconds=PATIENCE_SECONDS,
        on_cpu=True,
    )
    verdict = verdict_of(spec, start_seconds=PATIENCE_SECONDS)
    missing = grouped_mosaic_gpu.why_not("bfloat16", 128, interpret=True)
    outcomes = {trial.candidate: trial.outcome for trial in verdict.trials}
    assert outcomes == {
        "mosaic_gpu": "unavailable" if missing else "right",
        "blocks": "right",
    }, verdict


def test_a_shape_is_what_a_run_asks_of_one_device() -> None:
    config = base.get_config()
    assert shape_of(run_config(config)) is None
    config.model.num_experts, config.model.experts_per_token = 8, 4
    config.model.expert_dim, config.model.dtype = 32, "bfloat16"
    config.learner.mesh, config.learner.row_tokens = (1, 1, 4), 700
    shape = shape_of(run_config(config))
    assert shape is not None
    assert (shape.num_experts, shape.experts_per_token) == (2, 2)  # of a device
    assert (shape.tokens, shape.embed_dim) == (2048, config.model.embed_dim)
