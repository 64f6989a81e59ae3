"""Calls as models write them, whole and broken; by hand, and against `json`."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlboost_jax.chat.formats import hermes, llama3, mistral, objects, plain, tagged
from rlboost_jax.chat.formats.format_choice import detected, parser_of
from tests.chat.conftest import ADD
from tests.chat.forms import FORMS

FORMATS = ("hermes", "llama3", "mistral", "json", "tagged")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.from_regex(r"\A[a-z_][a-z_0-9]{0,20}\Z")
CALLS = st.lists(
    st.tuples(NAMES, st.dictionaries(st.text(), JSON, max_size=3)), min_size=1, max_size=3
)


def named(calls):
    return [(call.name, dict(call.arguments)) for call in calls]


def written(form, calls, ensure_ascii):
    """As models of the form write calls."""
    objects = [
        json.dumps(
            {"name": name, "parameters" if form == "llama3" else "arguments": arguments},
            ensure_ascii=ensure_ascii,
        )
        for name, arguments in calls
    ]
    match form:
        case "hermes":
            return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects)
        case "llama3":
            return "; ".join(objects)
        case "mistral":
            return f"[TOOL_CALLS] [{', '.join(objects)}]"
        case "mistral later":
            shown = [(n, json.dumps(a, ensure_ascii=ensure_ascii)) for n, a in calls]
            return "".join(f"[TOOL_CALLS]{name}[ARGS]{text}" for name, text in shown)
        case "json":
            return "\n".join(objects)
    raise AssertionError(form)


@pytest.mark.parametrize("form", ["hermes", "llama3", "mistral", "mistral later", "json"])
@example([("a", {"b": "[TOOL_CALLS]", "c": '[TOOL_CALLS] [{"name": "d"}]'}), ("e", {})], False)
@given(calls=CALLS, ensure_ascii=st.booleans())
def test_calls_are_read_as_they_were_written(form, calls, ensure_ascii):
    """Any names and arguments, marks of the format in strings included."""
    try:
        json.dumps(calls, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return  # half a surrogate pair is no text
    found = parser_of(form.split()[0])(written(form, calls, ensure_ascii), ())
    assert not [call.problem for call in found.calls if call.problem]
    assert named(found.calls) == calls and found.text == ""


@pytest.mark.parametrize("form", FORMATS)
@given(
    text=st.text(
        alphabet=st.sampled_from(list('{}[]<>/"\\,:;= \nname_argumentstool_callTOOLCALLS|1.'))
    )
)
def test_any_text_is_read_without_an_exception(form, text):
    found = parser_of(form)(text, (ADD,))
    assert all(call.problem or call.name for call in found.calls)


MARKS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<arg_key>", "```json\n")
PIECES = [
    *MARKS,
    *(mark + '{"name": "' for mark in MARKS),
    *(mark + '{"name": "a", "arguments": {' for mark in MARKS),
    *(mark + '{"name": "a", "arguments": {}}' for mark in MARKS),
    *(mark + "[" for mark in MARKS),
    "{", "[", '{"a":', '{"name":', '"', "\\", '\n{"name": "a"', "\n[", "\n{", "a.call(", 'b="c",',
    "<function=a><parameter=b>", "<parameter=", "<tool_call><function=", "[ARGS]", "[CALL_ID]",
    "<tool_call>a<arg_key>", "<arg_value>", "9", "9e", "-", " ", "\n", "数", "\u202e", "\ud800",
]  # fmt: skip


class Counting:
    """A JSON decoder that counts the characters that it may have looked at."""

    def __init__(self, decoder):
        self.decoder, self.looked_at = decoder, 0

    def raw_decode(self, text, start):
        end = start
        try:
            value, end = self.decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            end = len(text) if error.msg.startswith("Unterminated") else error.pos
            raise
        finally:
            self.looked_at += end - start
        return value, end


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("piece", PIECES)
def test_forty_thousand_characters_of_garbage(form, piece, monkeypatch):
    """Each is looked at a few times at most, not once for each mark before it."""
    counting = Counting(objects._DECODER)
    monkeypatch.setattr(objects, "_DECODER", counting)
    text = piece * (40_000 // len(piece))
    found = parser_of(form)(text, (ADD,))
    assert all(call.problem or call.name for call in found.calls)
    assert counting.looked_at <= 3 * len(text)


BROKEN = {
    "no JSON": "{name: add}",
    "not closed": '{"name": "add", "arguments": {"a": 3}',
    "stands there twice": '{"name": "add", "arguments": {"a": 3, "a": 4}}',
    "no name": '{"arguments": {}}',
    "is no number": '{"name": "add", "arguments": {"a": NaN}}',
    "too large": '{"name": "add", "arguments": {"a": 1e999}}',
    "are no object": '{"name": "add", "arguments": [3]}',
    "nested too deeply": '{"name": "add", "arguments": ' + "[" * 100_000,
    "more than 64 lists": '{"name": "add", "arguments": {"a": ' + "[" * 64 + "]" * 64 + "}}",
    "99999999999999999999 has more than 64 bits": (
        '{"name": "add", "arguments": {"a": 99999999999999999999}}'
    ),
    "-9223372036854775809 has more": '{"name": "add", "arguments": [[-9223372036854775809]]}',
    "no object": "<tool_call>7</tool_call>",
}


@pytest.mark.parametrize("problem", BROKEN)
def test_what_is_wrong_with_a_call_is_said(problem):
    body = BROKEN[problem]
    text = body if body.startswith("<") else f"Look: <tool_call>{body}"
    if problem not in ("not closed", "nested too deeply", "no object"):
        text += "</tool_call>"
    found = hermes.parse(text)
    (call,) = found.calls
    expected = {"no object": "a call is an object"}.get(problem, problem)
    assert expected in call.problem and not call.arguments
    assert body[:5] in found.text, "the policy may be shown what it wrote"


def test_hermes():
    found = hermes.parse(
        'I add.\n<tool_call>{"name": "add", "arguments": "{\\"a\\": 3}"}</tool_call>\n'
        '<tool_call>{"name": "say", "arguments": {"x": "</tool_call>"}}</tool_call> So.'
        '<tool_call>{"name": "stop"}'
    )
    assert named(found.calls) == [("add", {"a": 3}), ("say", {"x": "</tool_call>"}), ("stop", {})]
    assert found.text.split() == ["I", "add.", "So."]
    broken = hermes.parse(
        '<tool_call>{"name": "a"} and more</tool_call><tool_call>{"name": "b"}</tool_call>'
    )
    assert [bool(call.problem) for call in broken.calls] == [True, False]


def test_llama3():
    assert named(llama3.parse('<|python_tag|>{"name": "add", "parameters": {"a": 3}}').calls) == [
        ("add", {"a": 3})
    ]
    built_in = llama3.parse('<|python_tag|>search.call(query="a \\"b\\"", most="3")')
    assert named(built_in.calls) == [("search", {"query": 'a "b"', "most": "3"})]
    program = llama3.parse("Let me see.<|python_tag|>print(3 + 4)")
    assert named(program.calls) == [("python", {"code": "print(3 + 4)"})]
    assert program.text == "Let me see."
    answer = llama3.parse('{"total": 7}')
    assert answer == ('{"total": 7}', ()), "an answer in JSON is no call"
    assert llama3.parse('The call is {"name": 1}').calls == ()
    (call,) = llama3.parse('{"name": "add", "parameters": {"a": }}').calls
    assert call.problem
    (call,) = llama3.parse("<|python_tag|>search.call(query=3").calls
    assert call.problem and call.name == "search"


def test_mistral():
    both = mistral.parse(
        'So. [TOOL_CALLS] [{"name": "add", "arguments": {"a": 3}, "id": "abcdefghi"}, '
        '{"name": "sub", "arguments": {}, "id": "x"}]'
    )
    assert named(both.calls) == [("add", {"a": 3}), ("sub", {})] and both.text == "So."
    assert [call.id for call in both.calls] == ["abcdefghi", ""], "templates take nine characters"
    later = mistral.parse('[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 3}[TOOL_CALLS]sub[ARGS]{}')
    assert named(later.calls) == [("add", {"a": 3}), ("sub", {})]
    assert [bool(c.problem) for c in mistral.parse("[TOOL_CALLS]add{}[TOOL_CALLS] [{").calls] == [
        True,
        True,
    ]


def test_plain_json():
    found = plain.parse(
        'I add.\n```json\n[{"name": "add", "arguments": {"a": 3}}]\n```\n{"total": 7}\nDone.'
    )
    assert named(found.calls) == [("add", {"a": 3})]
    assert found.text.split() == ["I", "add.", '{"total":', "7}", "Done."]
    assert plain.parse('Not here: {"name": "add", "arguments": {}}').calls == ()
    (call,) = plain.parse('{"name": "add", "arguments": {').calls
    assert call.problem


def test_tagged():
    coder = (
        "So.<tool_call>\n<function=add>\n<parameter=a>\n3\n</parameter>\n<parameter=b>\n4.5\n"
        "</parameter>\n<parameter=note>\ntwo\nlines\n</parameter>\n</function>\n</tool_call>"
    )
    found = tagged.parse(coder, (ADD,))
    assert named(found.calls) == [("add", {"a": 3, "b": 4.5, "note": "two\nlines"})]
    assert found.text == "So."
    assert tagged.parse(coder).calls[0].arguments["a"] == "3", "text where no schema says otherwise"
    glm = (
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>\n<arg_key>x</arg_key>\n"
        "<arg_value>a < b</arg_value>\n</tool_call>"
    )
    assert named(tagged.parse(glm, (ADD,)).calls) == [("add", {"a": 3, "x": "a < b"})]
    for broken in (
        coder.replace("</function>", ""),
        coder.replace("</tool_call>", ""),
        coder.replace("</parameter>", ""),
        glm.replace("</arg_value>", ""),
        glm.replace("<arg_key>x", "<arg_key>a"),
        "<tool_call></tool_call>",
        '<tool_call>{"name": "add"}</tool_call>',
    ):
        (call,) = tagged.parse(broken, (ADD,)).calls
        assert call.problem and not call.arguments, broken


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("chatml", "hermes"),
        ("thinking", "hermes"),
        ("llama3", "llama3"),
        ("mistral", "mistral"),
        ("mistral_later", "mistral"),
        ("glm", "tagged"),
        ("gemma", "hermes"),
    ],
)
def test_the_format_is_recognised(form, expected):
    known = FORMS[form]
    found, why = detected(known.template, (*known.special, *known.added))
    assert found == expected and why
