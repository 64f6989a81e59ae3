"""Each preset on rows of our own in the form of the real data set: its columns and their types.

They come as they would from the hub, with `datasets.load_dataset` played; everything behind it
is what a run has. Types and columns are those of the data sets' cards.
"""

import numpy as np
import pytest

from rlboost_jax.data.dataset import Dataset
from rlboost_jax.settings.data_presets import DATA_PRESETS, resolved
from tests.patience import PATIENCE_SECONDS

# What a preset asks the hub for: name, subset, and the splits there.
PLACES = {
    "gsm8k": ("openai/gsm8k", "main", ("train", "test")),
    "math": ("DigitalLearningGmbH/MATH-lighteval", None, ("train", "test")),
    "openr1_math": ("open-r1/OpenR1-Math-220k", "default", ("train",)),
    "deepscaler": ("agentica-org/DeepScaleR-Preview-Dataset", None, ("train",)),
    "countdown": ("Jiayi-Pan/Countdown-Tasks-3to4", None, ("train",)),
}

# Of each column: its Arrow type.
TEXT, INTEGER, TRUTH = "string", "int64", "bool"
COLUMNS = {
    "gsm8k": {"question": TEXT, "answer": TEXT},
    "math": {"problem": TEXT, "level": TEXT, "solution": TEXT, "type": TEXT},
    "openr1_math": {
        "problem": TEXT,
        "solution": TEXT,
        "answer": TEXT,
        "problem_type": TEXT,
        "question_type": TEXT,
        "source": TEXT,
        "uuid": TEXT,
        "is_reasoning_complete": [TRUTH],
        "generations": [TEXT],
        "correctness_math_verify": [TRUTH],
        "correctness_llama": [TRUTH],
        "finish_reasons": [TEXT],
        "correctness_count": INTEGER,
        "messages": [{"content": TEXT, "role": TEXT}],
    },
    "deepscaler": {"problem": TEXT, "answer": TEXT, "solution": TEXT},
    "countdown": {"target": INTEGER, "nums": [INTEGER]},
}


def openr1(problem, answer):
    return {
        "problem": problem,
        "solution": f"## Solution\nIt is $\\boxed{{{answer}}}$.",
        "answer": answer,
        "problem_type": "Algebra",
        "question_type": "math-word-problem",
        "source": "olympiads",
        "uuid": "3f2c5a1e-0000-5000-8000-000000000000",
        "is_reasoning_complete": [True, False],
        "generations": ["<think>\nhm\n</think>\nSo.", "<think>\nhm"],
        "correctness_math_verify": [True, False],
        "correctness_llama": None,
        "finish_reasons": ["stop", "length"],
        "correctness_count": 1,
        "messages": [
            {"content": problem, "role": "user"},
            {"content": "<think>\nhm\n</think>\nSo.", "role": "assistant"},
        ],
    }


# Rows, and for each what rewards get, right responses and wrong ones.
ROWS = {
    "gsm8k": [
        (
            {
                "question": "Tom has 3 bags of 411 nails.\nHow many nails?",
                "answer": "He has 3 * 411 = <<3*411=1233>>1233 nails.\n#### 1,233",
            },
            {"answer": "1233"},
            [r"3 bags of 411 are \boxed{1233}.", r"So: \boxed{1,233}", r"$\boxed{1{,}233}$"],
            [r"\boxed{1234}", "1233", r"\boxed{1233}? No, \boxed{1234}", r"\boxed{1233"],
        ),
        (
            {"question": "He had 2 and owes 5?", "answer": "2-5 = <<2-5=-3>>-3\n#### -3"},
            {"answer": "-3"},
            [r"\boxed{-3}", r"\boxed{-3.0}"],
            [r"\boxed{3}"],
        ),
    ],
    "math": [
        (
            {
                "problem": "What is $\\frac12+\\frac14$?",
                "level": "Level 1",
                "solution": "We get $\\frac24+\\frac14=\\boxed{\\frac{3}{4}}$.",
                "type": "Prealgebra",
            },
            {"answer": r"\frac{3}{4}"},
            [r"It is $\boxed{0.75}$", r"\[ \boxed{\tfrac34} \]"],
            [r"It is $\boxed{\frac{3}{5}}$"],
        ),
        (
            {
                "problem": "How much do two cost?",
                "level": "Level 2",
                "solution": "Not \\boxed{9} but $2\\cdot 9.45 = \\boxed{\\$18.90}$ in all.",
                "type": "Prealgebra",
            },
            {"answer": r"\$18.90"},
            [r"$\boxed{18.90}$", r"\boxed{\$18.90}", r"\boxed{18.9\text{ dollars}}"],
            [r"\boxed{18.91}", r"\boxed{\$9}"],
        ),
        (
            {
                "problem": "Where is $x^2>4$?",
                "level": "Level ?",
                "solution": "$\\boxed{(-\\infty,-2)\\cup(2,\\infty)}$",
                "type": "Intermediate Algebra",
            },
            {"answer": r"(-\infty,-2)\cup(2,\infty)"},
            [r"\boxed{(2,\infty) \cup (-\infty,-2)}"],
            [r"\boxed{[2,\infty) \cup (-\infty,-2)}"],
        ),
    ],
    "openr1_math": [
        (
            openr1("Solve $x^2 = 4$ for $x > 0$.", "2"),
            {"answer": "2"},
            [r"<think>2 or -2</think> \boxed{2}", r"$\boxed{x = 2}$"],
            [r"<think>2 or -2</think> \boxed{-2}", "2"],
        ),
        (
            openr1("Which pair?", "(x, y) = (1, 2)"),
            {"answer": "(x, y) = (1, 2)"},
            [r"$\boxed{(1, 2)}$"],
            [r"$\boxed{(2, 1)}$"],
        ),
    ],
    "deepscaler": [
        (
            {"problem": "How many primes are below 10?", "answer": "4", "solution": ""},
            {"answer": "4"},
            [r"$\boxed{4}$"],
            [r"$\boxed{5}$", ""],
        ),
        (
            {"problem": "And $\\sin$ of it?", "answer": r"-\frac{2}{3}", "solution": "So."},
            {"answer": r"-\frac{2}{3}"},
            [r"$\boxed{-\dfrac23}$", r"\boxed{-2/3}"],
            [r"\boxed{\frac{2}{3}}"],
        ),
    ],
    "countdown": [
        (
            {"target": 98, "nums": [44, 19, 35]},
            {"target": 98, "nums": [44, 19, 35]},
            [
                "44 + 19 + 35</think><answer>(44 + 19) + 35</answer>",
                "<think>hm</think>\n<answer> 44+19+35 = 98 </answer>",
            ],
            [
                "hm</think><answer>98</answer>",
                "hm</think><answer>44 + 19 + 35 + 0</answer>",
                "hm</think><answer>44 + 54</answer>",
            ],
        ),
        (
            {"target": 2, "nums": [3, 4, 6, 9]},
            {"target": 2, "nums": [3, 4, 6, 9]},
            ["</think><answer>9 - 4 + 3 - 6</answer>"],
            ["</think><answer>6 / 3</answer>"],
        ),
    ],
}


@pytest.fixture
def hub(monkeypatch):
    """Plays the hub, with the rows of a preset in each of its splits."""
    datasets = pytest.importorskip("datasets")

    def feature(kind):
        if isinstance(kind, list):
            return datasets.List(feature(kind[0]))
        if isinstance(kind, dict):
            return {name: feature(value) for name, value in kind.items()}
        return datasets.Value(kind)

    def others(row):
        """What stands in a split that is held out is not trained on."""
        column = "question" if "question" in row else "problem"
        return {**row, column: f"Once more: {row[column]}"}

    def offer(preset):
        rows = [row for row, *_ in ROWS[preset]]
        assert all(row.keys() == COLUMNS[preset].keys() for row in rows)
        features = datasets.Features(feature(COLUMNS[preset]))

        def load_dataset(name, subset, *, split):
            place, only, splits = PLACES[preset]
            assert (name, subset) == (place, only) and split in splits
            asked = [others(row) for row in rows] if split == "test" else rows
            return datasets.Dataset.from_list(asked, features)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)

    return offer


@pytest.fixture
def open_preset(hub, build):
    """`open_preset(name)`: all its rows to train on."""
    opened = []

    def opened_preset(name, **options):
        if name != "countdown":
            pytest.importorskip("math_verify")
        hub(name)
        own = {"rewards": (), "preset": name, "engine_prompt_tokens": 400, "heldout_share": 0.0}
        opened.append(Dataset(build("", **own | options)))
        return opened[-1]

    yield opened_preset
    for each in opened:
        each.close()


@pytest.mark.parametrize("name", DATA_PRESETS)
def test_a_preset_reads_asks_and_judges(name, open_preset):
    data = open_preset(name)
    assert data.record["left_out"] == {}
    assert len(data.heldout(0, 10)) == (len(ROWS[name]) if "test" in PLACES[name][2] else 0)
    train, asked = data.train(0), []
    for index, (row, columns, right, wrong) in enumerate(ROWS[name]):
        prompt = train[index]
        assert dict(prompt.problem.columns) == columns
        text = prompt.problem.prompt
        if name == "countdown":
            assert text.startswith(f"Using the numbers {row['nums']}, create an equation that equ")
        else:
            question = row.get("question") or row["problem"]
            assert text == (
                f"{question}\nPlease reason step by step, and put your final answer within "
                "\\boxed{}."
            )
        for response, accuracy in [(r, 1.0) for r in right] + [(w, 0.0) for w in wrong]:
            tokens = np.array([*response.encode(), 257], np.int32)
            asked.append((response, accuracy, data.ask(prompt, tokens)))
    for response, accuracy, future in asked:
        verdict = future.result(PATIENCE_SECONDS)
        assert (response, verdict.accuracy, dict(verdict.faults)) == (response, accuracy, {})


def test_countdown_pays_a_tenth_for_its_form(open_preset):
    data = open_preset("countdown")
    prompt = data.train(0)[0]
    rewards = [
        data.ask(prompt, np.array([*text.encode(), 257], np.int32)).result(PATIENCE_SECONDS).reward
        for text in (
            "hm</think><answer>(44 + 19) + 35</answer>",
            "hm <answer>(44 + 19) + 35</answer>",
            "hm</think><answer>1</answer>",
            "no",
        )
    ]
    assert rewards == pytest.approx([1.1, 1.0, 0.1, 0.0])


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
