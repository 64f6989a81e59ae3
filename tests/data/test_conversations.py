"""Conversations of rows in every form that people publish, against what transformers renders."""

import json

import pytest

from rlboost_jax.data.conversations import conversation_in, tools_in
from rlboost_jax.data.dataset import Dataset
from rlboost_jax.data.questions import identity
from rlboost_jax.data.row import BrokenRow
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings import foreign_keys
from tests.chat.conftest import ADD, saved
from tests.chat.forms import FORMS, Form

pytestmark = pytest.mark.usefixtures("unjudged")

CALL = {"name": "add", "arguments": {"a": 3, "b": 4}}
SAID = [
    {"role": "user", "content": "What is 3 + 4?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abcdefghi", "type": "function", "function": CALL}],
    },
    {"role": "tool", "content": "7", "name": "add", "tool_call_id": "abcdefghi"},
]
SOLUTION = {"role": "assistant", "content": "It is 7."}
TEXT_CALL = {**CALL, "arguments": json.dumps(CALL["arguments"])}
SHAREGPT = [
    {"from": "human", "value": "What is 3 + 4?"},
    {"from": "function_call", "value": json.dumps(CALL)},
    {"from": "observation", "value": "7"},
    {"from": "gpt", "value": "It is 7."},
]
FORMS_OF_ONE = {
    "as OpenAI has it": [*SAID, SOLUTION],
    "null content": [SAID[0], {**SAID[1], "content": None}, SAID[2], {**SOLUTION, "content": None}],
    "no content": [SAID[0], {k: v for k, v in SAID[1].items() if k != "content"}, SAID[2]],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "What is "}, {"text": "3 + 4?"}]},
        {**SAID[1], "content": []},
        {**SAID[2], "content": ["7"]},
    ],
    "arguments as text": [SAID[0], {**SAID[1], "tool_calls": [{"function": TEXT_CALL}]}, SAID[2]],
    "a call alone": [SAID[0], {**SAID[1], "tool_calls": [CALL]}, SAID[2]],
    **{
        f"arguments called {name}": [
            SAID[0],
            {**SAID[1], "tool_calls": {"name": "add", name: CALL["arguments"]}},
            SAID[2],
        ]
        for name in ("parameters", "args", "input")
    },
    "calls as text": [SAID[0], {**SAID[1], "tool_calls": json.dumps([CALL])}, SAID[2]],
    "empty fields": [{**m, "reasoning_content": None, "images": []} for m in SAID],
    "ShareGPT": SHAREGPT,
    "ShareGPT, object": [SHAREGPT[0], {"from": "function_call", "value": [CALL]}, *SHAREGPT[2:]],
    "tags of other trainers": [
        {"from": "Human", "value": SHAREGPT[0]["value"]},
        {"from": "tool_call", "value": json.dumps(CALL)},
        {"from": "tool_response", "value": "7"},
        {"from": "GPT", "value": "It is 7."},
    ],
    "tags with contents, roles with values": [
        {"from": "human", "content": "What is 3 + 4?"},
        {"role": "model", "value": None, "content": None, "tool_calls": [CALL]},
        {"role": "ipython", "value": "7"},
    ],
    "before there were tools": [
        SAID[0],
        {"role": "assistant", "content": None, "function_call": TEXT_CALL},
        {"role": "function", "name": "add", "content": "7"},
    ],
    "lists in an object": {
        "role": [message["role"] for message in SAID],
        "content": [message["content"] for message in SAID],
        "tool_calls": [None, SAID[1]["tool_calls"], None],
    },
    "all of it as text": json.dumps(SAID),
    "ShareGPT as text": json.dumps(SHAREGPT),
}
BARE = ADD["function"]
TOOLS_OF_ONE = [
    *([ADD], [BARE], json.dumps([ADD]), json.dumps([BARE]), [json.dumps(ADD)], [json.dumps(BARE)]),
    *(
        [{name if key == "parameters" else key: said for key, said in BARE.items()}]
        for name in ("input_schema", "inputSchema")
    ),
]


@pytest.fixture(scope="module")
def chatml(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("chatml"), FORMS["chatml"])


@pytest.fixture
def prompts(build, tmp_path):
    """`prompts(rows, tokenizer=…)`: texts of the prompts of a run on these rows."""

    def made(rows, table=False, **data):
        path = tmp_path / ("rows.parquet" if table else "rows.jsonl")
        if table:
            pyarrow = pytest.importorskip("pyarrow")
            pyarrow.parquet = pytest.importorskip("pyarrow.parquet")
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = {"messages_column": "messages", "heldout_share": 0.0, **data}
        run = build(path, rewards=[{"name": "format"}], engine_prompt_tokens=4096, **options)
        dataset = Dataset(run)
        dataset.close()
        train = dataset.train(0)
        return [train[index].problem.prompt for index in range(len(train))]

    return made


def theirs(folder, messages, tools=None, **options):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=True, **options
    )


def test_each_form_of_a_conversation_is_what_transformers_renders(chatml, prompts):
    rows = [
        {"messages": messages, "tools": TOOLS_OF_ONE[n % len(TOOLS_OF_ONE)]}
        for n, messages in enumerate(FORMS_OF_ONE.values())
    ]
    found = prompts(rows, tokenizer=str(chatml), tools_column="tools", bad_rows="error")
    wanted = theirs(chatml, SAID, [ADD])
    assert '"arguments": {"a": 3, "b": 4}' in wanted and '"description": ' in wanted
    assert dict(zip(FORMS_OF_ONE, found, strict=True)) == dict.fromkeys(FORMS_OF_ONE, wanted)


def test_a_table_fills_in_what_was_never_said(chatml, prompts):
    """Arrow gives each call the arguments of all others, and each message all fields."""
    other = {"name": "find", "arguments": {"word": "x"}}
    conversations = [
        [SAID[0], {**SAID[1], "tool_calls": [{"function": call}]}, SAID[2]]
        for call in (CALL, other)
    ]
    rows = [{"messages": messages} for messages in conversations]
    found = prompts(rows, table=True, tokenizer=str(chatml))
    assert found == [theirs(chatml, messages) for messages in conversations]


@pytest.mark.parametrize("name", ["tools", "functions", "system", "images", "videos"])
def test_columns_of_conversations_that_nothing_reads_are_named(chatml, prompts, caplog, name):
    foreign_keys.warn_once.cache_clear()
    rows = [{"messages": SAID[:1], name: "x", "split": "train"}]
    assert prompts(rows, tokenizer=str(chatml)) == [theirs(chatml, SAID[:1])]
    (line,) = caplog.messages
    assert line.startswith(f"data.source has {name!r}, and no prompt has what is in there")


def test_no_tools_are_none(chatml, prompts):
    rows = [{"messages": SAID[:1], "tools": none} for none in (None, [], "", "[]", "null")]
    found = prompts(rows, tokenizer=str(chatml), tools_column="tools")
    assert found == [theirs(chatml, SAID[:1])] * 5


def test_a_template_that_wants_arguments_as_text_gets_it(tmp_path, prompts):
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor %}; {% endfor %}"
    )
    rows = [{"messages": FORMS_OF_ONE["arguments as text"]}, {"messages": SAID}]
    found = prompts(rows, tokenizer="bytes", chat_template=template)
    assert found == ['user: What is 3 + 4?; assistant: add({"a": 3, "b": 4}); tool: 7; '] * 2


THINKS = Form(
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n{% endif %}",
    ("<|im_end|>",),
    ("<|im_start|>",),
)


def test_options_and_thinking_reach_the_template(tmp_path, prompts):
    folder = saved(tmp_path, THINKS)
    said = [
        SAID[0],
        {"role": "assistant", "content": "7", "reasoning_content": "3, 4, …"},
        {"role": "user", "content": "Sure?"},
    ]
    texts = []
    for options in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
        (text,) = prompts([{"messages": said}], tokenizer=str(folder), chat_options=options)
        assert text == theirs(folder, said, **options)
        texts.append(text)
    assert texts[0] == texts[2] != texts[1] and "<think>3, 4, …</think>7" in texts[0]
    with pytest.raises(ConfigError, match=r"chat_options has 'enable_thinkin', which the chat"):
        prompts([{"messages": said}], tokenizer=str(folder), chat_options={"enable_thinkin": 1})
    with pytest.raises(ConfigError, match=r"chat_options has 'tools', which a run sets itself"):
        prompts([{"messages": said}], tokenizer=str(folder), chat_options={"tools": []})


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"role": "user", "content": None}, "m[1].content is None, and no text"),
        ({"role": "user"}, "m[1].content is None"),
        ({"role": "assistant", "content": None}, "m[1].content is None"),
        ({"role": "user", "content": 7}, "m[1].content is 7, and no text"),
        ({"role": "user", "content": {"text": "x"}}, "m[1].content is {'text': 'x'}"),
        ({"role": "critic", "content": "x"}, "m[1].role is 'critic'; known: system, developer, "),
        ({"role": ["user"], "content": "x"}, "m[1].role is ['user']"),
        ({"content": "x"}, "m[1] has neither 'role' nor 'from'"),
        ({"from": "narrator", "value": "x"}, "m[1].from is 'narrator'; known: system, developer, "),
        ({"from": "human", "text": "x"}, "m[1].value is None"),
        (
            {"from": "function_call", "value": "add(3)"},
            "'m[1].value' is text and no JSON: 'add(3)'",
        ),
        ("hello", "m[1] is 'hello', and no message"),
        ({"role": "user", "content": "x", "images": ["a.png"]}, "m[1].images is no text"),
        (
            {"role": "user", "content": ["x", {"type": "image_url", "image_url": {"url": "u"}}]},
            "m[1].content[1] is of type 'image_url', and prompts are text alone",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "m[1].content[0].text is None"),
        ({"role": "user", "content": [3]}, "m[1].content[0] is 3"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "'m[1].tool_calls[0].function.arguments' is text and no JSON: '{'",
        ),
        (
            {"role": "assistant", "tool_calls": [CALL, {"name": "f", "arguments": [1]}]},
            "m[1].tool_calls[1].arguments is [1], and no JSON object",
        ),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "[0].function.name is None"),
        ({"role": "assistant", "tool_calls": "add"}, "'m[1].tool_calls' is text and no JSON"),
        ({"role": "assistant", "tool_calls": 7}, "m[1].tool_calls is 7, and no list of calls"),
        ({"role": "assistant", "tool_calls": ["add"]}, "m[1].tool_calls[0] is 'add', and no call"),
    ],
)
def test_an_error_names_the_field_that_is_wrong(message, says):
    with pytest.raises(BrokenRow) as caught:
        conversation_in([SAID[0], message, SAID[0]], "m")
    assert says in str(caught.value)


def test_lists_in_an_object_must_be_of_one_length():
    for lists in ({"role": ["user"], "content": []}, {"role": "user", "content": ["x"]}):
        with pytest.raises(BrokenRow, match="and no list"):
            conversation_in(lists, "m")


@pytest.mark.parametrize("arguments", [None, "", " ", "{}", {}])
def test_no_arguments_are_an_empty_object(arguments):
    call = {"function": {"name": "now", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    found = conversation_in([SAID[0], message, SAID[2]], "m")[1]["tool_calls"]
    assert found == [{"type": "function", "function": {"name": "now", "arguments": {}}}]


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ("add", "'t' is text and no JSON: 'add'"),
        ({"name": "add"}, "'t' is {'name': 'add'}, and no list"),
        (["add"], "'t[0]' is text and no JSON: 'add'"),
        ([ADD, {"type": "web_search", "function": {}}], "t[1].type is 'web_search'"),
        ([{"type": "web_search"}], "t[0].name is None"),
        ([{"type": "function", "function": {"name": 3}}], "t[0].function.name is 3"),
    ],
)
def test_tools_that_are_none_are_named(tools, says):
    with pytest.raises(BrokenRow) as caught:
        tools_in(tools, "t")
    assert says in str(caught.value)


def test_fields_that_nobody_knows_are_said_once(chatml, prompts, caplog):
    foreign_keys.warn_once.cache_clear()
    call = {"function": {**CALL, "own_id": 1}, "own_kind": "x"}
    part = {"type": "text", "text": "Sum?", "own_cache": True}
    messages = [
        {"role": "user", "content": [part], "own_weight": 0.5},
        {**SAID[1], "tool_calls": [call]},
        SAID[2],
    ]
    tool = {"type": "function", "function": {**BARE, "own_price": 1}, "own_version": 2}
    rows = [{"messages": messages, "tools": [tool]}] * 2
    prompts(rows, tokenizer=str(chatml), tools_column="tools")
    said = [record.message for record in caplog.records if "passed over" in record.message]
    assert sorted(said) == [
        "calls of messages: passed over: own_id",
        "functions of rows: passed over: own_price",
        "parts of messages: passed over: own_cache",
        "the chat template: passed over: own_weight",
        "tool_calls of messages: passed over: own_kind",
        "tools of rows: passed over: own_version",
    ]


def test_calls_and_tools_are_said_where_a_template_has_no_place_for_them(prompts, caplog):
    foreign_keys.warn_once.cache_clear()
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    rows = [{"messages": SAID, "tools": [ADD]}]
    prompts(rows, tokenizer="bytes", chat_template=template, tools_column="tools")
    assert "the chat template: passed over: name, tool_calls, tools" in caplog.messages


def test_a_prompt_that_is_a_conversation_says_where_it_belongs(prompts, chatml):
    with pytest.raises(ConfigError, match=r"a conversation goes into data.messages_column"):
        prompts([{"prompt": SAID}], messages_column="", prompt_column="prompt", tokenizer="bytes")


def test_a_question_is_the_same_by_what_is_said():
    """Plain ones by roles and contents alone, as ever: their hashes choose what is held out."""
    plain = conversation_in([SAID[0], SOLUTION], "m")
    assert identity(plain) == b'[["user", "What is 3 + 4?"]]'
    assert identity(conversation_in(SHAREGPT[:1], "m")) == identity(plain)
    others = [
        identity(plain, tools_in([ADD], "t")),
        identity(plain, tools_in([{**BARE, "name": "sum"}], "t")),
        identity(conversation_in(SAID, "m")),
        identity(conversation_in(SAID[:1] + SAID[2:], "m")),
        identity(conversation_in([{**SAID[0], "name": "Ann"}], "m")),
    ]
    assert len({identity(plain), *others}) == 6
    other_ids = [{**SAID[0], "weight": 0.5}, {**SAID[1], "tool_calls": [CALL]}, SAID[2]]
    assert identity(conversation_in(other_ids, "m")) == identity(conversation_in(SAID, "m"))


@pytest.mark.parametrize("name", ["tools_column", "chat_options"])
def test_an_environment_makes_its_own_prompts(name, build):
    import dataclasses

    from rlboost_jax.settings.validation.data_checks import dataset_mistakes

    run = build("rows.jsonl", **{name: {"x": 1} if name == "chat_options" else "tools"})
    run = dataclasses.replace(run, environment=dataclasses.replace(run.environment, name="own:it"))
    assert any(f"data.{name} is " in line for line in dataset_mistakes(run))
