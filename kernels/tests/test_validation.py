"""Arguments that do not fit together are refused in one line with the value and the limit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels import available_implementations, ragged_paged_attention, validate_metadata
from rlboost_kernels.problems import CHECKED, random_arguments

ARGUMENTS = random_arguments(CHECKED[1])  # T=64 H=4 K=2 D=32 L=16 S=8 M=6 P=51, 5 sequences


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("q", jnp.zeros((64, 128)), r"q has shape \(64, 128\)"),
        ("q", jnp.zeros((64, 4, 16)), "q has head dim 16 and kv_pages 32"),
        ("q", jnp.zeros((64, 5, 32)), "5 query heads are not a multiple of 2 key heads"),
        ("q", jnp.zeros((64, 4, 32), jnp.int32), "q has type int32"),
        ("kv_pages", jnp.zeros((3, 16, 5, 32)), r"kv_pages has shape \(3, 16, 5, 32\)"),
        ("kv_pages", jnp.zeros((0, 16, 4, 32)), r"kv_pages has shape \(0, 16, 4, 32\)"),
        (
            "kv_pages",
            jnp.zeros((3, 16, 4, 32), jnp.int8),
            "int8; it must be one of .*e5m2",
        ),
        ("q", jnp.zeros((64, 4, 32), jnp.float8_e4m3fn), "q has type float8_e4m3fn; it must be"),
        ("kv_lens", jnp.zeros((8, 1), jnp.int32), r"kv_lens has shape \(8, 1\)"),
        ("kv_lens", jnp.zeros(0, jnp.int32), "kv_lens is empty"),
        ("kv_lens", jnp.zeros(8), "kv_lens has type float32"),
        ("page_indices", jnp.zeros((7, 6), jnp.int32), r"\(7, 6\); it must be \[8 sequences"),
        ("cu_q_lens", jnp.zeros(8, jnp.int32), r"cu_q_lens has shape \(8,\); it must be \[9\]"),
        ("num_seqs", -1, "num_seqs is -1; it must be 0 or more"),
        ("num_seqs", 9, "num_seqs is 9; kv_lens has room for 8"),
        ("num_seqs", jnp.int32(5), r"num_seqs has shape \(\); it must be \[1\]"),
    ],
)
def test_shapes_and_types(name, value, message):
    with pytest.raises(ValueError, match=message):
        ragged_paged_attention(*ARGUMENTS._replace(**{name: value}))


@pytest.mark.parametrize("number", [5, np.int64(5)])
def test_a_number_of_sequences_may_be_an_int(number):
    plain = ragged_paged_attention(*ARGUMENTS)
    counted = ragged_paged_attention(*ARGUMENTS._replace(num_seqs=number))
    assert np.asarray(counted).tobytes() == np.asarray(plain).tobytes()


@pytest.mark.parametrize("option", ["sm_scale", "sliding_window", "soft_cap"])
def test_options(option):
    with pytest.raises(ValueError, match=f"{option} is 0; it must be"):
        ragged_paged_attention(*ARGUMENTS, **{option: 0})


@pytest.mark.parametrize("name", ["sm_scale", "k_scale", "v_scale"])
@pytest.mark.parametrize("factor", [0, -0.5, float("inf"), float("nan")])
def test_factors_are_positive_and_finite(name, factor):
    with pytest.raises(ValueError, match=f"{name} is {factor}; it must be positive and finite"):
        ragged_paged_attention(*ARGUMENTS, **{name: factor})


def test_shapes_are_checked_while_tracing():
    with pytest.raises(ValueError, match="5 query heads"):
        jax.eval_shape(ragged_paged_attention, *ARGUMENTS._replace(q=jnp.zeros((64, 5, 32))))


def test_implementations_by_name():
    assert available_implementations()[:2] == ("reference", "xla")
    best = ragged_paged_attention(*ARGUMENTS, implementation=available_implementations()[-1])
    for name in (None, "auto"):
        assert (ragged_paged_attention(*ARGUMENTS, implementation=name) == best).all()
    with pytest.raises(NotImplementedError, match="'mosaic' is not available here; available: ref"):
        ragged_paged_attention(*ARGUMENTS, implementation="mosaic")


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("num_seqs", 0, 9, "num_seqs is 9; kv_lens has room for 8"),
        ("cu_q_lens", 0, 1, "cu_q_lens starts with 1"),
        ("cu_q_lens", 5, 65, "cu_q_lens ends with 65; q has 64 rows"),
        ("cu_q_lens", 2, 0, "cu_q_lens falls from 1 to 0 at sequence 1"),
        ("kv_lens", 1, 16, "sequence 1 has 17 new rows and kv_lens 16"),
        ("kv_lens", 0, 97, "kv_lens of sequence 0 is 97; 6 pages of 16 tokens hold 96"),
        ("page_indices", (0, 5), 51, "the pool has pages 0 to 50"),
        ("page_indices", (1, 2), -1, "page_indices of sequence 1"),
    ],
)
def test_values_are_checked_on_request(name, index, value, message):
    validate_metadata(*ARGUMENTS)
    broken = getattr(ARGUMENTS, name).at[index].set(value)
    with pytest.raises(ValueError, match=message):
        validate_metadata(*ARGUMENTS._replace(**{name: broken}))


def test_a_page_named_twice():
    pages = ARGUMENTS.page_indices
    with pytest.raises(ValueError, match="sequence 0 name a page twice"):
        validate_metadata(*ARGUMENTS._replace(page_indices=pages.at[0, 1].set(pages[0, 0])))
    unused = pages.at[2, 5].set(-1)  # sequence 2 holds one token
    validate_metadata(*ARGUMENTS._replace(page_indices=unused))
