"""Writing tokens into the pool, against a loop, and without copying the pool."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlboost_kernels import (
    available_implementations,
    copy_kv_pages,
    kv_pages_shape,
    ragged_paged_attention,
    update_kv_pages,
)
from rlboost_kernels.attention.validation import EIGHT_BITS
from rlboost_kernels.problems import Problem, random_arguments

SHAPE = kv_pages_shape(num_pages=5, page_size=4, num_key_heads=2, head_dim=8)
OLD_JAX = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11)


def tokens(count, seed=0):
    k, v = np.random.default_rng(seed).standard_normal((2, count, 2, 8), np.float32)
    return k, v


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # a name, the same every time
)
@given(st.lists(st.integers(-30, 50), min_size=6, max_size=6, unique=True), st.integers(0, 99))
def test_writes_each_token_to_its_slot_and_drops_those_outside(implementation, slots, seed):
    pool = np.random.default_rng(seed + 1).standard_normal(SHAPE, np.float32)
    k, v = tokens(6, seed)
    expected = pool.copy()
    for t, slot in enumerate(slots):
        if 0 <= slot < 20:
            for head in range(2):
                expected[slot // 4, slot % 4, 2 * head] = k[t, head]
                expected[slot // 4, slot % 4, 2 * head + 1] = v[t, head]
    out = update_kv_pages(
        jnp.asarray(pool), k, v, jnp.asarray(slots, jnp.int32), implementation=implementation
    )
    np.testing.assert_array_equal(out, expected)


def test_many_tokens_may_share_a_slot_that_is_dropped(implementation):
    pool = jnp.ones(SHAPE)
    slots = jnp.asarray([3, 20, 20, 20, 2**31 - 1, -(2**31)], jnp.int32)
    out = update_kv_pages(pool, *tokens(6), slots, implementation=implementation)
    assert (np.asarray(out) != 1).any(axis=(2, 3)).sum() == 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", *EIGHT_BITS])
def test_a_donated_pool_is_written_in_place(dtype, implementation):
    if OLD_JAX and dtype == "bfloat16" and implementation != "cpu":
        pytest.skip("jax 0.10 rewrites a bfloat16 pool on CPU; see update_kv_pages")
    if dtype in EIGHT_BITS and implementation != "cpu":
        pytest.skip("XLA rewrites a pool of 8-bit numbers on CPU; see update_kv_pages")
    pool = jnp.zeros(kv_pages_shape(256, 16, 4, 64), dtype)
    k = v = jnp.ones((64, 4, 64), dtype)
    update = jax.jit(partial(update_kv_pages, implementation=implementation), donate_argnums=0)
    slots = jnp.arange(64, dtype=jnp.int32) * 50
    memory = update.lower(pool, k, v, slots).compile().memory_analysis()
    assert memory.alias_size_in_bytes == pool.nbytes
    assert memory.temp_size_in_bytes < pool.nbytes / 10  # so no copy of it anywhere
    address, held = pool.unsafe_buffer_pointer(), pool
    out = update(pool, k, v, slots)
    assert out.unsafe_buffer_pointer() == address
    assert held.is_deleted()


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("kv_dtype", ["float32", "float8_e4m3fn"])
@pytest.mark.parametrize("num_steps", [1, 8])
def test_a_loop_that_writes_and_attends_copies_no_pool(num_steps, kv_dtype, implementation):
    """As a decode program does: the pool is carried through the steps and donated."""
    if kv_dtype in EIGHT_BITS and implementation != "cpu":
        pytest.skip("XLA rewrites a pool of 8-bit numbers on CPU; see update_kv_pages")
    problem = Problem(
        name="decode",
        q_lens=(1,) * 64,
        kv_lens=(100,) * 64,
        num_query_heads=4,
        num_key_heads=4,
        head_dim=64,
        pages_per_sequence=16,
        kv_dtype=kv_dtype,
    )
    arguments = random_arguments(problem)

    def decode(kv_pages, q, kv_lens, page_indices, cu_q_lens, num_seqs):
        def step(i, carry):
            kv_pages, q = carry
            position = kv_lens + i
            page = jnp.take_along_axis(page_indices, position[:, None] // 16, axis=1)[:, 0]
            slots = page * 16 + position % 16
            kv_pages = update_kv_pages(kv_pages, q, q, slots, implementation=implementation)
            metadata = (position + 1, page_indices, cu_q_lens, num_seqs)
            return kv_pages, ragged_paged_attention(
                q, kv_pages, *metadata, implementation=implementation
            )

        return jax.lax.fori_loop(0, num_steps, step, (kv_pages, q))

    q, kv_pages, *metadata = arguments
    compiled = jax.jit(decode, donate_argnums=0).lower(kv_pages, q, *metadata).compile()
    # The dense definition makes copies of its own, by design.
    if implementation != "reference":
        assert compiled.memory_analysis().temp_size_in_bytes < kv_pages.nbytes / 3


def test_without_donation_the_old_pool_stays_as_it_was(implementation):
    pool, slots = jnp.zeros(SHAPE), jnp.arange(6, dtype=jnp.int32)
    update_kv_pages(pool, *tokens(6), slots, implementation=implementation)
    assert not np.any(pool)


def test_casts_to_the_type_of_the_pool(implementation):
    (k, v), pool = tokens(1), jnp.zeros(SHAPE, jnp.bfloat16)
    out = update_kv_pages(pool, k, v, jnp.zeros(1, jnp.int32), implementation=implementation)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(out[0, 0, 0::2], jnp.asarray(k[0], jnp.bfloat16))
    np.testing.assert_array_equal(out[0, 0, 1::2], jnp.asarray(v[0], jnp.bfloat16))


def neighbours_of_every_number(dtype):
    """All numbers of a type, what lies halfway between two, what is just beside, and too much."""
    numbers = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    points = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2])
    beside = [np.nextafter(points, np.float32(end)) for end in (-np.inf, np.inf)]
    far = np.float32([1.01, 1.06, 1.08, 2, 1e6, np.inf]) * numbers.max()
    return np.concatenate([points, *beside, far, -far, [np.nan]]).astype(np.float32)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("scale", [None, 1.0, 0.3, 7.5])
def test_eight_bits_are_rounded_to_even_and_never_overflow(dtype, scale, implementation):
    """As ml_dtypes casts, which is NumPy's and not XLA's."""
    x = neighbours_of_every_number(dtype)
    x = np.resize(x, (-(-len(x) // 16), 2, 8))  # repeated up to whole tokens
    x *= np.float32(scale or 1)
    pool = jnp.zeros(kv_pages_shape(len(x), 1, 2, 8), dtype)
    out = update_kv_pages(
        pool,
        x,
        -x[::-1],
        jnp.arange(len(x), dtype=jnp.int32),
        k_scale=scale,
        v_scale=scale,
        implementation=implementation,
    )
    largest = np.float32(jnp.finfo(dtype).max)
    for stored, token in ((out[:, 0, 0::2], x), (out[:, 0, 1::2], -x[::-1])):
        divided = token * np.float32(1 / (scale or 1))
        expected = np.clip(divided, -largest, largest).astype(dtype)
        np.testing.assert_array_equal(np.asarray(stored, np.float32), expected.astype(np.float32))
        assert np.isnan(np.asarray(stored, np.float32)).sum() == np.isnan(token).sum() > 0


@pytest.mark.parametrize("source", ["bfloat16", "float16"])
def test_eight_bits_from_sixteen(source, implementation):
    with np.errstate(over="ignore"):  # infinity in float16
        x = neighbours_of_every_number("float8_e4m3fn").astype(source)
    x = np.resize(x, (-(-len(x) // 16), 2, 8))
    pool = jnp.zeros(kv_pages_shape(len(x), 1, 2, 8), "float8_e4m3fn")
    slots = jnp.arange(len(x), dtype=jnp.int32)
    out = update_kv_pages(pool, x, x, slots, implementation=implementation)
    expected = np.clip(x.astype(np.float32), -448, 448).astype("float8_e4m3fn")
    np.testing.assert_array_equal(
        np.asarray(out[:, 0, 0::2], np.float32), expected.astype(np.float32)
    )


def test_scales_of_keys_and_values_are_their_own(implementation):
    (k, v), pool = tokens(1), jnp.zeros(SHAPE)
    slots = jnp.zeros(1, jnp.int32)
    scales = {"k_scale": 0.3, "v_scale": 4.0}
    out = update_kv_pages(pool, k, v, slots, **scales, implementation=implementation)
    np.testing.assert_array_equal(out[0, 0, 0::2], k[0] * np.float32(1 / 0.3))
    np.testing.assert_array_equal(out[0, 0, 1::2], v[0] / np.float32(4))


def test_scales_that_cannot_be():
    pool, (k, v), slots = jnp.zeros(SHAPE), tokens(6), jnp.zeros(6, jnp.int32)
    for scale in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"k_scale is {scale}; it must be positive and finite"):
            update_kv_pages(pool, k, v, slots, k_scale=scale)
        with pytest.raises(ValueError, match=f"v_scale is {scale}; it must be positive and finite"):
            update_kv_pages(pool, k, v, slots, v_scale=scale)


def test_shapes_and_types_that_do_not_fit():
    pool, (k, v), slots = jnp.zeros(SHAPE), tokens(6), jnp.zeros(6, jnp.int32)
    with pytest.raises(ValueError, match=r"k has shape \(6, 2, 7\).*\[tokens, 2, 8\]"):
        update_kv_pages(pool, k[..., :7], v, slots)
    with pytest.raises(ValueError, match=r"v has shape \(5, 2, 8\)"):
        update_kv_pages(pool, k, v[:5], slots)
    with pytest.raises(ValueError, match=r"slot_mapping has shape \(5,\); it must be \[6\]"):
        update_kv_pages(pool, k, v, slots[:5])
    with pytest.raises(ValueError, match="slot_mapping has type float32"):
        update_kv_pages(pool, k, v, slots.astype(jnp.float32))
    with pytest.raises(ValueError, match=r"kv_pages has shape \(5, 4, 3, 8\)"):
        update_kv_pages(pool[:, :, :3], k, v, slots)
    with pytest.raises(NotImplementedError, match="'mosaic' is not available here"):
        update_kv_pages(pool, k, v, slots, implementation="mosaic")
    with pytest.raises(ValueError, match="page_size is 0"):
        kv_pages_shape(5, 0, 2, 8)


@pytest.mark.parametrize("name", [*available_implementations(), None])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_copies_read_before_they_write(name, dtype):
    pool = np.random.default_rng(0).normal(size=(7, 2, 4, 3)).astype(dtype)
    # 3 goes to 1, whose old content goes to 5: a chain. The last three are no copies.
    source = np.array([3, 1, 99, -5, 2, 2, 2], np.int32)
    destination = np.array([1, 5, 0, 6, 7, -1, 2**31 - 1], np.int32)
    expected = pool.copy()
    expected[[1, 5, 0, 6]] = pool[[3, 1, 6, 0]]
    copy = jax.jit(partial(copy_kv_pages, implementation=name), donate_argnums=0)
    out = copy(jnp.asarray(pool), jnp.asarray(source), jnp.asarray(destination))
    assert np.asarray(out).tobytes() == expected.tobytes()


def test_pages_to_copy_must_be_pairs():
    pool, pages = jnp.zeros((2, 1, 2, 1)), jnp.zeros(3, jnp.int32)
    with pytest.raises(ValueError, match=r"destination has shape \(2,\) and type int32"):
        copy_kv_pages(pool, pages, pages[:2])
    with pytest.raises(ValueError, match=r"source has shape .* and type float32"):
        copy_kv_pages(pool, pages.astype("float32"), pages)
