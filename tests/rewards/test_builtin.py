"""Built-in rewards against cases that a person has judged."""

import pytest

from rlboost_jax.rewards.answer_extraction import after_hashes, answer_tag, boxed
from rlboost_jax.rewards.builtin import BUILT_IN, countdown, exact, layout, length, regex
from rlboost_jax.settings.data_presets import BUILT_IN_REWARDS


def test_every_name_of_the_configuration_is_there():
    assert {*BUILT_IN, "http"} == set(BUILT_IN_REWARDS)


@pytest.mark.parametrize(
    ("extract", "text", "found"),
    [
        (boxed, r"first \boxed{1}, then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (boxed, r"\fbox{ 7 }", "7"),
        (boxed, r"\boxed{cut off", None),
        (boxed, "no box", None),
        (boxed, r"so $x = \boxed 5$.", "5"),
        (boxed, r"$\boxed 3$ or $\boxed  2x $", "2x"),
        (boxed, r"$\boxed{3}$, $\boxed 5$", "3"),  # not with braces elsewhere
        (boxed, r"the command \boxed does", None),
        (after_hashes, "a #### b\nc #### 1,234,567", "1234567"),
        (after_hashes, "#### -3, or so", "-3, or so"),
        (after_hashes, "1234", None),
        (answer_tag, "<answer>a</answer> <answer> b\nc </answer>", "b\nc"),
        (answer_tag, "<answer>open", None),
    ],
)
def test_where_the_answer_stands(extract, text, found):
    assert extract(text) == found


@pytest.mark.parametrize(
    ("completion", "options", "reward"),
    [
        ("  42\n", {}, 1.0),
        ("the answer is 42", {}, 0.0),
        (r"the answer is \boxed{42}", {"extract": "boxed"}, 1.0),
        (r"the answer is \boxed{42}", {"extract": "after_hashes"}, 0.0),
        ("#### 4 2", {"extract": "after_hashes"}, 0.0),
    ],
)
def test_exact(completion, options, reward):
    assert exact(["p"], [completion], answer=[42], **options) == [reward]


def test_exact_takes_case_and_space_lightly_where_set():
    assert exact(["p"], ["New\n york "], answer=["new York"], ignore_case=True) == [1.0]
    assert exact(["p"], ["New\n york "], answer=["new York"]) == [0.0]


def test_regex():
    completions = ["ab12", "12", "1\n2"]
    assert regex(["p"] * 3, completions, pattern=r"\d\d") == [1.0, 1.0, 0.0]
    assert regex(["p"] * 3, completions, pattern=r"\d.?\d", whole=True) == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<think>hm</think><answer>4</answer>", 1.0),
        (" <think>\nhm\n</think>\n\n<answer>4</answer>\n", 1.0),
        ("hm</think> <answer>4</answer>", 1.0),  # opened by the prompt
        ("Sure! <think>hm</think><answer>4</answer>", 0.0),
        ("4. <think>\nhm</think>\n<answer>4</answer>", 0.0),
        ("hm<think></think><answer>4</answer>", 0.0),
        ("<think>hm</think> so <answer>4</answer>", 0.0),
        ("<think>hm</think> <answer>4</answer> done", 0.0),
        ("<answer>4</answer><think>hm</think>", 0.0),
        ("<think>a</think><think>b</think><answer>4</answer>", 0.0),
        ("<think>hm</think>", 0.0),
        ("</answer><think>hm</think><answer>4", 0.0),
        ("</think><answer>4</answer>", 1.0),
        ("", 0.0),
    ],
)
def test_format(completion, reward):
    assert layout(["p"], [completion]) == [reward]


def test_length_falls_in_equal_steps():
    ids = [list(range(n)) for n in (0, 10, 12, 15, 20, 30)]
    got = length(["p"] * 6, [""] * 6, completion_ids=ids, free_tokens=10, limit_tokens=20)
    assert got == pytest.approx([0.0, 0.0, -0.2, -0.5, -1.0, -1.0])
    with pytest.raises(ValueError, match="free_tokens 20 is not below"):
        length(["p"], [""], completion_ids=[[]], free_tokens=20, limit_tokens=20)


@pytest.mark.parametrize(
    ("equation", "reward"),
    [
        ("(1 + 2) / 3 * 98", 1.0),
        ("98 * (2 + 1) / 3 = 98", 1.0),
        ("98 / 3 * 1 * 2", 0.0),  # all numbers, another value
        ("98", 0.0),  # the value, not all numbers
        ("(1 + 2) / 3 * 98 * 1", 0.0),  # a number twice
        ("98 / (3 - 2 - 1)", 0.0),
        ("98 ** 1 + 2 - 3", 0.0),
        ("__import__('os')", 0.0),
        ("(" * 5000, 0.0),
        ("True * 98 / 3 * 2", 0.0),
        ("", 0.0),
    ],
)
def test_countdown(equation, reward):
    completion = f"<answer>1</answer> no: <answer>{equation}</answer>"
    assert countdown(["p"], [completion], nums=[[1, 2, 3, 98]], target=[98]) == [reward]


@pytest.mark.parametrize(
    ("answer", "completion", "reward"),
    [
        ("42", "the answer is 42.", 1.0),
        ("42", r"so \boxed{42}", 1.0),
        ("1/2", r"\boxed{0.5}", 1.0),
        (r"\frac{1}{2}", r"$\boxed{\frac{2}{4}}$", 1.0),
        ("(1, 2)", r"\boxed{(1,2)}", 1.0),
        (r"\{1, 2\}", r"\boxed{\{2, 1\}}", 1.0),
        ("1234", r"\boxed{1{,}234}", 1.0),
        ("42", r"\boxed{43}", 0.0),
        ("42", "no idea", 0.0),
        ("42", "", 0.0),
        (42, r"\boxed{42}", 1.0),
    ],
)
def test_math(answer, completion, reward):
    math_answers = pytest.importorskip("rlboost_jax.rewards.math_answers")
    assert math_answers.math(["p"], [completion], answer=[answer]) == [reward]


def test_math_may_insist_on_a_box():
    math_answers = pytest.importorskip("rlboost_jax.rewards.math_answers")
    completions = [r"is it 7? 42, or \boxed{42}", "7 and then 42"]
    assert math_answers.math(["p"] * 2, completions, answer=[42] * 2, boxed_only=True) == [1.0, 0.0]


BOXED = [
    *(
        "{7}",
        "{ 7 }",
        "{007}",
        "{-7}",
        "{7.0}",
        "{\\frac{14}{2}}",
        "{7}, \\boxed{8}",
        "{8}",
        "{7",
        "",
    ),
]


@pytest.mark.parametrize("box", BOXED)
@pytest.mark.parametrize("answer", ["7", "-7", "7.0", "08"])
def test_what_is_plain_to_see_is_what_the_verifier_says(box, answer):
    """The shortcut of boxed answers, against the long way."""
    math_answers = pytest.importorskip("rlboost_jax.rewards.math_answers")
    completion = f"2 and 5 make \\boxed{box}."
    reference = math_answers._reference(answer)
    given = math_answers.parse(
        completion, extraction_config=math_answers._BOXED, parsing_timeout=None
    )
    expected = bool(given) and math_answers.verify(reference, given, timeout_seconds=None)
    assert math_answers.math(["p"], [completion], answer=[answer], boxed_only=True) == [expected]


def test_a_reference_that_is_no_mathematics_is_a_fault():
    math_answers = pytest.importorskip("rlboost_jax.rewards.math_answers")
    with pytest.raises(ValueError, match="no mathematics"):
        math_answers.math(["p"], ["42"], answer=[""])
