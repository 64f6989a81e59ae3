"""Each preset on rows of our own with the columns of the real data set."""

import numpy as np
import pytest

from rlboost_jax.config.data_presets import DATA_PRESETS, resolved
from rlboost_jax.data.dataset import Dataset

# Rows, and for each a right and a wrong response.
ROWS = {
    "gsm8k": [
        (
            {
                "question": "Tom has 3 bags of 411 nails. How many nails?",
                "answer": "3 * 411 = <<3*411=1233>>1233.\n#### 1,233",
            },
            r"3 bags of 411 are \boxed{1233}.",
            r"\boxed{1234}",
        )
    ],
    "math": [
        (
            {
                "problem": "What is $\\frac12+\\frac14$?",
                "level": "Level 1",
                "type": "Prealgebra",
                "solution": "We get $\\frac24+\\frac14=\\boxed{\\frac{3}{4}}$.",
            },
            r"It is $\boxed{0.75}$",
            r"It is $\boxed{\frac{3}{5}}$",
        )
    ],
    "openr1_math": [
        (
            {
                "problem": "Solve $x^2 = 4$ for $x > 0$.",
                "solution": "x = 2",
                "answer": "2",
                "problem_type": "Algebra",
                "question_type": "math-word-problem",
                "source": "olympiads",
                "uuid": "0",
                "is_reasoning_complete": [True, False],
                "generations": ["<think>…</think>"],
                "correctness_math_verify": [True, False],
                "messages": [{"role": "user", "content": "…"}],
            },
            r"<think>2 or -2</think> \boxed{2}",
            r"<think>2 or -2</think> \boxed{-2}",
        )
    ],
    "deepscaler": [
        (
            {"problem": "How many primes are below 10?", "answer": "4", "solution": "2, 3, 5, 7"},
            r"$\boxed{4}$",
            r"$\boxed{5}$",
        )
    ],
    "countdown": [
        (
            {"target": 98, "nums": [44, 19, 35]},
            "44 + 19 + 35</think><answer>(44 + 19) + 35</answer>",
            "hm</think><answer>98</answer>",
        )
    ],
}


@pytest.mark.parametrize("name", DATA_PRESETS)
def test_a_preset_reads_asks_and_judges(name, build, write_lines):
    if name != "countdown":
        pytest.importorskip("math_verify")
    rows = [row for row, _, _ in ROWS[name]]
    path = write_lines(rows)
    data = Dataset(
        build(path, rewards=(), preset=name, heldout_share=0.0, engine_prompt_tokens=400)
    )
    try:
        prompt = data.train(0)[0]
        row, right, wrong = ROWS[name][0]
        assert prompt.problem.prompt.startswith(
            "Using the numbers [44, 19, 35], create an equation that equals 98."
            if name == "countdown"
            else row.get("question", row.get("problem"))
        )
        assert "{" not in prompt.problem.prompt.replace("\\boxed{}", "").replace("\\frac", "")
        for response, accuracy in ((right, 1.0), (wrong, 0.0)):
            tokens = np.array([*response.encode(), 257], np.int32)
            verdict = data.ask(prompt, tokens).result(120)
            assert (verdict.accuracy, dict(verdict.faults)) == (accuracy, {})
    finally:
        data.close()


def test_what_a_run_says_itself_comes_before_its_preset(build):
    run = build("rows.jsonl", rewards=(), preset="gsm8k", answer_format="boxed")
    data, rewards = resolved(run)
    assert (data.source, data.split, data.subset) == ("rows.jsonl", "", "")
    assert (data.answer_column, data.answer_format) == ("answer", "boxed")
    assert [reward.name for reward in rewards] == ["math"]
    own = build("rows.jsonl", preset="gsm8k", prompt_column="text")
    assert resolved(own)[0].template == ""
    assert [reward.name for reward in resolved(own)[1]] == ["exact"]


def test_heldout_rows_of_a_runs_own_have_no_split_of_the_presets(build):
    run = build("", rewards=(), preset="gsm8k", heldout_source="test.jsonl")
    data, _ = resolved(run)
    assert (data.source, data.split, data.heldout_split) == ("openai/gsm8k", "train", "")


def test_a_preset_alone_is_the_data_set_on_the_hub(build):
    data, _ = resolved(build("", rewards=(), preset="gsm8k"))
    assert (data.source, data.subset, data.split) == ("openai/gsm8k", "main", "train")
    assert data.heldout_split == "test"
