"""The emulated device proposes and shares rows as programs do."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.epochs import proposed, widths_of
from rlboost_jax.engine import drafts, verify_steps
from rlboost_jax.engine.drafts import MOST_DRAFTS
from rlboost_jax.engine.layouts import DRAFT_CONTEXT


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), alphabet=st.integers(2, 6))
def test_same_drafts(seed: int, alphabet: int) -> None:
    random = np.random.default_rng(seed)
    newest = random.integers(0, alphabet, (3, DRAFT_CONTEXT))
    newest[1, : random.integers(DRAFT_CONTEXT)] = -2
    texts = random.integers(-1, alphabet, (3, 60))
    expected = np.asarray(drafts.proposals(jnp.asarray(newest), jnp.asarray(texts)))
    assert proposed(newest, texts).tolist() == expected.tolist()


@settings(max_examples=15)
@given(
    wanted=st.lists(st.integers(1, MOST_DRAFTS + 1), min_size=7, max_size=7),
    spare=st.integers(0, 40),
)
def test_same_widths(wanted: list[int], spare: int) -> None:
    expected = np.asarray(verify_steps.widths_of(jnp.array(wanted, jnp.int32), 7 + spare))
    assert widths_of(np.array(wanted), 7 + spare).tolist() == expected.tolist()
