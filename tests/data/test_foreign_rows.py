"""Whatever stands in a file, it is a row, a broken row or an error in one line."""

import contextlib
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlboost_jax.data.columns import value_at
from rlboost_jax.data.conversations import conversation_in, tools_in, with_text_arguments
from rlboost_jax.data.dataset_rows import open_rows
from rlboost_jax.data.questions import identity
from rlboost_jax.data.row import BrokenRow
from rlboost_jax.platform.mistakes import ConfigError

NAMES = ("role", "from", "content", "value", "tool_calls", "function", "name", "arguments", "type")
WORDS = ("user", "assistant", "tool", "human", "function_call", "text", "function", "{}", "[1]", "")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(WORDS) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from((*NAMES, "text", "x")), inner, max_size=4)
    ),
    max_leaves=12,
)
TURNS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(WORDS)},
        optional={name: VALUES for name in ("content", "tool_calls", "function_call", "x")},
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=50, deadline=None)
@given(VALUES | TURNS, st.booleans())
def test_a_conversation_is_one_or_is_refused(value, table):
    with contextlib.suppress(BrokenRow):
        messages = conversation_in(value, "m", table=table)
        assert all(isinstance(message["content"], str | dict) for message in messages)
        assert with_text_arguments(messages) is not None and identity(messages)
    with contextlib.suppress(BrokenRow):
        assert all(
            isinstance(t["function"]["name"], str) for t in tools_in(value, "t", table=table)
        )


@settings(max_examples=40, deadline=None)
@given(VALUES, st.lists(st.sampled_from(("a", "x", "0", "1", "text", "")), min_size=1, max_size=4))
def test_a_path_leads_somewhere_or_is_refused(value, parts):
    with contextlib.suppress(BrokenRow):
        value_at({"a": value, "x.0": value}, ".".join(parts))


SCRAPS = ('{"a": 1}', "[", "]", ",", "\n", "\r\n", '"', "{", "}", "1", "\ufeff", "a,b", "\t", "\\")


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from((".json", ".jsonl", ".csv", ".tsv")),
    st.lists(st.sampled_from(SCRAPS) | st.text(max_size=4), max_size=12).map(
        lambda parts: "".join(parts).encode("utf-8", "surrogatepass")
    )
    | st.binary(max_size=24),
)
def test_a_file_is_rows_or_is_refused(ending, content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rows{ending}"
        path.write_bytes(content)
        try:
            rows = open_rows(str(path), "auto", subset="", split="", columns=())
        except ConfigError as error:
            assert "\n" not in str(error)
            return
        for index in range(len(rows)):
            with contextlib.suppress(BrokenRow):
                assert isinstance(rows[index], dict)


@pytest.mark.parametrize("rows", [[], [{}], [{"a": [1, {"b": None}]}, {"a": "é\u2028\x0b\x85"}]])
@pytest.mark.parametrize("indent", [None, 3])
@pytest.mark.parametrize("ascii", [True, False])
def test_an_array_is_what_json_says(rows, indent, ascii, tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows, indent=indent, ensure_ascii=ascii), encoding="utf-8")
    found = open_rows(str(path), "auto", subset="", split="", columns=())
    assert [found[index] for index in range(len(found))] == rows
