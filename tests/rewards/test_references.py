"""References as data sets have them, and what of an answer counts."""

import json
from decimal import Decimal

import numpy as np
import pytest

from rlboost_jax.rewards.answer_extraction import after_thinking, boxed, last_boxes
from rlboost_jax.rewards.builtin import countdown, exact
from rlboost_jax.rewards.references import alternatives, exact_number, listed, number

NAN = float("nan")


def math_of(reference, completion, **options):
    math_answers = pytest.importorskip("rlboost_jax.rewards.math_answers")
    (found,) = math_answers.math(["p"], [completion], answer=[reference], **options)
    return found


@pytest.mark.parametrize(
    ("reference", "texts"),
    [
        (1e-05, ("0.00001", "1e-05")),
        (6.02e23, ("602000000000000000000000", "6.02e+23")),
        (5.0, ("5", "5.0")),
        (-0.25, ("-0.25",)),
        (7, ("7",)),
        (10**30, ("1" + "0" * 30,)),
        (np.int64(7), ("7",)),
        (np.float64(2.5), ("2.5",)),
        (Decimal("1E+2"), ("100", "1E+2")),
        ("7", ("7",)),
        ("[1, 2]", ("[1, 2]",)),  # an interval
        ('["5", "6"]', ("5", "6")),
        ("['5', '6']", ("5", "6")),  # of a CSV file, as Python writes it
        ("['\\\\frac{1}{2}', \"5'\"]", (r"\frac{1}{2}", "5'")),
        ("['5', 6]", ("['5', 6]",)),
        ("['5'", ("['5'",)),
        (["5", "6"], ("5", "6")),
        ([["5"], (6, None)], ("5", "6")),
        (np.array([1, 2]), ("1", "2")),
        (b"7", ("7",)),
        (True, ("True", "true")),
        (None, ()),
        (NAN, ()),
        ([], ()),
        ([None, NAN], ()),
    ],
    ids=repr,
)
def test_texts_of_a_reference(reference, texts):
    assert alternatives(reference) == texts


@pytest.mark.parametrize("text", ["[" * 100_000, "[1", "1", '{"a": 1}', "x"], ids=lambda t: t[:9])
def test_what_is_no_list_is_named(text):
    with pytest.raises(ValueError, match="is no list"):
        listed(text)


@pytest.mark.parametrize("reference", [{"answer": 5}, [{"answer": 5}], b"\xff"], ids=repr)
def test_what_is_no_reference_is_named(reference):
    with pytest.raises(ValueError, match="the reference"):
        alternatives(reference)
    with pytest.raises(ValueError, match="the reference"):
        exact(["p"], ["5"], answer=[reference])


@pytest.mark.parametrize(
    ("reference", "completion", "reward"),
    [
        (1e-05, r"\boxed{1e-05}", 1),
        (1e-05, r"\boxed{0.00001}", 1),
        (1e-05, r"\boxed{1 \times 10^{-5}}", 1),
        (1e-05, r"\boxed{\frac{1}{100000}}", 1),
        (1e-05, r"\boxed{e-5}", 0),  # the number e, less 5
        ("1e-05", r"\boxed{e-5}", 0),
        ("1e-05", r"\boxed{1.0E-5}", 1),
        (1e-07, r"\boxed{2e-7}", 0),  # equal to six places
        (1e-07, r"\boxed{\frac{2}{10^7}}", 0),
        (6.02e23, r"\boxed{6.02e23}", 1),
        (6.02e23, r"\boxed{6.02\cdot10^{23}}", 1),
        (6.02e23, r"\boxed{6.03 \times 10^{23}}", 0),
        (0.3333333333333333, r"\boxed{\frac13}", 1),
        (np.int64(7), r"\boxed{7.0}", 1),
        (["5", "6"], r"\boxed{6}", 1),
        (["5", 6.0], r"\boxed{6}", 1),
        (["5", "6"], r"\boxed{7}", 0),
        ('["34"]', r"\boxed{34}", 1),
        (["", "34"], r"\boxed{34}", 1),  # one of them is no mathematics
        (b"5", r"\boxed{5}", 1),
        (None, r"\boxed{None}", None),
        (NAN, r"\boxed{5}", None),
        ([], r"\boxed{5}", None),
    ],
    ids=repr,
)
def test_numbers_lists_and_nothing_as_references_of_mathematics(reference, completion, reward):
    assert math_of(reference, completion, boxed_only=True) == reward


def test_numbers_are_found_without_a_box():
    for said in ("The answer is 1e-05.", "so 0.00001", "hence $10^{-5}$"):
        assert math_of(1e-05, said) == 1
    assert math_of(1e-05, "The answer is e-5") == 0
    with pytest.raises(ValueError, match="True is no mathematics"):
        math_of(True, "1")


@pytest.mark.parametrize(
    ("completion", "answer", "boxes"),
    [
        (r"<think>\boxed{3}</think> \boxed{5}", "5", ["5"]),
        (r"<think>it is \boxed{3}, no: \boxed{4}</think>" + "\n" + r"\boxed{5}", "5", ["5"]),
        (r"\boxed{3} so \boxed{5}", "5", ["5"]),
        (r"\boxed{5} \boxed{", None, []),
        (r"\boxed{5} or rather \boxed{\frac{1}{2}", None, []),
        (r"\boxed{5} \fbox {6}", "6", ["6"]),
        (r"\boxed{2} and \boxed{3}", "2,3", ["2", "3"]),
        (r"$\boxed{2}$, $\boxed{3}$", "2,3", ["2", "3"]),
        (r"\boxed{1}, no: \boxed{2} or \(\boxed{3}\)", "2,3", ["2", "3"]),
        (r"\boxed{\boxed{5}}", "5", ["5"]),
        (r"in \boxed form: \boxed {\frac{10}{2}}", "5", [r"\frac{10}{2}"]),
        ("no box", None, None),
    ],
)
def test_the_last_box_counts(completion, answer, boxes):
    """The answers listed with it count, whatever stands in boxes before."""
    assert last_boxes(completion) == boxes
    assert boxed(completion) == (boxes[-1] if boxes else None)
    for boxed_only in (True, False):
        for wanted in ("3", "4", "5", "6", "2,3"):
            found = math_of(wanted, completion, boxed_only=boxed_only)
            assert found == (wanted == answer)


def test_what_is_said_after_thinking_counts_if_it_is_an_answer():
    assert math_of("5", "<think>the answer is $3$</think> The answer is $5$.", boxed_only=True) == 1
    assert math_of("3", "<think>the answer is $3$</think> The answer is $5$.", boxed_only=True) == 0
    assert math_of("5", r"<think>\boxed{5}</think> Done.", boxed_only=True) == 1
    assert after_thinking("a</think>b</think> c") == " c"
    assert after_thinking("a</think> \n") == "a</think> \n"


def test_many_open_boxes_take_one_pass_each():
    assert last_boxes(r"\boxed{" * 20_000) == []
    assert last_boxes(r"\boxed{" * 20_000 + "1}") == ["1"]


@pytest.mark.parametrize(
    ("reference", "completion", "reward"),
    [
        (1e-05, "1e-05", 1),
        (1e-05, "0.00001", 1),
        (5.0, "5", 1),
        (["a", "b"], "b", 1),
        ('["a", "b"]', "b", 1),
        ('["a", "b"]', '["a", "b"]', 1),
        (True, "true", 1),
        (b"yes", "yes", 1),
        (42, "43", 0),
        (None, "None", None),
        (NAN, "nan", None),
    ],
)
def test_references_of_exact(reference, completion, reward):
    assert exact(["p"], [completion], answer=[reference]) == [reward]


@pytest.mark.parametrize(
    ("nums", "target", "reward"),
    [
        ([3, 4], 12, 1),
        (["3", "4"], "12", 1),
        ([3.0, 4.0], 12.0, 1),
        ("[3, 4]", 12, 1),
        (np.array([3, 4]), np.int64(12), 1),
        ([3, 4], [7, 12], 1),
        ([3, 4], 13, 0),
        (None, 12, None),
        ([3, 4], None, None),
    ],
    ids=repr,
)
def test_numbers_of_countdown(nums, target, reward):
    said = "<answer>3 * 4</answer>"
    assert countdown(["p"], [said], nums=[nums], target=[target]) == [reward]


@pytest.mark.parametrize(
    ("nums", "target", "what"),
    [
        ("3 and 4", 12, "no list"),
        (7, 12, "no list"),
        (["three"], 3, "'three' is no number"),
        ([True], 1, "True is no number"),
        ([3], {"n": 3}, "a record"),
        ([3], [None], "None is no number"),
    ],
)
def test_what_is_no_number_of_countdown_is_named(nums, target, what):
    with pytest.raises(ValueError, match=what):
        countdown(["p"], ["<answer>3</answer>"], nums=[nums], target=[target])


def test_exponents_that_would_fill_memory_are_texts():
    assert number("1e999999999") is None and number("1e-05") == Decimal("0.00001")
    assert alternatives("1e999999999") == ("1e999999999",)
    assert exact_number("0.1") == exact_number(Decimal("0.1"))
    assert listed(json.dumps([1, 2])) == [1, 2]
