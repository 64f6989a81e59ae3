"""Arithmetic: what it comes to, and that no expression takes long or gets out."""

import contextlib
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.environments.builtin.calculator import (
    FUNCTIONS,
    MOST_BITS,
    NotArithmetic,
    calculated,
    calculator,
    value_of,
)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4", "20"),
        ("0.1 + 0.2", "0.3"),  # 0.30000000000000004 in floats
        ("1 / 3", "1/3 = 0.33333333333333333333…"),
        ("-2 / 3", "-2/3 = -0.66666666666666666666…"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("2 ^ 10", "1024"),
        ("2 ** -2", "0.25"),
        ("(-1) ** 1000000000000", "1"),
        ("(-1) ** 1000000000001", "-1"),
        ("0 ** 0", "1"),
        ("3 × 4 ÷ 6 − 1", "1"),
        ("1e3", "1000"),
        ("1_000 + 1", "1001"),
        ("sqrt(2.25)", "1.5"),
        ("round(2.5)", "3"),  # Python's own would say 2
        ("round(-2.5)", "-3"),
        ("round(1.005, 2)", "1.01"),  # and 1.0
        ("floor(-0.5) + ceil(0.5)", "0"),
        ("max(1, 2.5) - min(3, 1)", "1.5"),
        ("sum(1, 2, 3)", "6"),
        ("gcd(12, 18)", "6"),
        ("factorial(20)", str(math.factorial(20))),
        ("abs(-3)", "3"),
        ("--1", "1"),
    ],
)
def test_values(expression, value):
    assert calculated(expression) == value


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "no arithmetic"),
        ("2 +", "no arithmetic"),
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("5 % 0", "division by zero"),
        ("1,000 + 1", "comma"),
        ("2 ** 0.5", "exponent"),
        ("sqrt(2)", "no fraction"),
        ("sqrt(-1)", "no square root"),
        ("factorial(-1)", "no factorial"),
        ("factorial(0.5)", "no factorial"),
        ("gcd(0.5, 1)", "whole numbers"),
        ("round(1, 101)", "up to 100"),
        ("abs()", "takes 1"),
        ("True + 1", "no arithmetic"),
        ("1 < 2", "no arithmetic"),
        ("x + 1", "'x'"),
        ("1j", "no arithmetic"),
        ("'a' * 3", "no arithmetic"),
        ("open('/etc/passwd')", "no arithmetic"),
        ("().__class__", "no arithmetic"),
        ("max(*[1])", "no arithmetic"),
        ("round(1, ndigits=2)", "no arithmetic"),
        ("[1 for x in [1]]", "no arithmetic"),
        ("(lambda: 1)()", "no arithmetic"),
        ("\x00", "no arithmetic"),
        ("1" * 401, "401 characters"),
        ("(" * 199 + "1" + ")" * 199, ""),
        ("-" * 399 + "1", ""),
    ],
)
def test_what_has_no_value(expression, why):
    """It is a sentence for the policy, of whatever it wrote: never another exception."""
    try:
        calculated(expression)
    except NotArithmetic as error:
        assert why in str(error) and len(str(error)) < 200
    else:
        assert not why


@pytest.mark.parametrize(
    "expression",
    [
        "9 ** 9 ** 9",
        "9 ** 99999",
        "0.5 ** 99999",
        "2 ** -99999",
        "1e999999",
        "1e-999999",
        "factorial(factorial(10))",
        "factorial(1000)",
        "*".join(["(10**99)"] * 40),
        "round(1e999, 100) ** 9",
    ],
)
def test_what_is_too_large_is_refused_before_it_is_computed(expression):
    with pytest.raises(NotArithmetic, match=f"{MOST_BITS} bits"):
        calculated(expression)


def test_the_largest_number_is_written_out():
    assert calculated(f"2 ** {MOST_BITS - 1}") == str(2 ** (MOST_BITS - 1))
    with pytest.raises(NotArithmetic):
        calculated(f"2 ** {MOST_BITS}")


@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_sums_are_exact(a, b):
    text = f"({a.numerator} / {a.denominator}) + ({b.numerator} / {b.denominator})"
    assert value_of(text) == a + b
    shown = calculated(text)
    exact, _, rounded = shown.rstrip("…").partition(" = ")
    assert Fraction(exact) == a + b
    if rounded:
        assert 0 <= abs(a + b) - abs(Fraction(rounded)) < Fraction(1, 10**20)


@given(
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-1000, max_value=1000, places=6)
)
def test_decimals_are_what_they_say(number):
    with localcontext() as context:
        context.prec = 40
        assert Decimal(calculated(f"{number:f} * 3")) == number * 3


@given(st.text(max_size=60))
def test_no_text_is_an_exception_of_another_kind(text):
    with contextlib.suppress(NotArithmetic):
        assert isinstance(calculated(text), str)


def test_the_tool_says_what_it_takes():
    assert calculator.idempotent
    assert calculator.run({"expression": "6 * 7"}, "key") == "42"
    assert all(f"{name}" in calculator.description for name in FUNCTIONS)
    assert list(calculator.parameters["properties"]) == ["expression"]
