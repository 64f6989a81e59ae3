"""Sampled tokens against float64 distributions, a Threefry in plain Python, and themselves."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlboost_kernels import (
    exponentials,
    noise_keys,
    sample_tokens,
    token_noise,
    tokens_from_noise,
    uniforms,
)
from rlboost_kernels.bench import median_seconds
from rlboost_kernels.logprobs import logprobs_bench
from rlboost_kernels.sampling import sampling_bench

IMPLEMENTATIONS = ("reference", "xla")
KINDS = ("inverse_cdf", "tree")


def distribution(logits, temperature, top_p, top_k):
    """Float64 probabilities of one row: ranked by logit and then by id, cut, renormalised."""
    logits = np.asarray(logits, np.float64)
    if temperature == 0:
        return np.eye(len(logits))[np.argmax(logits)]
    p = np.exp((logits - logits.max()) / temperature)
    order = np.lexsort((np.arange(len(p)), -logits))
    if top_k > 0:
        p[order[top_k:]] = 0
    if top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= top_p * p.sum()]] = 0
    return p / p.sum()


def columns(T, temperature=1.0, top_p=1.0, top_k=0):
    return (
        jnp.full(T, temperature, jnp.float32),
        jnp.full(T, top_p, jnp.float32),
        jnp.full(T, top_k, jnp.int32),
    )


def assert_samples(logits, noise, settings, tokens, logprobs):
    """The token is the one that its noise selects, give or take float32 sums; its log-probability
    is the one it was drawn with."""
    for row, numbers, setting, token, logprob in zip(
        logits, noise, settings, tokens, logprobs, strict=True
    ):
        p = distribution(row, *setting)
        assert p[token] > 0
        np.testing.assert_allclose(logprob, np.log(p[token]), atol=1e-5)
        if np.ndim(numbers):
            assert lost_race(p, numbers, token) <= 1e-5
        else:
            assert p[:token].sum() - 1e-5 <= numbers <= p[: token + 1].sum() + 1e-5


def lost_race(p, numbers, token):
    """Probability that had to move to a node on the way to the token, for it to come first.

    Every level's 16 siblings race: a child's time is its number by its probability.
    """
    ids, lost = np.arange(len(p)), 0.0
    for level, times in enumerate(np.asarray(numbers, np.float64)):
        inside = ids >> 4 * (level + 1) == token >> 4 * (level + 1)
        parts = np.bincount((ids[inside] >> 4 * level) & 15, p[inside], 16)
        own = (token >> 4 * level) & 15
        moved = (parts * times[own] - parts[own] * times) / (times + times[own])
        lost = max(lost, moved.max())
    return lost


def random_noise(rng, kind, T, V):
    """Noise of this kind, drawn by NumPy."""
    if kind == "inverse_cdf":
        return rng.uniform(1e-6, 1 - 1e-6, T).astype(np.float32)
    levels = int(np.ceil(np.log(V) / np.log(16) - 1e-9))
    return rng.exponential(size=(T, levels, 16)).astype(np.float32)


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # a setting, the same every time
)
@given(
    shape=st.sampled_from([(1, "float32"), (17, "bfloat16"), (300, "float32")]),
    ties=st.booleans(),
    top_p=st.sampled_from([1.0, 0.93, 0.51, 0.013]),
    top_k=st.sampled_from([0, 1, 3, 50]),
    temperature=st.sampled_from([0.0, 0.6, 1.0, 1.9]),
    seed=st.integers(0, 99),
)
def test_samples_the_float64_distribution(
    kind, implementation, shape, ties, top_p, top_k, temperature, seed
):
    V, dtype = shape
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (8, V))
    logits = jnp.asarray(np.round(logits) if ties else logits, dtype)
    noise = random_noise(rng, kind, 8, V)
    tokens, logprobs = tokens_from_noise(
        logits,
        jnp.asarray(noise),
        *columns(8, temperature, top_p, top_k),
        implementation=implementation,
    )
    assert tokens.dtype == jnp.int32 and logprobs.dtype == jnp.float32
    setting = (float(np.float32(temperature)), float(np.float32(top_p)), top_k)
    if temperature == 0:
        assert np.array_equal(tokens, np.argmax(np.asarray(logits, np.float32), axis=-1))
        assert not np.any(logprobs)
    else:
        assert_samples(logits, noise, [setting] * 8, tokens, logprobs)


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("truncated", [False, True])
def test_a_large_vocabulary(kind, truncated):
    """Every 16-way sum is short: log-probabilities of 70 000 entries are good to 1e-5."""
    T, V = 6, 70_003
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (T, V)).astype(np.float32)
    noise = random_noise(rng, kind, T, V)
    setting = (0.9, 0.8 if truncated else 1.0, 0)
    tokens, logprobs = tokens_from_noise(
        jnp.asarray(logits), jnp.asarray(noise), *columns(T, *setting), truncated=truncated
    )
    setting = (float(np.float32(0.9)), float(np.float32(setting[1])), 0)
    assert_samples(logits, noise, [setting] * T, tokens, logprobs)


def threefry(key, counter):
    """20 rounds of Threefry-2x32, from the paper's description, in plain integers."""
    words, rotations = 0xFFFFFFFF, ((13, 15, 26, 6), (17, 29, 16, 24))
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x, y = (counter[0] + keys[0]) & words, (counter[1] + keys[1]) & words
    for i in range(5):
        for r in rotations[i % 2]:
            x = (x + y) & words
            y = ((y << r) | (y >> (32 - r))) & words
            y ^= x
        x = (x + keys[(i + 1) % 3]) & words
        y = (y + keys[(i + 2) % 3] + i + 1) & words
    return x, y


def test_noise_is_threefry_of_seed_step_sample_and_position():
    places = [(0, 0, 0, 0), (1, 2, 3, 4), (2**32 - 1, 7, 191, 199), (5, 2**31, 9, 4095)]
    seed, step, sample = (jnp.asarray([p[i] for p in places], jnp.uint32) for i in range(3))
    position = jnp.asarray([p[3] for p in places], jnp.int32)
    noise = uniforms(noise_keys(seed, step, sample), position)
    for place, u in zip(places, noise.tolist(), strict=True):
        key = (0, place[0])
        for number in place[1:]:
            key = threefry(key, (0, number))
        assert u == ((key[0] >> 9) + 0.5) * 2.0**-23
    keys = noise_keys(seed, step, sample)
    numbers = np.asarray(exponentials(keys, position, vocabulary=50)).reshape(4, 16, 2)
    for place, row in zip(places, numbers, strict=True):
        key = (0, place[0])
        for number in place[1:]:
            key = threefry(key, (0, number))
        words = np.float64([threefry(key, (0, block)) for block in range(16)])
        np.testing.assert_allclose(row, -np.log1p(-(words + 0.5) / 2**32), rtol=1e-6)
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(4, 50)), jnp.float32)
    settings = columns(4, 0.8, 0.9, 20)
    for kind in KINDS:
        together = sample_tokens(logits, seed, step, sample, position, *settings, noise=kind)
        noise = token_noise(keys, position, kind, vocabulary=50)
        for x, y in zip(together, tokens_from_noise(logits, noise, *settings), strict=True):
            assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def sampled_by(kind, p, count):
    """Tokens of so many rows of probabilities [V], each with the noise of another sample."""
    rows = jnp.arange(count, dtype=jnp.uint32)
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(p, jnp.float32)), (count, len(p)))
    zeros = jnp.zeros_like(rows)
    position = jnp.zeros(count, jnp.int32)
    tokens, _ = sample_tokens(
        logits, zeros, zeros, rows, position, *columns(count), noise=kind, truncated=False
    )
    return np.asarray(tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_as_frequent_as_they_are_likely(kind):
    """Three hundred entries, in which the nodes of three levels hold very different sums."""
    p = np.random.default_rng(4).dirichlet(np.full(300, 0.1))
    count = 20_000
    found = np.bincount(sampled_by(kind, p, count), minlength=300)
    often = p * count > 5
    squares = (found - p * count)[often] ** 2 / (p * count)[often]
    degrees = often.sum()
    assert abs(squares.sum() - degrees) < 5 * np.sqrt(2 * degrees)
    assert abs(found[~often].sum() - p[~often].sum() * count) < 5 * np.sqrt(count * p[~often].sum())


def test_two_like_distributions_seldom_differ_by_the_noise_of_a_tree():
    """By at most 2 v / (1 + v) where all entries race at once, of total variation v; a tree's few
    levels add little. Source: Bavarian et al. 2016, arXiv:1612.01041.
    """
    rng, count = np.random.default_rng(5), 20_000
    p = rng.dirichlet(np.full(300, 0.1))
    q = p * np.exp(rng.normal(0, 0.3, 300))
    q /= q.sum()
    variation = np.abs(p - q).sum() / 2
    differ = {
        kind: (sampled_by(kind, p, count) != sampled_by(kind, q, count)).mean() / variation
        for kind in KINDS
    }
    assert 0.9 < differ["tree"] < 2 and differ["inverse_cdf"] > 2 * differ["tree"]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_see_each_other(kind):
    """Not even those that need the search between equal logits, or are greedy."""
    rng, V = np.random.default_rng(3), 9000
    logits = rng.normal(0, 2, (64, V)).astype(np.float32)
    logits[::3] = np.round(logits[::3])
    arguments = [
        logits,
        random_noise(rng, kind, 64, V),
        rng.choice(np.array([0, 0.5, 1.3], np.float32), 64),
        rng.choice(np.array([0.4, 0.9, 1], np.float32), 64),
        rng.choice(np.array([0, 7, 60], np.int32), 64),
    ]
    before = tokens_from_noise(*map(jnp.asarray, arguments))
    order = rng.permutation(64)
    moved = tokens_from_noise(*(jnp.asarray(x[order]) for x in arguments))
    for row in (0, 1, 2):
        copies = tokens_from_noise(*(jnp.asarray(x[np.full(64, row)]) for x in arguments))
        for x, y, z in zip(before, moved, copies, strict=True):
            assert np.asarray(x)[order].tobytes() == np.asarray(y).tobytes()
            assert np.asarray(z).tobytes() == np.full(64, x[row]).tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_has_no_probability_is_never_drawn(implementation, kind):
    logits = np.full((5, 40), -np.inf, np.float32)
    logits[:, 3::7] = np.random.default_rng(1).normal(size=6)
    noise = jnp.asarray([0, 2.0**-24, 0.5, 1 - 2.0**-24, 1], jnp.float32)
    if kind == "tree":
        noise = jnp.broadcast_to(-jnp.log1p(-noise * (1 - 2.0**-24))[:, None, None], (5, 2, 16))
    for setting in ((1.0, 1.0, 0), (1e-30, 0.5, 3), (1e-39, 0.0, 0), (1.0, 0.9, 100)):
        tokens, logprobs = tokens_from_noise(
            jnp.asarray(logits), noise, *columns(5, *setting), implementation=implementation
        )
        assert set(np.asarray(tokens) % 7) == {3}
        assert np.isfinite(logprobs).all()


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, jnp.zeros(4), r"logits has shape \(4,\); it must be \[rows, vocabulary\]"),
        (0, jnp.zeros((4, 5), jnp.int32), "logits has type int32"),
        (1, jnp.zeros(4, jnp.int32), "seed has type int32; it must be uint32"),
        (4, jnp.zeros(3, jnp.int32), r"position has shape \(3,\); it must be \(4,\)"),
        (5, jnp.zeros(4, jnp.int32), "temperature has type int32; it must be float32"),
        (7, jnp.zeros(4), "top_k has type float32; it must be int32"),
    ],
)
def test_what_does_not_fit(index, value, message):
    numbers = [jnp.zeros(4, jnp.uint32)] * 3
    arguments = [jnp.zeros((4, 5)), *numbers, jnp.zeros(4, jnp.int32), *columns(4)]
    with pytest.raises(NotImplementedError, match="'mosaic' is not available"):
        sample_tokens(*arguments, implementation="mosaic")
    arguments[index] = value
    with pytest.raises(ValueError, match=message):
        sample_tokens(*arguments)


def test_noise_of_another_vocabulary_or_kind_does_not_fit():
    column = jnp.zeros(4, jnp.uint32)
    arguments = [jnp.zeros((4, 50)), column, column, column, jnp.zeros(4, jnp.int32), *columns(4)]
    with pytest.raises(ValueError, match="noise is 'forest'; it must be one of inverse_cdf, tree"):
        sample_tokens(*arguments, noise="forest")
    with pytest.raises(ValueError, match=r"noise is float32\[4, 1, 16\]; .* \[4, 2, 16\] for"):
        tokens_from_noise(jnp.zeros((4, 50)), jnp.ones((4, 1, 16)), *columns(4))


@pytest.mark.usefixtures("unoptimized")
def test_the_benchmarks_print_their_rows():
    assert len(sampling_bench.sampling_rows(median_seconds, 1, ((64, 112),))) == 2
    assert len(logprobs_bench.logprobs_rows(median_seconds, 1, ((64, 16, 112),))) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("V", [17, 8192])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("temperature", "entries"),
    [(0.8, slice(9, 10)), (0.8, slice(None)), (0.0, slice(None))],
    ids=["one of many", "all", "all, greedy"],  # a largest logit may well be found beside a NaN
)
def test_logits_that_are_no_numbers_show_in_their_row(
    kind, implementation, V, bad, temperature, entries
):
    logits = np.zeros((3, V), np.float32)
    logits[1, entries] = bad
    tokens, logprobs = tokens_from_noise(
        jnp.asarray(logits),
        jnp.asarray(random_noise(np.random.default_rng(6), kind, 3, V)),
        *columns(3, temperature),
        truncated=False,
        implementation=implementation,
    )
    assert np.isfinite(logprobs).tolist() == [True, False, True]
    assert (tokens >= 0).all() and (tokens < V).all()
