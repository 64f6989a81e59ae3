"""Rows of `warmup.source`: what is given, what is to be said, and which rows are of no use."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.data.dataset_rows import open_rows
from rlboost_jax.data.demonstrations import demonstrations_of
from rlboost_jax.platform.mistakes import ConfigError
from tests.oracles import torch_oracle

BEGIN, END = 256, 257
# Writes every turn after its role; `<x>` is in the last turn of an assistant only.
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{% if loop.last and m.role == 'assistant' %}"
    "{{ lead }}{% endif %}{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
CHAT = [
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "+1?"},
    {"role": "assistant", "content": "3"},
]


@pytest.fixture
def read(build):
    """`read(path, warmup={…}, **data)`: demonstrations of a run on that source."""

    def made(path, *, warmup=None, row_tokens=0, rows_of=open_rows, beat=lambda: None, **data):
        run = build("questions.jsonl", **data)
        learner = replace(run.learner, row_tokens=row_tokens)
        chosen = replace(run.warmup, source=str(path), **(warmup or {}))
        run = replace(run, warmup=chosen, learner=learner)
        return demonstrations_of(run, rows_of=rows_of, beat=beat)

    return made


def texts(sequences):
    """Runs as text, the marks as < and >."""
    names = {BEGIN: "<", END: ">"}
    return [
        ["".join(names.get(t) or chr(t) for t in ids.tolist()) for ids in runs]
        for runs in sequences
    ]


@pytest.mark.parametrize(
    ("row", "warmup", "data"),
    [
        ({"prompt": "1+1?", "response": "2"}, {}, {}),
        ({"q": "1+1?", "a": "2"}, {"response_column": "a"}, {"prompt_column": "q"}),
        ({"q": "1+1?", "a": "2"}, {"prompt_column": "q", "response_column": "a"}, {}),
        ({"q": "1+1", "n": 2}, {"response_template": "{n}"}, {"template": "{q}?"}),
    ],
)
def test_prompt_and_response(read, write_lines, row, warmup, data):
    found = read(write_lines([row]), warmup=warmup, **data)
    assert texts(found.sequences) == [["<1+1?", "2>"]]
    assert found.lines == (f"1 rows of {write_lines([row])}: 1 sequences, 2 tokens to imitate",)


def test_rows_of_every_format_are_read(read, tmp_path):
    (tmp_path / "rows.csv").write_text("prompt,response\n1+1?,2\n")
    (tmp_path / "rows.json").write_text(json.dumps([{"prompt": "1+1?", "response": "2"}]))
    for name in ("rows.csv", "rows.json"):
        assert texts(read(tmp_path / name).sequences) == [["<1+1?", "2>"]]


@pytest.mark.parametrize(
    ("row", "data"),
    [
        ({"prompt": "1+1?", "response": "2"}, {}),
        ({"messages": CHAT}, {"chat_template": TEMPLATE, "chat": "always"}),
    ],
)
def test_a_file_is_opened_once_and_each_row_is_a_sign_of_life(read, write_lines, row, data):
    opened, beats = [], []

    def spy(*args, **options):
        opened.append(options["columns"])
        return open_rows(*args, **options)

    read(write_lines([row] * 5), rows_of=spy, beat=lambda: beats.append(len(opened)), **data)
    assert opened == [frozenset()] and beats == [1] * 5


def test_of_a_conversation_the_assistants_turns_are_to_be_said(read, write_lines):
    """By the bytes' tokenizer, whose end token no template writes: each turn is a sequence."""
    rows = write_lines([{"messages": CHAT}])
    found = read(rows, chat_template=TEMPLATE, chat="always")
    assert texts(found.sequences) == [
        ["<u:1+1?\na:", "2\n>"],
        ["<u:1+1?\na:2\nu:+1?\na:", "3\n>"],
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "1+1?"}, "no column 'response' among 'prompt'"),
        ({"messages": CHAT[:1]}, "no turn of an assistant, which would be the target"),
        ({"messages": CHAT[1:]}, "the assistant speaks first: there is no prompt"),
        ({"prompt": "1+1?", "response": 2}, "column 'response' is no text: '2'"),
        ({"prompt": "1+1?", "response": "2" * 30}, "36 tokens need 35 positions, a packed row has"),
    ],
)
def test_a_row_that_is_of_no_use_is_named_with_its_place(read, write_lines, row, said):
    good = {"messages": CHAT} if "messages" in row else {"prompt": "1+1?", "response": "2"}
    data = {"chat_template": TEMPLATE, "chat": "always"} if "messages" in row else {}
    data["row_tokens"] = 34
    skipped = read(write_lines([good, row]), **data)
    assert len(skipped.sequences) == (2 if "messages" in row else 1)
    assert "1 row left out" in skipped.lines[1]
    assert f"rows.jsonl, line 2: {said}" in skipped.lines[1]
    with pytest.raises(ConfigError, match=r"warmup.source, rows.jsonl, line 2: .*bad_rows") as one:
        read(write_lines([good, row]), bad_rows="error", **data)
    assert "\n" not in str(one.value)
    with pytest.raises(ConfigError, match="no row of 1 is left to learn from") as none:
        read(write_lines([row]), **data)
    assert said in str(none.value)


def test_a_table_without_the_column_is_refused_in_the_words_of_the_warm_up(read, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"prompt": ["1+1?"]}), tmp_path / "data.parquet")
    said = r"warmup.source .*/data.parquet.* has no column 'response'; it has 'pr"
    with pytest.raises(ConfigError, match=said):
        read(tmp_path / "data.parquet")


def test_a_hugging_face_template_as_transformers_masks_it(build, write_lines, tmp_path):
    """Against `return_assistant_tokens_mask` of the same template with its `generation` marks."""
    transformers = torch_oracle("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"<end>": 0, "?": 1} | {c: i for i, c in enumerate("ua:12+3\n ", start=2)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    fast.chat_template = (
        "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}<end>{% endgeneration %}"
        "{% else %}{{ m.content }}<end>{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    )
    fast.save_pretrained(tmp_path / "tokenizer")
    run = build("questions.jsonl", tokenizer=str(tmp_path / "tokenizer"))
    source = str(write_lines([{"messages": CHAT}]))
    found = demonstrations_of(replace(run, warmup=replace(run.warmup, source=source)))
    expected = fast.apply_chat_template(
        CHAT, return_dict=True, return_assistant_tokens_mask=True, tokenize=True
    )
    (runs,) = found.sequences
    mask = np.repeat(np.arange(len(runs)) % 2, [len(ids) for ids in runs])
    length = len(mask)  # what follows the last turn is no context of any
    assert np.concatenate(runs).tolist() == expected["input_ids"][:length]
    assert mask.tolist() == expected["assistant_masks"][:length]
    assert sum(expected["assistant_masks"][length:]) == 0
