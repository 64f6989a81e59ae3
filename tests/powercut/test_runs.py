"""Power cuts of real runs; `python -m tests.powercut` makes as many as one likes."""

import pytest

from tests.powercut.__main__ import VARIANTS, main

pytestmark = [pytest.mark.system, pytest.mark.soak]


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_durable_is_lost_and_all_bits_are_equal(variant: str) -> None:
    assert main([f"--variant={variant}", "--cuts=40", "--seed=7", "--minutes=3"]) == 0
