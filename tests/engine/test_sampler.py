"""The sampler that the engine runs, against closed forms and float64."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels import noise_keys, tokens_from_noise, uniforms

from rlboost_jax.messages import Sampling

ROWS, VOCABULARY = 4096, 270  # few shapes, few compilations


def controls(rows: int, **values: Any) -> dict[str, jax.Array]:
    """How each row is sampled: the noise's numbers and the distribution's."""
    defaults = {"seed": 0, "step": 0, "sample": 0, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
    kinds = {"temperature": np.float32, "top_p": np.float32, "top_k": np.int32}
    return {
        name: jnp.asarray(
            np.broadcast_to(np.asarray(value, kinds.get(name, np.uint32)), (rows,)).copy()
        )
        for name, value in {**defaults, **values}.items()
    }


def keys_of(rows: int, **values: Any) -> jax.Array:
    settings = controls(rows, **values)
    return noise_keys(settings["seed"], settings["step"], settings["sample"])


def distribution(settings: dict[str, jax.Array]) -> list[jax.Array]:
    return [settings[name] for name in ("temperature", "top_p", "top_k")]


def draw(
    logits: np.ndarray, noise: np.ndarray, *, truncated: bool = False, **values: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Sample the same logits once for every number in `noise`, in calls of one shape."""
    rows = jnp.asarray(np.broadcast_to(logits.astype(np.float32), (ROWS, len(logits))))
    settings, parts = distribution(controls(ROWS, **values)), []
    for start in range(0, len(noise), ROWS):
        part = np.full(ROWS, 0.5, np.float32)
        part[: len(noise) - start] = noise[start : start + ROWS]
        part = jnp.asarray(part)
        parts.append(tokens_from_noise(rows, part, *settings, truncated=truncated))
    tokens, logprobs = (np.concatenate([p[i] for p in parts])[: len(noise)] for i in (0, 1))
    return tokens, logprobs


def widen(values: list[float]) -> np.ndarray:
    """Logits of a full vocabulary whose other entries are impossible."""
    return np.array(values + [-np.inf] * (VOCABULARY - len(values)))


def test_noise_is_threefry_of_seed_step_sample_and_position(oracle: Any) -> None:
    places = np.array([(0, 0, 0, 0), (1, 2, 3, 4), (2**32 - 1, 7, 191, 199), (5, 2**31, 9, 4095)])
    keys = keys_of(4, seed=places[:, 0], step=places[:, 1], sample=places[:, 2])
    noise = uniforms(keys, jnp.asarray(places[:, 3], jnp.int32))
    assert noise.tolist() == [oracle.uniform(*place) for place in places.tolist()]


def test_noise_key_is_the_documented_chain() -> None:
    keys = keys_of(1, seed=6, step=7, sample=8)
    chain = jax.random.key(6)
    for number in (7, 8):
        chain = jax.random.fold_in(chain, number)
    assert jax.random.key_data(keys[0]).tolist() == jax.random.key_data(chain).tolist()


def test_noise_is_uniform_and_stays_inside_the_open_interval() -> None:
    count = 1 << 16
    keys = keys_of(count, sample=np.arange(count))
    noise = np.asarray(jax.jit(uniforms)(keys, jnp.zeros(count, jnp.int32)), np.float64)
    assert noise.min() > 0 and noise.max() < 1
    counts = np.histogram(noise, bins=64, range=(0, 1))[0]
    chi_square = ((counts - count / 64) ** 2 / (count / 64)).sum()
    assert chi_square < 110  # 63 degrees of freedom: exceeded once in 4000 seeds; this one is fixed


@pytest.mark.parametrize("vocabulary", [1, 16, VOCABULARY])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_frequencies_follow_the_softmax(oracle: Any, vocabulary: int, temperature: float) -> None:
    logits = np.random.default_rng(vocabulary).normal(0, 2, vocabulary)
    # Evenly spaced noise visits every interval in proportion to its length.
    count = 20_000
    noise = (np.arange(count) + 0.5) / count
    tokens, logprobs = draw(logits, noise, temperature=temperature)
    sampling = Sampling(temperature=temperature, top_p=1, top_k=0, max_tokens=1, stop_ids=())
    expected = oracle.distribution(logits.astype(np.float32), sampling)
    assert np.abs(np.bincount(tokens, minlength=vocabulary) - count * expected).max() < 1.1
    np.testing.assert_allclose(logprobs, np.log(expected[tokens]), atol=2e-6)


def test_random_draws_pass_a_chi_square_test(oracle: Any) -> None:
    logits = widen(np.random.default_rng(1).normal(0, 1, 40).tolist())
    count = 1 << 15
    keys = keys_of(count, seed=3, sample=np.arange(count))
    noise = np.asarray(jax.jit(uniforms)(keys, jnp.full(count, 17, jnp.int32)))
    tokens, _ = draw(logits, noise)
    sampling = Sampling(temperature=1, top_p=1, top_k=0, max_tokens=1, stop_ids=())
    expected = count * oracle.distribution(logits, sampling)[:40]
    chi_square = ((np.bincount(tokens, minlength=40) - expected) ** 2 / expected).sum()
    assert chi_square < 79  # 39 degrees of freedom: exceeded by one seed in 6000


@pytest.mark.parametrize(
    ("top_k", "top_p"),
    [(1, 1.0), (3, 1.0), (0, 0.3), (0, 0.9), (0, 1e-6), (10, 0.7), (1000, 0.999), (0, 1.0)],
)
def test_truncation_leaves_the_float64_support(oracle: Any, top_k: int, top_p: float) -> None:
    logits = np.random.default_rng(2).normal(0, 2, VOCABULARY).astype(np.float32)
    sampling = Sampling(temperature=0.9, top_p=top_p, top_k=top_k, max_tokens=1, stop_ids=())
    expected = oracle.distribution(logits, sampling)
    noise = (np.arange(50_000) + 0.5) / 50_000
    tokens, logprobs = draw(
        logits, noise, truncated=True, temperature=0.9, top_p=top_p, top_k=top_k
    )
    assert np.abs(np.bincount(tokens, minlength=VOCABULARY) - 50_000 * expected).max() < 1.1
    assert (expected[tokens] > 0).all()
    np.testing.assert_allclose(logprobs, np.log(expected[tokens]), atol=2e-6)


def test_equal_logits_are_ranked_by_id() -> None:
    tokens, logprobs = draw(
        widen([0.0, 1.0, 1.0, 1.0]), np.array([0.1, 0.6, 0.9]), truncated=True, top_k=2
    )
    assert tokens.tolist() == [1, 2, 2]
    np.testing.assert_allclose(logprobs, np.log(0.5), rtol=1e-6)


def test_truncation_that_keeps_all_changes_no_bit() -> None:
    logits = np.random.default_rng(3).normal(0, 3, VOCABULARY)
    noise = np.random.default_rng(4).random(500)
    plain, cut = draw(logits, noise), draw(logits, noise, truncated=True)
    assert np.array_equal(plain[0], cut[0])
    assert np.array_equal(plain[1].view(np.int32), cut[1].view(np.int32))


def test_greedy_takes_the_first_largest_logit_with_probability_one() -> None:
    tokens, logprobs = draw(widen([0.0, 3.0, 3.0]), np.array([0.01, 0.99]), temperature=0.0)
    assert tokens.tolist() == [1, 1]
    assert logprobs.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("make", ["ends", "one", "first", "last", "spread"])
def test_never_yields_an_impossible_token(truncated: bool, make: str) -> None:
    """At the very ends of the noise and beyond, with most of the vocabulary impossible."""
    V = VOCABULARY
    logits = np.full(V, -np.inf)
    chosen: dict[str, Callable[[], list[int]]] = {
        "ends": lambda: [0, V - 1],
        "one": lambda: [123],
        "first": lambda: [0],
        "last": lambda: [V - 1],
        "spread": partial(list, range(3, V, 7)),
    }
    possible = chosen[make]()
    logits[possible] = np.random.default_rng(5).normal(0, 8, len(possible))
    tiny = np.finfo(np.float32).tiny
    noise = np.concatenate(
        [[0, tiny, 2.0**-24, 1 - 2.0**-24, 1], np.random.default_rng(6).random(400)]
    )
    tokens, logprobs = draw(logits, noise, truncated=truncated)
    assert set(tokens.tolist()) <= set(possible)
    assert np.isfinite(logprobs).all()
    assert (tokens[0], tokens[4]) == (possible[0], possible[-1])


def test_a_tiny_temperature_is_greedy_and_finite() -> None:
    tokens, logprobs = draw(widen([1.0, 300.0, 299.0]), np.array([0.5]), temperature=1e-30)
    assert tokens.tolist() == [1] and logprobs.tolist() == [0.0]


def test_rows_do_not_see_each_other() -> None:
    rng = np.random.default_rng(7)
    logits = rng.normal(0, 2, (ROWS, VOCABULARY)).astype(np.float32)
    noise = rng.random(ROWS).astype(np.float32)
    values = controls(
        ROWS,
        temperature=rng.uniform(0.5, 2, ROWS),
        top_k=rng.integers(0, 9, ROWS),
        top_p=rng.uniform(0.5, 1.2, ROWS).clip(max=1),
    )

    def run(order: np.ndarray) -> list[np.ndarray]:
        arrays = jnp.asarray(logits[order]), jnp.asarray(noise[order])
        settings = [column[order] for column in distribution(values)]
        return [np.asarray(x) for x in tokens_from_noise(*arrays, *settings)]

    order = rng.permutation(ROWS)
    for before, after in zip(run(np.arange(ROWS)), run(order), strict=True):
        assert np.array_equal(before[order], after)


def test_ties_are_cut_where_the_mass_is_reached(oracle: Any) -> None:
    """Many equal logits, so that the bound falls inside a run of ties."""
    logits = np.repeat([3.0, 1.0, 0.0], [2, 100, 168]).astype(np.float32)
    logits = np.random.default_rng(9).permutation(logits)
    for top_k, top_p in ((40, 1.0), (0, 0.4), (150, 0.9), (3, 0.8)):
        sampling = Sampling(temperature=1, top_p=top_p, top_k=top_k, max_tokens=1, stop_ids=())
        support = np.flatnonzero(oracle.distribution(logits, sampling))
        noise = (np.arange(8192) + 0.5) / 8192
        tokens, _ = draw(logits, noise, truncated=True, top_k=top_k, top_p=top_p)
        assert set(tokens.tolist()) == set(support.tolist())
