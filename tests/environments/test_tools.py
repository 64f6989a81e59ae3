"""A tool's schema and checks are those of the function that it is made of."""

import asyncio
import functools
import inspect
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from rlboost_jax.environments.tools import BadArguments, BadTool, tool, toolbox


@dataclass
class Place:
    city: str


@tool(idempotent=True, time_limit_seconds=3.0)
def weather(
    place: Place, days: int = 1, unit: Literal["C", "F"] = "C", *, key: str
) -> dict[str, Any]:
    """Tell the weather.

    Of some days.
    """
    return {"city": place.city, "days": days, "unit": unit, "key": key}


def test_name_description_and_schema_are_the_functions() -> None:
    assert (weather.name, weather.idempotent, weather.time_limit_seconds) == ("weather", True, 3.0)
    assert weather.description == "Tell the weather.\n\nOf some days."
    assert weather.parameters == {
        "type": "object",
        "properties": {
            "place": {"$ref": "#/$defs/Place"},
            "days": {"type": "integer", "default": 1},
            "unit": {"enum": ["C", "F"], "default": "C"},
        },
        "required": ["place"],
        "$defs": {
            "Place": {
                "title": "Place",
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            }
        },
    }


def test_it_gets_checked_arguments_and_its_key_and_says_json() -> None:
    said = weather.run({"place": {"city": "Ulm"}}, "k7")
    assert said == '{"city":"Ulm","days":1,"unit":"C","key":"k7"}'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "missing `place`"),
        ({"place": {"city": "Ulm"}, "dayz": 2}, "no argument 'dayz'; did you mean 'days'?"),
        ({"place": {"city": "Ulm"}, "key": "mine"}, "no argument 'key'; known: "),
        ({"place": {"city": "Ulm"}, "days": "two"}, "Expected `int`, got `str` - at `$.days`"),
        ({"place": {"city": "Ulm"}, "unit": "K"}, "Invalid enum value 'K' - at `$.unit`"),
    ],
)
def test_arguments_that_it_does_not_take_are_said(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(BadArguments) as raised:
        weather.run(arguments, "k")
    assert str(raised.value).startswith(said)


def test_a_coroutine_function_is_awaited() -> None:
    @tool
    async def double(a: int) -> int:
        return 2 * a

    async def run() -> str:
        said = double.run({"a": 4}, "k")
        assert inspect.isawaitable(said)
        return await said

    assert asyncio.run(run()) == "8"


def test_methods_make_a_toolbox() -> None:
    class Shop:
        def buy(self, what: str) -> str:
            return f"bought {what}"

    box = toolbox(Shop().buy, weather)
    assert list(box) == ["buy", "weather"] and not box["buy"].idempotent
    assert box["buy"].run({"what": "tea"}, "k") == "bought tea"
    with pytest.raises(BadTool, match="have one name"):
        toolbox(weather, weather)


def test_what_no_json_stands_for_is_refused_when_the_tool_is_made() -> None:
    def odd(a: threading_lock) -> None: ...

    def many(*args: int) -> None: ...

    def unknown(a: "Nobody") -> None: ...  # type: ignore[name-defined]

    for function in (odd, many, unknown, max):
        with pytest.raises(BadTool, match=function.__name__) as caught:
            tool(function)
        assert "\n" not in str(caught.value)
    for nameless in (Doubled(), functools.partial(max, 1)):
        with pytest.raises(BadTool, match="has no name; give tool"):
            tool(nameless)


class Doubled:
    def __call__(self, x: int) -> int:
        return 2 * x


def test_what_is_called_like_a_function_is_a_tool() -> None:
    def add(x: int, y: int = 0) -> int:
        return x + y

    for made, read in (
        (tool(Doubled(), name="double"), "6"),
        (tool(functools.partial(add, y=1), name="next"), "4"),
        (tool(functools.wraps(add)(lambda *args, **named: add(*args, **named))), "3"),
    ):
        assert made.run({"x": 3}, "k") == read
        with pytest.raises(BadArguments, match="Expected `int`"):
            made.run({"x": "3"}, "k")


def test_lists_by_default_are_each_calls_own() -> None:
    def more(of: list[int] = [1, 2]) -> list[int]:  # noqa: B006
        of.append(3)
        return of

    made = tool(more)
    assert [made.run({}, "k") for _ in range(2)] == ["[1,2,3]"] * 2
    assert made.run({"of": [0]}, "k") == "[0,3]"


class threading_lock:
    """No JSON stands for it."""
