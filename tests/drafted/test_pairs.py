"""The runs that `python -m tests.drafted` trains have every pair of settings between them."""

from itertools import combinations

import pytest

from tests.drafted.__main__ import COMMON, DRAFTERS, SETTINGS, WRONG, flags_of
from tests.drafted.pairs import FACTORS, IMPOSSIBLE, cover, possible_pairs, settings_of

SMALL = {"a": ("1", "2", "3"), "b": ("1", "2"), "c": ("1", "2")}


def test_every_pair_of_values_is_in_a_run() -> None:
    rows = cover()
    missing = [
        (one, x, other, y)
        for one, other in combinations(FACTORS, 2)
        for x in FACTORS[one]
        for y in FACTORS[other]
        if not any(row[one] == x and row[other] == y for row in rows)
    ]
    assert not missing
    assert not IMPOSSIBLE, "each has to be named with its reason"
    assert len(rows) <= 26 and len({settings_of(row) for row in rows}) <= 9


def test_what_cannot_be_is_in_no_run() -> None:
    never = (("a", "3"), ("b", "1"))
    rows = cover(SMALL, [never], run=("a",))
    assert not any(row["a"] == "3" and row["b"] == "1" for row in rows)
    found = {pair for row in rows for pair in combinations(row.items(), 2)}
    assert found == possible_pairs(SMALL, [never])
    with pytest.raises(ValueError, match="in no possible run"):
        cover(SMALL, [never, (("a", "3"), ("b", "2"))], run=("a",))


def test_every_value_means_something() -> None:
    """Values of which nothing is set are those of the usual run."""
    usual = {("numbers", "float32"), ("trained", "everything"), ("layers", "dense")}
    usual |= {("parallel", "1"), ("sampling", "whole"), ("noise", "inverse_cdf")}
    decides = [factor for factor in FACTORS if factor not in ("drafter", "fleet", "devices")]
    values = {(factor, value) for factor in decides for value in FACTORS[factor]}
    assert values == usual | {*SETTINGS}
    assert {*FACTORS["drafter"]} == {*DRAFTERS, *WRONG}
    assert all(flags_of(row)[: len(COMMON)] == COMMON for row in cover())
