"""What a run trains on when it is read: which rows, in which order, judged by what."""

import collections
import contextlib
import dataclasses
import random

import numpy as np
import pytest

from configs import base
from rlboost_jax.data.dataset import Dataset
from rlboost_jax.data.dataset_rows import open_rows
from rlboost_jax.data.open import (
    DataChanged,
    ends_of,
    keep_record,
    open_exercises,
    record_lines,
)
from rlboost_jax.data.prompt_stream import PromptStream
from rlboost_jax.data.questions import answer_in
from rlboost_jax.data.row import BrokenRow
from rlboost_jax.data.stop_strings import NO_STRINGS, StopStrings
from rlboost_jax.data.vocabulary import END
from rlboost_jax.platform.at_rest import read_sealed
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings import foreign_keys
from rlboost_jax.settings.config_loading import run_config
from tests.data.conftest import GSM8K
from tests.patience import PATIENCE_SECONDS

PLAIN = {"prompt_column": "question", "answer_column": "answer"}


@pytest.fixture
def dataset(build):
    """`dataset(path, …)`: as `build`, opened; closed when the test is over."""
    opened = []

    def made(*args, rows_of=open_rows, **options):
        opened.append(Dataset(build(*args, **options), rows_of=rows_of))
        return opened[-1]

    yield made
    for data in opened:
        data.close()


def on_rows():
    """Values of a run on a file of rows, which is not looked for."""
    config = base.get_config()
    config.task.name = "dataset"
    config.warmup.max_updates = 0
    config.data.source = "rows.jsonl"
    config.data.tokenizer = "bytes"
    config.rewards.functions = ({"name": "exact"},)
    return config


def questions(prompts):
    return [prompt.problem.prompt for prompt in prompts]


def all_of(dataset):
    train = dataset.train(0)
    return questions(train[i] for i in range(len(train)))


def test_a_prompt_is_its_text_and_what_rewards_need(dataset, write_lines):
    data = dataset(
        write_lines(GSM8K),
        template="Q: {question} {{short}}",
        answer_column="answer",
        answer_format="after_hashes",
        reward_columns=("question",),
    )
    prompt = data.train(0)[0]
    (row,) = [row for row in GSM8K if row["question"] in prompt.problem.prompt]
    text = f"Q: {row['question']} {{short}}"
    assert prompt.tokens.dtype == np.int32
    assert prompt.tokens.tolist() == [256, *text.encode()]
    number = row["answer"].split()[-1].replace(",", "")
    assert prompt.problem.columns == {"question": row["question"], "answer": number}


def test_any_prompts_at_any_time(dataset, write_lines):
    """The order is a function of the seed."""
    data = dataset(write_lines(GSM8K), **PLAIN)
    in_order = questions(PromptStream(data, seed=3).slice(0, 500))
    again = PromptStream(dataset(write_lines(GSM8K), **PLAIN), seed=3)
    for first, count in ((350, 5), (12, 11), (0, 1)):
        assert questions(again.slice(first, count)) == in_order[first : first + count]
    assert questions(PromptStream(data, seed=4).slice(0, 5)) != in_order[:5]


def test_each_epoch_has_every_prompt_once_in_another_order(dataset, write_lines):
    data = dataset(write_lines(GSM8K), **PLAIN)
    stream = PromptStream(data, seed=0)
    size = len(data.train(0))
    first, second = (questions(stream.slice(epoch * size, size)) for epoch in (0, 1))
    assert collections.Counter(first) == collections.Counter(second)
    assert set(collections.Counter(first).values()) == {1}
    assert first != second


def test_the_split_is_of_questions_and_never_moves(dataset, write_lines):
    """Not with the order of the rows, nor with rows that come or go, nor with the template."""
    whole = dataset(write_lines(GSM8K), heldout_share=0.2, **PLAIN)
    shuffled = [*GSM8K[::2], *GSM8K[:7]]
    random.Random(0).shuffle(shuffled)
    part = dataset(
        write_lines(shuffled, "part.jsonl"),
        heldout_share=0.2,
        template="{question}",
        answer_column="answer",
    )
    assert set(all_of(part)) <= set(all_of(whole))
    aside = set(questions(whole.heldout(0, 1000)))
    assert set(questions(part.heldout(0, 1000))) <= aside
    assert not aside & set(all_of(whole))
    assert len(aside) + len(all_of(whole)) == len(GSM8K)
    assert 0.1 < len(aside) / len(GSM8K) < 0.3
    assert questions(whole.heldout(0, 5)) == questions(whole.heldout(9, 20))[:5]


def test_a_place_of_their_own_for_heldout_rows(dataset, write_lines):
    """What is asked there is not trained on, even if it stands among the training rows, too."""
    path = write_lines(GSM8K)
    data = dataset(
        path, heldout_source=str(write_lines(GSM8K[:20], "test.jsonl")), evaluate=1, **PLAIN
    )
    aside = {row["question"] for row in GSM8K[:20]}
    assert set(questions(data.heldout(0, 100))) == aside
    assert set(all_of(data)) == {row["question"] for row in GSM8K[20:]}
    assert data.record["left_out"]["also held out"]["rows"] == 20


BAD = [
    {"question": "What is 1 + 1?", "answer": "2"},
    '{"question": "cut off',
    {"question": "no answer"},
    {"question": None, "answer": "2"},
    {"question": "  \n", "answer": "2"},
    {"question": ["no", "text"], "answer": "2"},
    {"question": "half \ud83d", "answer": "2"},
    {"question": "What is 1 + 1?", "answer": ["\udc00"]},
    *({"question": "What is 1 + 1?", "answer": none} for none in (float("nan"), " \n", [])),
    {"question": "What is 2 + 2? " * 40, "answer": "4"},
    {"question": "What is 3 + 3?", "answer": "6"},
]


def test_what_cannot_be_used_is_left_out_and_counted(dataset, write_lines, tmp_path):
    data = dataset(write_lines(BAD), heldout_share=0.0, **PLAIN)
    assert all_of(data) == ["What is 1 + 1?", "What is 3 + 3?"]
    left_out = data.record["left_out"]
    assert left_out["unusable"]["rows"] == 10
    assert left_out["unusable"]["first"].startswith("rows.jsonl, line 2: no JSON")
    assert left_out["too long"]["rows"] == 1
    assert (
        left_out["too long"]["first"]
        == "rows.jsonl, line 12: 601 tokens, engine.max_prompt_tokens is 256"
    )
    lines = list(record_lines(data.record))
    assert "13 rows of" in lines[0] and "2 to train on, 0 held out" in lines[0]
    assert any(
        line.startswith("  10 rows left out, unusable (first: rows.jsonl, line 2") for line in lines
    )


@pytest.mark.parametrize(
    ("column", "answer_format", "found"),
    [
        (["\\boxed{5}", "or \\boxed{6}"], "boxed", ["5", "6"]),
        (["#### 1,234", "#### 2"], "after_hashes", ["1234", "2"]),
        ([["<answer>a</answer>"]], "answer_tag", [["a"]]),
        (5, "boxed", None),
        (["\\boxed{5}", "6"], "boxed", None),
        (["\\boxed{5}", ""], "boxed", None),
        (["5", "6"], "", ["5", "6"]),
    ],
)
def test_each_of_several_answers_has_the_format(column, answer_format, found):
    with contextlib.nullcontext() if found else pytest.raises(BrokenRow, match="answer"):
        assert answer_in(column, answer_format) == found


@pytest.mark.parametrize("index", range(1, 11))
def test_or_ends_the_run_before_it_begins(index, dataset, write_lines):
    with pytest.raises(ConfigError, match=r"rows.jsonl, line 2: .*data.bad_rows"):
        dataset(write_lines([BAD[0], BAD[index]]), bad_rows="error", **PLAIN)


def test_a_column_that_is_nowhere_is_an_error_that_names_those_there_are(dataset, write_lines):
    with pytest.raises(ConfigError, match=r"no row of 240 .* no column 'text' among 'answer', "):
        dataset(write_lines(GSM8K), prompt_column="text")


@pytest.mark.parametrize(
    ("row_filter", "kept"),
    [
        ({"column": "level", "one_of": ("Level 1", "Level 2")}, "ab"),
        ({"column": "level", "one_of": ("Level 1",), "exclude": True}, "bcd"),
        ({"column": "level", "pattern": r"[23]$"}, "bc"),
        ({"column": "score", "at_least": 2}, "bc"),
        ({"column": "score", "at_least": 2, "at_most": 2.5}, "b"),
        ({"column": "score", "one_of": (None,)}, "d"),
        ({"column": "score", "one_of": (None,), "exclude": True}, "abc"),
    ],
)
def test_filters(row_filter, kept, dataset, write_lines):
    rows = [
        {"question": "a", "level": "Level 1", "score": 1},
        {"question": "b", "level": "Level 2", "score": 2},
        {"question": "c", "level": "Level 3", "score": 3.5},
        {"question": "d", "level": "", "score": None},
    ]
    options = {"rewards": [{"name": "format"}], "heldout_share": 0.0}
    data = dataset(write_lines(rows), prompt_column="question", filters=(row_filter,), **options)
    assert all_of(data) == list(kept)
    assert data.record["left_out"]["filtered"]["rows"] == 4 - len(kept)


@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize(
    ("row_filter", "reason"),
    [
        ({"column": "levl", "one_of": ("1",)}, r"no column 'levl' among 'level', 'question'"),
        ({"column": "levl", "pattern": "1"}, r"no column 'levl' among 'level', 'question'"),
        ({"column": "level", "at_least": 2}, r"no number in column 'level': 'Level 1'"),
    ],
)
def test_a_filter_of_what_is_not_there_keeps_nothing(
    row_filter, reason, exclude, dataset, write_lines
):
    rows = [{"question": "a", "level": "Level 1"}, {"question": "b", "level": "Level 2"}]
    with pytest.raises(ConfigError, match=rf"no row of 2 is left .*line 1: {reason}"):
        dataset(
            write_lines(rows),
            prompt_column="question",
            filters=({**row_filter, "exclude": exclude},),
            rewards=[{"name": "format"}],
        )


@pytest.mark.parametrize(
    ("value", "one_of", "said"),
    [
        ("3", (3,), "'3', which is not the 3 of one_of: str and int"),
        (3, ("3",), "3, which is not the '3' of one_of: int and str"),
        (2.5, ("1", "2.5"), "2.5, which is not the '2.5'"),
        (True, ("True",), "True, which is not the 'True'"),
        ("None", (None,), "'None', which is not the None"),
        (3, (3.0,), ""),
        ("4", (3,), ""),
        (["3"], ("['3']",), ""),
    ],
)
@pytest.mark.parametrize("exclude", [True, False])
def test_a_filter_says_where_types_alone_differ(
    value, one_of, said, exclude, dataset, write_lines, caplog
):
    foreign_keys.warn_once.cache_clear()
    rows = [{**GSM8K[0], "level": value}, {**GSM8K[1], "level": value}]
    only = {"column": "level", "one_of": one_of, "exclude": exclude}
    with contextlib.suppress(ConfigError):  # nothing is left
        dataset(write_lines(rows), heldout_share=0.0, filters=(only,), **PLAIN)
    lines = [line for line in caplog.messages if line.startswith("data.filters")]
    assert len(lines) == bool(said) and all(said in line for line in lines)


def test_a_row_without_the_column_of_a_filter_is_left_out_visibly(dataset, write_lines):
    rows = [{"question": "a"}, {"question": "b", "source": "x"}, {"question": "c", "source": "y"}]
    data = dataset(
        write_lines(rows),
        prompt_column="question",
        filters=({"column": "source", "one_of": ("x",), "exclude": True},),
        rewards=[{"name": "format"}],
        heldout_share=0.0,
    )
    assert all_of(data) == ["c"]
    assert "no column 'source'" in data.record["left_out"]["unusable"]["first"]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, r"data.heldout_source '.*test.jsonl': no row of 0 is left to evaluate on$"),
        (
            [{}],
            {},
            r"no row of 1 is left to evaluate on: 1 unusable \(first: test.jsonl, line 1: no",
        ),
        ([{}], {"bad_rows": "error"}, r"^data.heldout_source, test.jsonl, line 1"),
        ([{}], {"heldout_split": "x"}, r"^data.heldout_split is 'x', and files of format jsonl"),
        ([{}], {"heldout_subset": "x"}, r"^data.heldout_subset is 'x', and files of format jsonl"),
    ],
)
def test_what_is_wrong_with_heldout_rows_names_their_settings(
    rows, options, message, dataset, write_lines
):
    aside = str(write_lines(rows, "test.jsonl"))
    with pytest.raises(ConfigError, match=message):
        dataset(write_lines(GSM8K), heldout_source=aside, evaluate=1, **PLAIN, **options)


def test_nothing_held_out_by_a_share(dataset, write_lines):
    with pytest.raises(ConfigError, match=r"no row of 1 is held out; raise data.heldout_share"):
        dataset(write_lines(GSM8K[:1]), heldout_share=1e-6, evaluate=1, **PLAIN)


def test_a_template_takes_columns_by_whatever_name(dataset, write_lines):
    data = dataset(
        write_lines([{"the question": "2 + 2?", "größe-2": [1, None]}]),
        template="{{{the question}}} {größe-2}",
        rewards=[{"name": "format"}],
        heldout_share=0.0,
    )
    assert all_of(data) == ["{2 + 2?} [1, None]"]


@pytest.mark.parametrize("template", ["{{ messages[0].content + 1 }}", "{{ nobody.name }}"])
def test_a_chat_template_that_fails_says_so(template, dataset, write_lines):
    """Not only where it means to: whatever is raised in it."""
    pytest.importorskip("jinja2")
    with pytest.raises(
        ConfigError, match=r"no row of 240 .*the chat template refuses it: \w+Error"
    ):
        dataset(write_lines(GSM8K), chat_template=template, **PLAIN)


def test_heldout_rows_may_be_of_another_subset(dataset, write_lines):
    opened = []

    def spy(source, format, *, subset, split, columns):
        opened.append((source, subset, split))
        return open_rows(str(path), format, subset="", split="", columns=columns)

    path = write_lines(GSM8K)
    hub = {"source": "a/train", "subset": "main", "split": "all"}
    for own in (
        {"heldout_split": "test"},
        {"heldout_source": "b/test", "heldout_subset": "hard", "heldout_split": "test"},
    ):
        with pytest.raises(ConfigError, match="no row of 240 is left to train on: also held out"):
            dataset(**hub, **own, **PLAIN, rows_of=spy)
    assert opened == [
        ("a/train", "main", "all"),
        ("a/train", "main", "test"),
        ("a/train", "main", "all"),
        ("b/test", "hard", "test"),
    ]


def test_messages_end_where_the_policy_speaks(dataset, write_lines):
    pytest.importorskip("jinja2")
    rows = [
        {
            "messages": [
                {"role": "user", "content": "Hello?"},
                {"role": "assistant", "content": "Yes?"},
                {"role": "user", "content": "What is 2 + 2?"},
                {"role": "assistant", "content": "4, the solution"},
            ]
        },
        {"messages": [{"role": "assistant", "content": "nothing was asked"}]},
        {"messages": [{"role": "user"}]},
        {"messages": "What is 1 + 1?"},
    ]
    data = dataset(
        write_lines(rows),
        messages_column="messages",
        chat_template="{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
        "[assistant] ",
        system_prompt="Be brief.",
        rewards=[{"name": "format"}],
        heldout_share=0.0,
    )
    assert all_of(data) == [
        "[system] Be brief.\n[user] Hello?\n[assistant] Yes?\n[user] What is 2 + 2?\n[assistant] "
    ]
    assert data.record["left_out"]["unusable"]["rows"] == 3


def test_a_chat_needs_a_template(dataset, write_lines):
    rows = [{"messages": [{"role": "user", "content": "Hello?"}]}]
    with pytest.raises(ConfigError, match=r"'bytes' has none; set data.chat_template"):
        dataset(write_lines(rows), messages_column="messages", rewards=[{"name": "format"}])


def test_what_was_read_must_be_the_same_when_the_run_goes_on(dataset, write_lines, tmp_path):
    record = dataset(write_lines(GSM8K), **PLAIN).record
    keep_record(tmp_path, record)
    assert read_sealed(tmp_path / "data.json", "") == record
    keep_record(tmp_path, dataset(write_lines(GSM8K), **PLAIN).record)
    first = GSM8K[0]
    for other in (
        GSM8K[1:],
        [{**first, "question": "Another?"}, *GSM8K[1:]],
        [{**first, "answer": first["answer"] + "0"}, *GSM8K[1:]],
    ):
        with pytest.raises(DataChanged, match="began with"):
            keep_record(tmp_path, dataset(write_lines(other, "rows.jsonl"), **PLAIN).record)


def test_tokens_must_be_the_same_when_the_run_goes_on(dataset, write_lines, tmp_path):
    """Another template gives as many rows of the same length."""
    pytest.importorskip("jinja2")

    def record(mark):
        template = mark + "{{ messages[0].content }}"
        return dataset(write_lines(GSM8K), chat_template=template, **PLAIN).record

    keep_record(tmp_path, record("a"))
    keep_record(tmp_path, record("a"))
    with pytest.raises(DataChanged, match="began with"):
        keep_record(tmp_path, record("b"))


def test_a_response_is_judged_as_text(dataset, write_lines):
    data = dataset(
        write_lines(GSM8K),
        answer_format="after_hashes",
        rewards=[
            {"name": "exact", "options": {"extract": "boxed"}},
            {"name": "regex", "weight": 0.5, "options": {"pattern": "so"}},
        ],
        **PLAIN,
    )
    prompt = data.train(0)[0]
    answer = prompt.problem.columns["answer"]

    def judged(text):
        return data.ask(prompt, np.array([*text.encode(), 257], np.int32)).result(PATIENCE_SECONDS)

    right = judged(f"so \\boxed{{{answer}}}")
    assert (right.reward, right.accuracy) == (1.5, 1.0)
    assert dict(right.components) == {"exact": 1.0, "regex": 1.0}
    wrong = judged(f"\\boxed{{{answer}0}}")
    assert (wrong.reward, wrong.accuracy, dict(wrong.faults)) == (0.0, 0.0, {})


def noted(completions, finished, **columns):
    return [
        float(text == "so") + 2.0 * done for text, done in zip(completions, finished, strict=True)
    ]


def test_rewards_read_the_text_before_a_stop_string(dataset, write_lines):
    """And hear that a response ended by itself, which 2 of the reward says; \\x01 is its end id."""
    data = dataset(
        write_lines(GSM8K),
        rewards=[{"name": "tests.data.test_dataset:noted"}],
        stop_strings=("</answer>", "\n\nHuman:", "数学"),
        **PLAIN,
    )
    prompt = data.train(0)[0]
    expected = {
        **{"so</answer>": 3, "so\n\nHuman:": 3, "so数学": 3, "</answer>": 2},
        **{"so": 1, "so\x01": 3, "so</answer": 0, "so</answer\x01": 2},
    }
    asked = {}
    for response in expected:
        ids = [257 if byte == 1 else byte for byte in response.encode()]
        asked[response] = data.ask(prompt, np.array(ids, np.int32))
    assert {text: each.result(PATIENCE_SECONDS).reward for text, each in asked.items()} == expected
    assert data.record["stop_strings"] == ["</answer>", "\n\nHuman:", "数学"]


def test_ends_are_known_without_the_rows(build):
    run = build("no/such/rows.jsonl", stop_ids=(7,), **PLAIN)
    assert ends_of(run)[0] == (7, 257) and ends_of(run)[1].table == b""
    _, strings = ends_of(build("no/such/rows.jsonl", stop_strings=("ab",), **PLAIN))
    assert strings.table == StopStrings(("ab",), [bytes([n]) for n in range(256)]).table != b""
    assert ends_of(run_config(base.get_config())) == ((END,), NO_STRINGS)


def test_the_vocabulary_must_hold_the_tokenizer(build, write_lines):
    run = build(write_lines(GSM8K), **PLAIN)
    small = dataclasses.replace(run, model=dataclasses.replace(run.model, vocab_size=257))
    with pytest.raises(ConfigError, match=r"model.vocab_size is 257, .* 258 tokens"):
        open_exercises(small)


def test_held_out_problems_of_generated_tasks_do_not_bound_those_of_a_data_set():
    config = on_rows()
    config.evaluation.num_prompts = config.task.num_heldout + 1
    assert run_config(config).evaluation.num_prompts == 257


def test_no_more_stop_ids_than_an_engine_has_room_for(dataset, write_lines):
    path = write_lines(GSM8K[:9])
    assert len(dataset(path, stop_ids=tuple(range(7)), **PLAIN).stop_ids) == 8
    with pytest.raises(ConfigError, match=r"have 9 ids that end a response, and 8 are possible"):
        dataset(path, stop_ids=tuple(range(8)), **PLAIN)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"data.source": ""}, ["data.source"]),
        ({"data.tokenizer": ""}, ["data.tokenizer"]),
        ({"warmup.max_updates": 5}, ["warmup.max_updates", "5", "warmup.source"]),
        ({"warmup.split": "test"}, ["warmup.split", "'test'", "without a warmup.source"]),
        (
            {"warmup.source": "x", "warmup.messages_column": "m", "warmup.response_column": "r"},
            ["warmup.messages_column", "warmup.response_column", "keep one"],
        ),
        (
            {"warmup.source": "x", "warmup.response_template": "{a", "warmup.response_column": "r"},
            ["warmup.response_template", "warmup.response_column", "keep one"],
        ),
        ({"warmup.source": "x", "warmup.response_template": "{a"}, ["warmup.response_template"]),
        ({"data.heldout_share": 0.0}, ["data.heldout_share", "evaluation.every_steps"]),
        ({"data.heldout_share": 0.95}, ["data.heldout_share", "0.95"]),
        ({"data.max_prompt_tokens": 999}, ["999", "engine.max_prompt_tokens"]),
        ({"data.stop_ids": (300,)}, ["data.stop_ids", "model.vocab_size"]),
        ({"data.stop_strings": ("a", "")}, ["data.stop_strings has ''", "leave it out"]),
        ({"data.stop_strings": ("\ud800",)}, ["data.stop_strings", "no text in UTF-8"]),
        ({"data.stop_strings": ("数" * 43,)}, ["data.stop_strings", "129 bytes", "128"]),
        ({"data.stop_strings": tuple("abcdefghijklmnopq")}, ["17 strings", "limit is 16"]),
        ({"data.template": "{question"}, ["data.template"]),
        ({"data.template": "no column"}, ["data.template", "no column"]),
        ({"data.template": "{question.}"}, ["data.template", "{question.}"]),
        ({"data.template": "{question[-1]}"}, ["data.template", "{question[-1]}"]),
        ({"data.template": "{a} {0}"}, ["data.template", "{0}"]),
        ({"data.template": "{a} {}"}, ["data.template", "{}"]),
        ({"data.template": "{a!r:>{b}}"}, ["data.template", "{a!r:>{b}}"]),
        ({"data.template": "{a:.2f}"}, ["data.template", "{a:.2f}"]),
        ({"data.template": 'As {"answer": 4}: {a}'}, ["data.template", "written twice"]),
        ({"data.template": "{a}", "data.messages_column": "m"}, ["data.messages_column"]),
        ({"data.chat_template": "x", "data.chat": "never"}, ["data.chat_template", "'never'"]),
        ({"data.reward_columns": ("finished",)}, ["data.reward_columns", "'finished'"]),
        (
            {"data.reward_columns": ("answer",), "data.answer_column": "solution"},
            ["data.reward_columns", "'answer'"],
        ),
        ({"data.reward_columns": ("a.prompts",)}, ["'a.prompts'", "'prompts'"]),
        ({"data.reward_columns": ("a.index", "b.index")}, ["'b.index'", "'index'"]),
        ({"data.heldout_subset": "x"}, ["data.heldout_subset", "data.heldout_source"]),
        ({"data.preset": "gsm9k"}, ["data.preset", "gsm8k"]),
        ({"data.answer_format": "boxed"}, ["data.answer_format", "data.answer_column"]),
        ({"data.chat": "always"}, ["data.chat_template"]),
        ({"data.system_prompt": "x", "data.chat": "never"}, ["data.system_prompt"]),
        ({"data.messages_column": "m", "data.chat": "never"}, ["data.messages_column", "'never'"]),
        ({"data.filters": ({"column": "a", "pattern": "("},)}, ["data.filters[0]", "'('"]),
        ({"data.filters": ({"column": "a"},)}, ["data.filters[0]", "keeps every row"]),
        ({"data.filters": ({"pattern": "a"},)}, ["data.filters[0]", "'column' is missing"]),
        ({"data.filters": ({"column": "a", "patern": "a"},)}, ["did you mean pattern?"]),
        ({"rewards.functions": ()}, ["rewards.functions"]),
        ({"rewards.functions": ({"name": "maths"},)}, ["'maths'", "math,"]),
        ({"rewards.functions": ({"name": "exact"}, {"name": "exact"})}, ["twice", "'label'"]),
        (
            {"rewards.functions": ({"name": "exact"}, {"name": "format", "label": "exact"})},
            ["'exact' twice"],
        ),
        ({"rewards.functions": ({"name": "exact", "weight": float("nan")},)}, ["weight is nan"]),
        ({"rewards.functions": ({"name": "exact", "time_limit_seconds": -1.0},)}, ["-1.0"]),
        ({"task.name": "clock", "engine.max_prompt_tokens": 8}, ["data.source", "'clock'"]),
    ],
)
def test_a_mistake_is_a_line_that_names_it(changes, names):
    config = on_rows()
    run_config(config)
    for name, value in changes.items():
        section, field = name.split(".")
        config[section][field] = value
    with pytest.raises(ConfigError) as caught:
        run_config(config)
    first = str(caught.value).splitlines()[0]
    assert all(name in first for name in names), first
