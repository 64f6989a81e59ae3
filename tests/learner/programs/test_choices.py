"""Whoever holds the weights may choose any token, but only one is the choice of its noise."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels import noise_keys, token_noise, tokens_from_noise

from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.packing import pack
from rlboost_jax.learner.programs.choices import (
    SPARE_TOKENS,
    choice_gaps,
    greedy_gaps,
    mean_choice_gaps,
)
from rlboost_jax.learner.programs.logprobs import sampled_logprobs
from rlboost_jax.learner.tolerated_gaps import EXACT_CHOICE, MEAN_SHARE, ROUNDED_CHOICE
from rlboost_jax.sequences.identities import Work
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.sampling_config import SamplingConfig

N, E, V, SEED, BATCH, SAMPLE = 512, 8, 60, 7, 3, 11
PLAIN = SamplingConfig(temperature=0.9, top_p=1.0, top_k=0, max_response_tokens=N)
CUT = SamplingConfig(temperature=1.2, top_p=0.8, top_k=20, max_response_tokens=N)
KINDS = {"plain": PLAIN, "truncated": CUT}
KINDS |= {f"{name}, tree": replace(each, noise="tree") for name, each in KINDS.items()}


@pytest.fixture(scope="module")
def factors():
    rng = np.random.default_rng(0)
    return jnp.float32(rng.normal(size=(N, E))), jnp.float32(rng.normal(size=(E, V)))


def noise_of(sample=SAMPLE, sequence=0, kind="inverse_cdf"):
    """By the identities that DESIGN names, through the engine's own functions."""
    work = Work(seed=SEED, batch=BATCH, prompt=0, sample=sample, sequence=sequence)
    names = (np.uint32(work.noise_seed), np.uint32(BATCH), np.uint32(sample))
    keys = noise_keys(*(jnp.full(N, name) for name in names))
    return np.asarray(token_noise(keys, jnp.arange(N, dtype=jnp.int32), kind, vocabulary=V))


def drawn(logits, noise, sampling):
    columns = (
        jnp.full(N, sampling.temperature, jnp.float32),
        jnp.full(N, sampling.top_p, jnp.float32),
        jnp.full(N, sampling.top_k, jnp.int32),
    )
    return np.asarray(tokens_from_noise(logits, jnp.asarray(noise), *columns)[0])


def gaps(factors, tokens, sampling, *, batch=BATCH, later=False, tolerated=0.0):
    """Gaps of a response with these tokens; `later`: as the second sequence of an episode."""

    def sequence(tokens):
        return Sequence.of_response([1, 2], tokens, np.zeros(len(tokens)), version=0)

    first = [sequence([5])] if later else []
    one, *others = [*first, sequence(tokens)]
    response = Trajectory(
        prompt=0,
        sample=SAMPLE,
        sequence=one,
        later=tuple(others),
        advantage=0.0,
        batch=batch,
        attempts=(0,) * (1 + later),
    )
    (packed,) = pack([response], rows=1, row_tokens=N + 4, loss_aggregation="token_mean", seed=SEED)
    where = packed.response_mask & (packed.sequences == int(later))
    hidden = np.zeros((packed.tokens.size, E), np.float32)
    hidden[where.ravel()] = factors[0]

    @jax.jit
    def program(hidden, head, batch):
        logprobs, _, masses, unsure = sampled_logprobs(
            hidden, head, batch.targets.ravel(), sampling, tolerated_choice=tolerated
        )
        return choice_gaps(batch, logprobs, masses, unsure)

    found = np.asarray(program(hidden, factors[1], packed)).reshape(where.shape)
    assert (found[~packed.response_mask] == 0).all()
    return found[where]


@pytest.mark.parametrize("sampling", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("sequence", [0, 1])
def test_every_honest_choice_is_its_noise_s(factors, sampling, sequence):
    logits = factors[0] @ factors[1]
    tokens = drawn(logits, noise_of(sequence=sequence, kind=sampling.noise), sampling)
    assert gaps(factors, tokens, sampling, later=bool(sequence)).max() <= EXACT_CHOICE / 10


@pytest.mark.parametrize("sampling", KINDS.values(), ids=KINDS)
def test_a_gap_is_the_probability_that_has_to_move_for_the_noise_to_select_the_token(
    factors, sampling
):
    """Against float64 sums over ids, for tokens that are chosen at random."""
    logits = np.asarray(factors[0], np.float64) @ np.asarray(factors[1], np.float64)
    weights = np.exp((logits - logits.max(1, keepdims=True)) / sampling.temperature)
    for row in weights:
        order = np.argsort(-row)
        row[order[sampling.top_k or V :]] = 0
        before = np.cumsum(row[order]) - row[order]
        row[order[before >= sampling.top_p * row.sum()]] = 0
    p = weights / weights.sum(1, keepdims=True)
    rng = np.random.default_rng(2)
    tokens = np.array([rng.choice(np.flatnonzero(row)) for row in p])
    noise = noise_of(kind=sampling.noise)
    if sampling.noise == "tree":
        expected = [lost_race(*each) for each in zip(p, noise, tokens, strict=True)]
    else:
        low = np.array([row[:token].sum() for row, token in zip(p, tokens, strict=True)])
        high = low + p[np.arange(N), tokens]
        expected = np.maximum(0, np.maximum(low - noise, noise - high))
    np.testing.assert_allclose(gaps(factors, tokens, sampling), expected, atol=2e-6)


def lost_race(p, numbers, token):
    """Smallest probability that, moved from a sibling, lets each node on the way come first."""
    ids, lost = np.arange(V), 0.0
    for level, times in enumerate(np.float64(numbers)):
        inside = ids >> 4 * (level + 1) == token >> 4 * (level + 1)
        parts = np.bincount((ids[inside] >> 4 * level) & 15, p[inside], 16)
        own = (token >> 4 * level) & 15
        moved = (parts * times[own] - parts[own] * times) / (times + times[own])
        lost = max(lost, moved.max())
    return lost


def best_of(count, logits, sampling):
    """For each token the likeliest of so many draws, each with its own noise."""
    draws = np.stack(
        [drawn(logits, noise_of(i, kind=sampling.noise), sampling) for i in range(count)]
    )
    return np.take_along_axis(draws, np.asarray(logits)[np.arange(N), draws].argmax(0)[None], 0)[0]


FORGERS = {
    "the likeliest token": lambda z, _: np.asarray(z.argmax(1)),
    "constant noise": lambda z, kind: drawn(z, np.full_like(noise_of(kind=kind), 0.5), PLAIN),
    "noise of another sample": lambda z, kind: drawn(z, noise_of(SAMPLE + 1, kind=kind), PLAIN),
    "noise of the next position": lambda z, kind: drawn(
        z, np.roll(noise_of(kind=kind), 1, axis=0), PLAIN
    ),
    "another temperature": lambda z, kind: drawn(
        z, noise_of(kind=kind), replace(PLAIN, temperature=0.6)
    ),
    "another truncation": lambda z, kind: drawn(z, noise_of(kind=kind), replace(PLAIN, top_p=0.9)),
    "the best of four": lambda z, kind: best_of(4, z, replace(PLAIN, noise=kind)),
    "the other kind of noise": lambda z, kind: drawn(
        z, noise_of(kind="tree" if kind == "inverse_cdf" else "inverse_cdf"), PLAIN
    ),
}


@pytest.mark.parametrize("kind", ["inverse_cdf", "tree"])
@pytest.mark.parametrize("forger", FORGERS)
def test_true_log_probabilities_of_forged_choices_are_seen(factors, forger, kind):
    logits = factors[0] @ factors[1]
    forged, honest = FORGERS[forger](logits, kind), drawn(logits, noise_of(kind=kind), PLAIN)
    seen = gaps(factors, forged, replace(PLAIN, noise=kind)) > EXACT_CHOICE
    differs = forged != honest
    assert differs.mean() > 0.02
    assert seen[differs].mean() > 0.99 and not seen[~differs].any()


def test_one_forged_token_is_seen(factors):
    tokens = drawn(factors[0] @ factors[1], noise_of(), PLAIN).copy()
    tokens[200] = (tokens[200] + V // 2) % V
    assert np.flatnonzero(gaps(factors, tokens, PLAIN) > EXACT_CHOICE).tolist() == [200]


def mean(gaps):
    return gaps.sum() / (len(gaps) + SPARE_TOKENS)


def rounded(factors):
    return jnp.bfloat16(factors[0]) @ jnp.bfloat16(factors[1])


def test_the_mean_tells_rounding_from_forgery_below_the_bound_of_a_token(factors):
    """A server that computes in 16 bits, and one that moves its noise by little besides."""
    honest = gaps(factors, drawn(rounded(factors), noise_of(), PLAIN), PLAIN)
    moved = np.float32(np.minimum(noise_of() + 0.05, 1 - 2**-24))
    forged = gaps(factors, drawn(rounded(factors), moved, PLAIN), PLAIN)
    assert 0 < honest.max() < ROUNDED_CHOICE / 4 and forged.max() < ROUNDED_CHOICE / 2
    bound = ROUNDED_CHOICE * MEAN_SHARE
    assert mean(honest) < bound / 8 and mean(forged) > 2 * bound


def of_four(p):
    """Factors whose every row has these probabilities for its first tokens, and none for others."""
    hidden, head = np.zeros((N, E), np.float32), np.eye(E, V, dtype=np.float32)
    hidden[:, :4] = 30 + np.log(p)
    return jnp.asarray(hidden), jnp.asarray(head)


@pytest.mark.parametrize(
    ("cut", "ours", "theirs"),
    [
        ({"top_p": 0.5}, (0.2, 0.499, 0.3, 0.001), (0.2, 0.501, 0.298, 0.001)),
        ({"top_k": 2}, (0.3, 0.4, 0.299, 0.001), (0.299, 0.4, 0.3, 0.001)),
        (
            {"top_p": 0.7, "top_k": 3},
            (0.3393, 0.3590, 0.3007, 0.001),
            (0.3390, 0.3610, 0.2990, 0.001),
        ),
    ],
)
def test_rounding_at_the_edge_of_a_cut_is_no_forgery(cut, ours, theirs):
    """Whether the last entry is kept moves every edge by all of its probability."""
    sampling, ours, theirs = replace(PLAIN, temperature=1.0, **cut), of_four(ours), of_four(theirs)
    honest = drawn(theirs[0] @ theirs[1], noise_of(), sampling)
    assert gaps(ours, honest, sampling).max() > ROUNDED_CHOICE
    assert gaps(ours, honest, sampling, tolerated=ROUNDED_CHOICE).max() < 0.01
    exact = gaps(ours, honest, sampling, tolerated=EXACT_CHOICE)
    assert exact.max() > ROUNDED_CHOICE, "rounding of float32 does not reach the edge"


def test_what_may_be_unsure_hides_no_forgery(factors):
    sampling = replace(PLAIN, top_p=0.7, top_k=4)
    honest = drawn(rounded(factors), noise_of(), sampling)
    forged = drawn(rounded(factors), noise_of(SAMPLE + 1), sampling)
    means = [
        mean(gaps(factors, each, sampling, tolerated=ROUNDED_CHOICE)) for each in (honest, forged)
    ]
    bound = ROUNDED_CHOICE * MEAN_SHARE
    assert means[0] < bound / 8 and means[1] > 10 * bound


def test_means_are_of_sequences():
    """Two share a row; what was given has no gap and counts in no mean."""
    packed = pack(
        [
            Trajectory(
                prompt=0,
                sample=sample,
                sequence=Sequence.of_response([1, 2], [3] * count, np.zeros(count), version=0),
                advantage=0.0,
                batch=BATCH,
            )
            for sample, count in ((1, 3), (2, 5))
        ],
        rows=1,
        row_tokens=16,
        loss_aggregation="token_mean",
    )[0]
    values = np.where(packed.response_mask, np.float32(packed.samples), 0.0)
    found = np.asarray(mean_choice_gaps(packed, jnp.asarray(values.ravel()))).reshape(1, 16)
    expected = np.select([packed.samples == 1, packed.samples == 2], [3 / 67, 10 / 69], 0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_greedy_gap_is_how_far_a_token_is_below_the_likeliest(factors):
    """Against float64; rounding may exchange two tokens of one likelihood."""
    logits = np.asarray(factors[0], np.float64) @ np.asarray(factors[1], np.float64)
    tokens = logits.argmax(1)
    tokens[::3] = np.argsort(logits, axis=1)[::3, -2]
    tokens[::7] = (tokens[::7] + 11) % V
    sequence = Sequence.of_response([1, 2], tokens, np.full(N, -2e-4), version=0)
    one = Trajectory(prompt=0, sample=1, sequence=sequence, advantage=0.0)
    (packed,) = pack([one], rows=1, row_tokens=N + 4, loss_aggregation="token_mean")
    where = np.ravel(packed.response_mask)
    hidden = np.zeros((packed.tokens.size, E), np.float32)
    hidden[where] = factors[0]
    best = replace(PLAIN, temperature=1.0, top_k=1)
    logprobs, *_ = sampled_logprobs(
        jnp.asarray(hidden), factors[1], jnp.ravel(packed.targets), best
    )
    nats, choices = (np.asarray(each)[where] for each in greedy_gaps(packed, logprobs))
    below = logits.max(1) - logits[np.arange(N), tokens]
    assert (below > 0).mean() > 0.3
    np.testing.assert_allclose(nats, np.maximum(below, 2e-4), atol=2e-5)
    np.testing.assert_allclose(choices, np.tanh(below / 2), atol=1e-5)


def test_where_no_noise_is_known_nothing_is_said(factors):
    tokens = np.zeros(N, np.int32)
    assert gaps(factors, tokens, PLAIN, batch=None).max() == 0
