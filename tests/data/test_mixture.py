"""Several data sets in one run: whose turn it is, what is judged how, and what is held out."""

import collections
import csv
import math

import numpy as np
import pytest

from rlboost_jax.data.mixture import Mixture
from rlboost_jax.data.open import keep_record, open_exercises, record_lines
from rlboost_jax.data.prompt_stream import PromptStream
from rlboost_jax.data.row import DataChanged
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import read_run_config, write_run_config
from rlboost_jax.settings.mixture_parts import allotted
from tests.patience import PATIENCE_SECONDS

SUMS = [{"question": f"{n} + {n}?", "answer": f"so\n#### {2 * n}"} for n in range(40)]
WORDS = [{"text": f"word {n}", "reply": {"best": f"w{n}"}} for n in range(7)]
TABLE = [{"q": f"row {n}", "a": str(n)} for n in range(30)]


@pytest.fixture
def entries(tmp_path, write_lines):
    sums, words = write_lines(SUMS, "sums.jsonl"), write_lines(WORDS, "words.jsonl")
    with open(tmp_path / "table.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["q", "a"])
        writer.writeheader()
        writer.writerows(TABLE)
    return (
        {
            "source": str(sums),
            "weight": 2.0,
            "prompt_column": "question",
            "answer_column": "answer",
            "answer_format": "after_hashes",
        },
        {
            "source": str(words),
            "name": "own-words",
            "weight": 0.5,
            "template": "Say {text}.",
            "answer_column": "reply.best",
        },
        {"source": str(tmp_path / "table.csv"), "prompt_column": "q", "answer_column": "a"},
    )


@pytest.fixture
def mixed(build):
    """`mixed(entries, …)`: as `build`, opened; closed when the test is over."""
    opened = []

    def made(entries, **options):
        run = build("", mixture=tuple(entries), **{"heldout_share": 0.0, **options})
        opened.append(open_exercises(run))
        return opened[-1]

    yield made
    for each in opened:
        each.close()


def named(prompts):
    return [(prompt.source.name, prompt.problem.row) for prompt in prompts]


@pytest.mark.usefixtures("unjudged")
def test_each_has_its_share_at_any_time_and_its_own_epochs(entries, mixed):
    data = mixed(entries)
    assert isinstance(data, Mixture) and data.name == "sums + own-words + table"
    prompts = named(PromptStream(data, seed=3).slice(0, 200))
    weights = {"sums": 2.0, "own-words": 0.5, "table": 1.0}
    for taken in range(1, 201):
        counts = collections.Counter(name for name, _ in prompts[:taken])
        for name, weight in weights.items():
            assert abs(counts[name] - taken * weight / 3.5) < 2
    for name, size in (("sums", 40), ("own-words", 7), ("table", 30)):
        rows = [row for source, row in prompts if source == name]
        for epoch in range(len(rows) // size):
            assert sorted(rows[epoch * size : (epoch + 1) * size]) == list(range(size))
        assert rows[:size] != rows[size : 2 * size]


@pytest.mark.usefixtures("unjudged")
def test_any_prompts_at_any_time_in_any_process(entries, mixed):
    in_order = named(PromptStream(mixed(entries), seed=3).slice(0, 120))
    again = PromptStream(mixed(entries), seed=3)
    for first, count in ((77, 20), (5, 9), (0, 1)):
        assert named(again.slice(first, count)) == in_order[first : first + count]
    other = named(PromptStream(mixed(entries), seed=4).slice(0, 120))
    assert [name for name, _ in other] == [name for name, _ in in_order]
    assert other != in_order


@pytest.mark.usefixtures("unjudged")
def test_each_has_its_columns_and_says_whose_it_is(entries, mixed, tmp_path):
    data = mixed(entries, rewards=[{"name": "exact"}])
    found = {}
    for prompt in PromptStream(data, seed=0).slice(0, 250):
        found[prompt.problem.prompt] = prompt.problem.columns
    wanted = {row["question"]: ("sums", row["answer"].split()[-1]) for row in SUMS}
    wanted |= {f"Say {row['text']}.": ("own-words", row["reply"]["best"]) for row in WORDS}
    wanted |= {row["q"]: ("table", row["a"]) for row in TABLE}
    assert found == {
        text: {"data_source": name, "answer": answer} for text, (name, answer) in wanted.items()
    }
    lines = list(record_lines(data.record))
    assert lines[0].startswith("77 rows of sums + own-words + table: 77 to train on, 0 held out")
    assert lines[2].startswith("  own-words, weight 0.5: 7 rows of ")
    assert [part["train"] for part in data.record["mixture"]] == [40, 7, 30]
    keep_record(tmp_path, data.record)
    keep_record(tmp_path, mixed(entries).record)
    fewer = [entries[0], {**entries[1], "weight": 0.25}, entries[2]]
    with pytest.raises(DataChanged, match="began with"):
        keep_record(tmp_path, mixed(fewer).record)


@pytest.mark.usefixtures("unjudged")
def test_a_column_of_that_name_is_the_rows_own(mixed, write_lines):
    path = write_lines([{"prompt": "x", "data_source": "theirs"}])
    entry = {"source": str(path), "reward_columns": ("data_source",)}
    data = mixed([entry], rewards=[{"name": "format"}])
    assert data.train(0)[0].problem.columns == {"data_source": "theirs"}


def judged(data, prompt, text):
    ids = np.array([*text.encode(), 257], np.int32)
    return data.ask(prompt, ids).result(PATIENCE_SECONDS)


def test_presets_judge_their_own_prompts(mixed, write_lines):
    pytest.importorskip("math_verify")
    numbers = [{"nums": [2, 3, n], "target": 6 + n} for n in range(4, 9)]
    entries = (
        {"preset": "gsm8k", "source": str(write_lines(SUMS, "a.jsonl")), "weight": 3.0},
        {"preset": "countdown", "source": str(write_lines(numbers, "b.jsonl"))},
    )
    data = mixed(entries, rewards=(), engine_prompt_tokens=1024)
    prompts = {p.source.name: p for p in PromptStream(data, seed=0).slice(0, 8)}
    sums = prompts["gsm8k"].problem.columns["answer"]
    right = judged(data, prompts["gsm8k"], f"\\boxed{{{sums}}}")
    assert dict(right.components) == {"math": 1.0}
    last = prompts["countdown"].problem.columns["nums"][-1]
    right = judged(data, prompts["countdown"], f"<answer>2 * 3 + {last}</answer>")
    assert right.components["countdown"] == 1.0 and "math" not in right.components


@pytest.mark.usefixtures("unjudged")
def test_what_one_holds_out_no_other_trains_on(entries, mixed, write_lines):
    other = write_lines([*SUMS[:5], {"question": "new?", "answer": "#### 1"}], "again.jsonl")
    held = write_lines([{"q": row["question"], "a": "0"} for row in SUMS[:3]], "held.jsonl")
    data = mixed(
        [{**entries[0], "source": str(other)}, {**entries[2], "heldout_source": str(held)}],
        evaluate=0,
    )
    train = data.train(0)
    texts = {train[index].problem.prompt for index in range(len(train))}
    assert texts == {SUMS[3]["question"], SUMS[4]["question"], "new?"} | {r["q"] for r in TABLE}
    assert data.record["mixture"][0]["left_out"]["also held out"]["rows"] == 3
    with pytest.raises(ConfigError, match=r"data.mixture\[0\]: all of its questions are held out"):
        mixed(
            [
                {**entries[0], "source": str(write_lines(SUMS[:2], "few.jsonl"))},
                {**entries[2], "heldout_source": str(held)},
            ]
        )


@pytest.mark.usefixtures("unjudged")
def test_held_out_prompts_are_of_each_by_weight(entries, mixed):
    data = mixed(entries, heldout_share=0.5)
    counts = collections.Counter(prompt.source.name for prompt in data.heldout(0, 7))
    assert counts == {"sums": 4, "own-words": 1, "table": 2}
    assert data.heldout(0, 7)[0].tokens.tolist() == data.heldout(5, 100)[0].tokens.tolist()


@pytest.mark.usefixtures("unjudged")
def test_one_may_be_evaluated_alone_and_another_trained_on_alone(entries, mixed, write_lines):
    """What is only evaluated is all held out, from the others too."""
    both = write_lines([*SUMS[:9], {"question": "row 3", "answer": "#### 3"}], "both.jsonl")
    data = mixed(
        [
            {**entries[0], "source": str(both), "heldout_weight": 0.0},
            {**entries[1]},
            {**entries[2], "weight": 0.0, "heldout_weight": 3.0},
        ],
        heldout_share=0.5,
        evaluate=1,
    )
    first, words, table = data.record["mixture"]
    assert (first["train"], first["heldout"]) == (9, 0)
    assert first["left_out"]["also held out"]["rows"] == 1
    assert words["train"] and words["heldout"] and words["train"] + words["heldout"] == 7
    assert (table["train"], table["heldout"]) == (0, 30)
    trained = collections.Counter(p.source.name for p in PromptStream(data, seed=0).slice(0, 50))
    assert trained == {"both": 40, "own-words": 10}
    evaluated = collections.Counter(p.source.name for p in data.heldout(0, 14))
    assert evaluated == {"own-words": 2, "table": 12}
    assert {p.source for p in data.heldout(0, 14)} == {("own-words", 0.5), ("table", 3.0)}


@pytest.mark.parametrize("name", ["weight", "heldout_weight"])
def test_some_are_trained_on_and_some_are_evaluated(name, entries, build):
    with pytest.raises(ConfigError, match=rf"data.mixture has no {name} above 0"):
        build("", mixture=[{**entry, name: 0.0} for entry in entries], evaluate=1)


@pytest.mark.parametrize(
    ("count", "weights", "parts"),
    [
        (7, (2.0, 0.5, 1.0), (4, 1, 2)),
        (10, (1.0, 1.0, 1.0), (4, 3, 3)),
        (100, (98.0, 1.0, 1.0), (98, 1, 1)),
        (10, (1000.0, 1.0, 1.0), (8, 1, 1)),
        (3, (5.0, 1.0, 1.0), (1, 1, 1)),
        (2, (1.0, 1.0, 1.0), (1, 1, 0)),
        (0, (1.0, 2.0), (0, 0)),
        (9, (0.0, 2.0, 1.0), (0, 6, 3)),
        (9, (0.0, 0.0), (0, 0)),
    ],
)
def test_a_number_in_whole_parts(count, weights, parts):
    assert allotted(count, weights) == parts and sum(parts) == count * any(weights)


@pytest.mark.parametrize(
    ("changes", "data", "says"),
    [
        ({"weight": -1.0}, {}, "data.mixture[0]: weight is -1.0; choose a number of at least 0"),
        ({"heldout_weight": math.nan}, {}, "data.mixture[0]: heldout_weight is nan"),
        ({"weight": 0.0, "heldout_weight": 0.0}, {}, "data.mixture[0]: weight and heldout_weight"),
        ({"weight": 0.0, "heldout_split": "test"}, {}, "data.mixture[0]: heldout_split is 'test'"),
        ({"heldout_weight": 0.0, "heldout_source": "x"}, {}, "heldout_source is 'x', and none is"),
        ({"weight": math.inf}, {}, "data.mixture[0]: weight is inf"),
        ({"name": "a/b"}, {}, "data.mixture[0]: name is 'a/b'"),
        ({"name": "table"}, {}, "data.mixture has 'table' twice; give each a 'name'"),
        ({"source": ""}, {}, "data.mixture[0]: name is ''"),
        ({"template": "{question"}, {}, "data.mixture[0]: data.prompt_column"),
        ({"promt_column": "x"}, {}, "did you mean prompt_column?"),
        ({}, {"prompt_column": "x"}, "data.prompt_column is 'x' beside data.mixture"),
        ({}, {"filters": ({"column": "a", "one_of": (1,)},)}, "data.filters is "),
    ],
)
def test_a_mistake_names_its_entry(changes, data, says, entries, build):
    with pytest.raises(ConfigError) as caught:
        build("", mixture=({**entries[0], **changes}, *entries[1:]), **data)
    assert says in str(caught.value), str(caught.value)


def test_what_all_entries_lack_is_said_once(entries, build):
    with pytest.raises(ConfigError) as caught:
        build("", mixture=entries, rewards=())
    assert str(caught.value).count("rewards.functions is ()") == 1
    assert "data.mixture[" not in str(caught.value)


@pytest.mark.usefixtures("unjudged")
def test_what_is_wrong_with_rows_names_their_entry(entries, mixed):
    with pytest.raises(ConfigError, match=r"^data.mixture\[1\]: data.source .* no column 'txt'"):
        mixed([entries[0], {**entries[1], "template": "{txt}"}])


def test_it_is_read_back_as_it_was_written(entries, build, tmp_path):
    run = build("", mixture=entries)
    write_run_config(tmp_path / "config.json", run, "run")
    assert read_run_config(tmp_path / "config.json") == run
    assert run.data.mixture[1].template == "Say {text}."
