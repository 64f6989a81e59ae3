"""Survival curves and group effects against tables by hand and against numerical integration."""

import math

import numpy as np
import pytest

from rlboost_jax.manager.policies.length_prediction import Lengths, kaplan_meier, responses


def log_normal(groups: int, size: int, *, rho: float, sigma: float, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    noise = math.sqrt(rho) * random.standard_normal((groups, 1))
    noise = noise + math.sqrt(1 - rho) * random.standard_normal((groups, size))
    return np.rint(1000 * np.exp(sigma * noise))


def learnt(lengths: np.ndarray) -> Lengths:
    model = Lengths()
    model.learn(responses([[(int(n), True) for n in group] for group in lengths]))
    return model


def test_the_example_of_kaplan_and_meier() -> None:
    """Their section 2.1: deaths at 0.8, 3.1, 5.4, 9.2 and losses at 1.0, 2.7, 7.0, 12.1, so that
    P is 7/8, then × 4/5, × 3/4, × 1/2."""
    times = np.array([0.8, 1.0, 2.7, 3.1, 5.4, 7.0, 9.2, 12.1])
    ended = np.array([True, False, False, True, True, False, True, False])
    values, beyond = kaplan_meier(times, ended)
    assert values.tolist() == [0.8, 3.1, 5.4, 9.2]
    np.testing.assert_allclose(beyond, [7 / 8, 7 / 10, 21 / 40, 21 / 80])


def test_without_losses_it_is_the_share_that_is_longer() -> None:
    lengths = np.array([3.0, 1.0, 3.0, 7.0])
    values, beyond = kaplan_meier(lengths, np.ones(4, bool))
    assert values.tolist() == [1.0, 3.0, 7.0]
    np.testing.assert_allclose(beyond, [0.75, 0.25, 0.0], atol=1e-12)


@pytest.mark.parametrize("rho", [0.0, 0.4, 0.74])
def test_correlation_within_groups_is_found(rho: float) -> None:
    found = learnt(log_normal(600, 8, rho=rho, sigma=0.7, seed=1)).correlation
    assert found == pytest.approx(rho, abs=0.06)


def test_a_scenario_is_distributed_like_what_was_seen() -> None:
    lengths = log_normal(256, 8, rho=0.6, sigma=0.7, seed=2)
    drawn = learnt(lengths).scenario(responses([[(0, False)] * 8 for _ in range(256)]))
    assert drawn.mean() == pytest.approx(lengths.mean(), rel=0.03)
    for share in (0.1, 0.5, 0.9):
        assert np.quantile(drawn, share) == pytest.approx(np.quantile(lengths, share), rel=0.06)
    sizes = drawn.reshape(256, 8)
    within = np.log(sizes).std(axis=1).mean() / np.log(sizes).std()
    assert within == pytest.approx(math.sqrt(0.4), abs=0.08)  # of normal variables: √(1 − ρ)


def test_what_is_there_is_never_taken_back() -> None:
    model = learnt(log_normal(64, 4, rho=0.5, sigma=0.7, seed=3))
    state = responses([[(50_000, False), (0, False)], [(700, True), (699, False)]])
    drawn = model.scenario(state)
    assert drawn[0] > 50_000 and drawn[2] == 700 and drawn[3] > 699


def posterior_median(group: list[tuple[int, bool]], rho: float, sigma: float) -> float:
    """Median of a group's last length, by quadrature; lengths are exp of normal scores."""
    shared = np.linspace(-6, 6, 4001)
    own = math.sqrt(1 - rho)

    def tail(z: np.ndarray) -> np.ndarray:
        return np.array([0.5 * math.erfc(v / math.sqrt(2)) for v in z])

    weight = np.exp(-(shared**2) / 2)
    for tokens, ended in group:
        if not tokens:
            continue
        z = (math.log(tokens / 1000) / sigma - math.sqrt(rho) * shared) / own
        weight = weight * (np.exp(-(z**2) / 2) if ended else tail(z))
    mode = shared[np.argmax(weight)]
    tokens = group[-1][0]
    floor = math.log(tokens / 1000) / sigma if tokens else -9.0
    lowest = (floor - math.sqrt(rho) * mode) / own
    grid = np.linspace(lowest, max(lowest, 0.0) + 9, 40_001)
    beyond = tail(grid) / tail(grid[:1])
    z = grid[np.argmin(abs(beyond - 0.5))]
    return 1000 * math.exp(sigma * (math.sqrt(rho) * mode + own * z))


@pytest.mark.parametrize(
    "group",
    [
        [(0, False), (0, False)],
        [(300, True), (0, False)],
        [(4000, True), (3000, True), (0, False)],
        [(300, True), (2500, False), (400, False)],
        [(3000, False), (3000, False), (3000, False)],
    ],
)
def test_members_of_a_group_tell_of_each_other(group: list[tuple[int, bool]]) -> None:
    model = learnt(log_normal(4000, 8, rho=0.6, sigma=0.7, seed=4))
    expected = model.expected(responses([group]))
    assert expected[-1] == pytest.approx(posterior_median(group, 0.6, 0.7), rel=0.08)


def test_abandoned_responses_count_as_longer_than_they_are() -> None:
    lengths = log_normal(400, 4, rho=0.0, sigma=0.7, seed=5)
    cut = [[(min(int(n), 1500), n <= 1500) for n in group] for group in lengths]
    model = Lengths()
    model.learn(responses(cut))
    fresh = responses([[(0, False)] * 4 for _ in range(400)])
    assert np.median(model.scenario(fresh)) == pytest.approx(np.median(lengths), rel=0.05)
    assert model.scenario(fresh).max() > 1500


def test_nothing_is_known_of_a_step_in_which_nothing_ended() -> None:
    model = Lengths()
    model.learn(responses([[(5, False)]]))
    assert not model.known


@pytest.mark.filterwarnings("error")
def test_what_is_far_beyond_all_that_was_seen_goes_on_for_some_more() -> None:
    """Responses in turns may have 50 times as many tokens as any before."""
    model = learnt(log_normal(64, 4, rho=0.9, sigma=0.05, seed=3))
    drawn = model.scenario(responses([[(50_000, False)] * 4, [(0, False)] * 4]))
    assert (drawn[:4] > 50_000).all() and np.isfinite(drawn).all()
