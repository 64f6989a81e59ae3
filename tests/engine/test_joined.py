"""Joined matrices are those that were loaded, and change no bit of what is sampled."""

from collections.abc import Callable

import jax
import numpy as np
import pytest
from rlboost_kernels import active

from rlboost_jax.engine import engine_parameters, step_programs
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.joined import joined
from rlboost_jax.messages import GenerateRequest
from rlboost_jax.models.params import Params, init_params, unstack_layers
from tests.small import ENGINE, small_model

Rollouts = dict[int, tuple[list[int], list[int]]]


def test_columns_are_side_by_side_and_the_rest_is_as_it_was() -> None:
    params = unstack_layers(init_params(small_model(attention_bias=True), 0))
    layer = jax.tree.map(lambda leaf: leaf + jax.random.normal(jax.random.key(1)), params)[
        "layers"
    ][0]
    result = joined(layer)
    attention, mlp = layer["attention"], layer["mlp"]
    for leaf in ("kernel", "bias"):
        parts = [attention[name][leaf] for name in ("query", "key", "value")]
        found = result["attention"]["query_key_value"][leaf]
        np.testing.assert_array_equal(found, np.concatenate(parts, axis=-1))
    gate_up = [mlp[name]["kernel"] for name in ("gate", "up")]
    np.testing.assert_array_equal(result["mlp"]["gate_up"]["kernel"], np.concatenate(gate_up, 1))
    assert result["mlp"]["down"] is mlp["down"]
    assert result["attention"].keys() == {"query_key_value", *attention} - {"query", "key", "value"}
    assert result["mlp_norm"] is layer["mlp_norm"]


def test_experts_of_a_mixture_stay_apart() -> None:
    model = small_model(num_experts=4, experts_per_token=2, expert_dim=8)
    layer = unstack_layers(init_params(model, 0))["layers"][0]
    assert joined(layer)["mlp"] is layer["mlp"]


@pytest.mark.skipif(not active()["matmul"].startswith("cpu"), reason="needs the CPU's products")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_bit_depends_on_them(
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
    request_of: Callable[..., GenerateRequest],
    drain: Callable[[Engine], Rollouts],
) -> None:
    sizes = {"vocab_size": 96, "embed_dim": 64, "hidden_dim": 40, "num_layers": 1}
    model = small_model(**sizes, attention_bias=True, dtype=dtype)
    params = jax.device_get(init_params(model, 0))
    random = np.random.default_rng(8)
    prompts = [random.integers(0, 96, n).tolist() for n in (1, 3, 13, 20)]

    def sampled(form: Callable[[Params], Params]) -> tuple[Rollouts, int]:
        for module in (engine_parameters, step_programs):
            monkeypatch.setattr(module, "joined", form)
        engine = Engine(model, ENGINE, slot_tokens=44, truncated_sampling=False)
        engine.load(params, 1)
        engine.submit([request_of(i, prompt, group=i) for i, prompt in enumerate(prompts)])
        return drain(engine), len(engine.parameters.leaves)

    together, few = sampled(joined)
    apart, more = sampled(dict)
    assert together == apart and few == more - 5  # two kernels and biases, and a kernel, fewer
