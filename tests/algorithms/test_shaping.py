import pytest

from rlboost_jax.algorithms.shaping import overlong_penalty


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(1, 0.0), (16_384, 0.0), (16_385, 1 / 4096), (18_432, 0.5), (20_480, 1.0), (20_481, 1.0)],
)
def test_the_trap_of_the_overlong_band_as_in_dapos_run(num_tokens, expected):
    """An expected limit of 16,384 tokens, and a band of 4,096 beyond it."""
    band = 0.2 * 20_480
    found = overlong_penalty(num_tokens, max_tokens=20_480, band_tokens=band, penalty=1.0)
    assert found == pytest.approx(expected, abs=1e-12)


def test_the_penalty_scales():
    found = overlong_penalty(9, max_tokens=10, band_tokens=4.0, penalty=0.5)
    assert found == 0.5 * 0.75
