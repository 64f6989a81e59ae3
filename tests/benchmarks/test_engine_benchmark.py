"""The engine's benchmark: what it replaces in the engine is there, and changes no token here."""

import jax
import numpy as np

from benchmarks.engine import generate, make_engine, make_engine_of_any_bits
from rlboost_jax.models.params import init_params
from tests.small import small_model


def test_an_engine_of_any_bits_makes_the_same_tokens() -> None:
    model = small_model()
    params = jax.device_get(init_params(model, 0))
    prompts = np.arange(12, dtype=np.int32).reshape(2, 6)
    usual, _ = generate(make_engine(model, params, 2, 8, slot_tokens=64), prompts, new=40)
    other, _ = generate(make_engine_of_any_bits(model, params, 2), prompts, new=40)
    np.testing.assert_array_equal(usual, other)
