"""Questions with tools by name: what is asked, what the tools say, what the answer earns."""

import pytest

from rlboost_jax.environments.builtin.chat_tools import ChatTools
from rlboost_jax.environments.builtin.corpus import Document, build
from rlboost_jax.environments.builtin.toolsets import toolset
from rlboost_jax.environments.protocol import Tool
from rlboost_jax.environments.tools import BadTool, tool
from rlboost_jax.platform.mistakes import ConfigError
from tests.environments.builtin.playing import last, played

ROW = {"question": "What is 12 * 12?", "answer": "144"}


def call(name, **arguments):
    import json

    return json.dumps({"name": name, "arguments": arguments})


def script(*turns):
    return lambda said, number: turns[number]


def make(tools=None, **options):
    return lambda: ChatTools({"calculator": {}} if tools is None else tools, **options)


def test_a_tool_then_the_answer():
    turns = script(call("calculator", expression="12 * 12"), "144")
    first, steps = played(make(check="exact"), turns, ROW)
    assert list(first) == [{"role": "user", "content": "What is 12 * 12?"}]
    (said,) = steps[0].step.observation
    assert (said["role"], said["name"], said["content"]) == ("tool", "calculator", "144")
    assert not steps[0].step.done
    assert (last(steps).reward, last(steps).metrics["solved"]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("text", "options", "reward"),
    [
        ("145", {"check": "exact"}, 0.0),
        ("it is \\boxed{144}", {"check": "exact", "extract": "boxed"}, 1.0),
        ("it is 144", {"check": "exact", "extract": "boxed"}, 0.0),
        ("it is 288/2", {"check": "math"}, 1.0),
        ("", {"check": "exact"}, 0.0),
        ("144", {}, 0.0),  # by `rewards.functions` alone
    ],
)
def test_answers(text, options, reward):
    if options.get("check") == "math":
        pytest.importorskip("math_verify")
    _, steps = played(make(**options), script(text), ROW)
    assert len(steps) == 1 and last(steps).done and last(steps).reward == reward


def test_calls_that_go_wrong_are_for_the_policy_to_read():
    turns = script(
        call("calculator", expression="1 / 0"),
        call("calculator"),
        call("calculate", expression="1"),
        "144",
    )
    _, steps = played(make(check="exact"), turns, ROW)
    said = [s.step.observation[0]["content"] for s in steps[:3]]
    assert "division by zero" in said[0]
    assert "expression" in said[1]
    assert "no tool 'calculate'" in said[2]
    assert last(steps).reward == 1.0


def test_messages_of_a_row_and_a_system_prompt():
    asked = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    row = {"chat": [*asked, {"role": "user", "content": "c"}]}
    first, _ = played(make(question="chat", system="S"), script("x"), row)
    assert [m["content"] for m in first] == ["S", "a", "b", "c"]


def test_names_of_python_stay_from_turn_to_turn():
    turns = script(call("python", code="x = 12"), call("python", code="x * x"), "144")
    try:
        _, steps = played(make({"python": {"memory_mb": 400}}), turns, ROW)
    except Exception as error:
        pytest.skip(f"programs cannot be contained here: {error}")
    assert steps[1].step.observation[0]["content"] == "144"


def test_search(tmp_path):
    build([Document(name="a", title="", text="Basel lies on the Rhine")], tmp_path / "c")
    turns = script(call("search", query="Rhine"), "x")
    _, steps = played(make({"search": {"corpus": str(tmp_path / "c")}}), turns, ROW)
    assert steps[0].step.observation[0]["content"] == "[a] Basel lies on the Rhine"


def own_function(n: int) -> int:
    """Twice as much."""
    return 2 * n


own_tool = tool(own_function, name="doubled")  # type: ignore[call-overload]


def test_tools_of_ones_own():
    (made,) = toolset(f"{__name__}:own_function", {}).tools
    assert isinstance(made, Tool) and made.run({"n": 4}, "") == "8"
    assert toolset(f"{__name__}:own_tool", {}).tools == (own_tool,)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("calculater", {}, "calculator"),
        ("python", {"minutes": 1}, "minutes"),
        ("search", {}, "corpus"),
        ("no_such_module:f", {}, "no_such_module"),
        ("json:no_such", {}, "no_such"),
        ("json:dumps", {"indent": 2}, "no options"),
    ],
)
def test_mistakes_in_tools(name, options, why):
    with pytest.raises(BadTool, match=why):
        toolset(name, options)


def test_mistakes_in_options():
    with pytest.raises(ConfigError, match="'exact'"):
        make(check="excat")()
    with pytest.raises(ConfigError, match="'boxed'"):
        make(extract="box")()
    with pytest.raises(ConfigError, match="the name 'calculator'"):
        make({"calculator": {}, f"{__name__}:calculator": {}})()


def calculator(expression: str) -> str:
    return expression
