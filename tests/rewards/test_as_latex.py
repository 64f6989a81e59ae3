"""Mathematics as people type it: references and answers of both kinds, judged by their values."""

import pytest

from rlboost_jax.rewards.as_latex import as_latex
from tests.rewards.test_references import math_of


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("2√3", r"2\sqrt{3}"),
        ("√(x+1)", r"\sqrt{x+1}"),
        ("√{2}", r"\sqrt{2}"),
        ("∛8", r"\sqrt[3]{8}"),
        ("x²⁰", "x^{20}"),
        ("10⁻³", "10^{-3}"),
        ("a₁₂", "a_{12}"),
        ("½", r"\frac{1}{2}"),
        ("3¾", r"3\frac{3}{4}"),
        ("2 1/3", r"2\frac{1}{3}"),
        ("-12 5/16", r"-12\frac{5}{16}"),
        ("{2 1/3}", r"{2\frac{1}{3}}"),
        ("1 3/2", "1 3/2"),  # no mixed number
        ("in 1, 1/2", "in 1, 1/2"),
        (r"10\,000", "10000"),
        ("1\u202f234\u202f567", "1234567"),
        (r"f(1)\,234", r"f(1)\,234"),
        (r"1.5\,000", r"1.5\,000"),
        (r"(1,\,234)", r"(1,\,234)"),
        (r"0.\overline{3}", r"\frac{3}{9}"),
        (r"0.1\overline6", r"\frac{15}{90}"),
        (r"2.\overline{45}", r"\frac{243}{99}"),
        ("3pi/4", r"3\pi/4"),
        (r"\pi, pine, api", r"\pi, pine, api"),
        ("2**10", "2^{10}"),
        ("is **10** then", "is **10** then"),
        ("１２．５", "12.5"),
        ("€5", "5"),
        (r"\frac{1}{2}, 1,234.5, 1e-5 and 1/2", r"\frac{1}{2}, 1,234.5, 1e-5 and 1/2"),
    ],
)
def test_latex_of_what_people_type(text, latex):
    assert as_latex(text) == latex


@pytest.mark.parametrize(
    ("reference", "right", "wrong"),  # wrong: what a part of the reference would be
    [
        ("1 1/2", r"\frac{3}{2}", "1"),
        ("2.5", "2 1/2", "2"),
        ("25,600", "256e2", "25,601"),
        ("2√3", r"2\sqrt{3}", "2"),
        ("10²", "100", "10"),
        (r"0.\overline{3}", r"\frac13", "0"),
        (r"1.\overline{27}", r"\frac{14}{11}", "1"),
        ("½", "0.5", "1"),
        ("x²", "x^2", "x"),
        ("3pi/4", r"\frac{3\pi}{4}", "3"),
        ("5‰", "5‰", "5"),  # not known: equal as a text alone
        ("2⌊x⌋", "2⌊x⌋", "2"),
        ("10000", r"10\,000", "10"),
        ("0", "0.0", r"10\,000"),
        ("5", "5.", "5.5"),
        ("3:00 PM", "3:00 PM", "3"),
        ("60°", r"60^\circ", "6"),
        ("€5", "5", "4"),
        ("The answer is 5", "5", "4"),
    ],
)
def test_all_of_a_reference_counts(reference, right, wrong):
    assert math_of(reference, rf"So it is $\boxed{{{right}}}$.") == 1.0
    assert math_of(reference, rf"So it is $\boxed{{{wrong}}}$.") == 0.0


@pytest.mark.parametrize("reference", [10**11, "123456789012", "2^{70}", 2**70])
@pytest.mark.parametrize("completion", [r"\boxed{%d}", r"\boxed{7}, no, \boxed{%d}", "It is $%d$."])
def test_whole_numbers_are_equal_in_all_digits(reference, completion):
    value = 2**70 if reference == "2^{70}" else int(reference)
    assert math_of(reference, completion % value) == 1.0
    assert math_of(reference, completion % (value + 1)) == 0.0


@pytest.mark.parametrize(
    ("reference", "completion", "reward"),
    [
        ("5", "<think>3</think> <answer>5</answer>", 1.0),
        ("5", "<think>5</think> <answer>6</answer>", 0.0),
        ("5", "Of 6: <answer> $x = 5$ </answer>, not 6", 1.0),
        ("5", r"<answer>\boxed{5}</answer>", 1.0),
        ("5", r"<answer>6</answer> \boxed{5}", 1.0),  # a box says more than a tag
        ("5", "<answer>dunno</answer> 5", 1.0),
        ("5", "<answer></answer> 5", 1.0),
        ("5", r"\boxed{5\ }", 1.0),
        ("5", r"\boxed{~5\,}", 1.0),
        ("1,2", r"$x=\boxed{1}$ or $x=\boxed{2}$", 1.0),
        ("2", r"$x=\boxed{1}$ or $x=\boxed{2}$", 0.0),
        ("(1,2)", r"$x_1 = \boxed{1}$, $x_2 = \boxed{2}$", 1.0),
        ("2", r"$x=\boxed{1}$, no: $x=\boxed{2}$", 1.0),
    ],
)
def test_where_an_answer_stands(reference, completion, reward):
    assert math_of(reference, completion) == reward
