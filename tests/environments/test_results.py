"""What tools return is all there in what the policy reads, or is refused by name."""

import collections
import datetime
import decimal
import enum
import fractions
import json
import pathlib
import re
import types
import uuid
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from rlboost_jax.environments.results import BadResult, text_of
from rlboost_jax.environments.tools import tool


@dataclass
class Measured:
    mean: Any
    all: Any


class Model:
    """As pydantic's have it."""

    def model_dump(self, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"x": 1}


class Colour(enum.Enum):
    RED = "red"


class Named(enum.StrEnum):
    RED = "red"


class Day(datetime.date):
    """As pandas has dates, times and texts of its own."""


class Span(datetime.timedelta): ...


class Words(str): ...


class Number(int): ...


class Table(collections.OrderedDict[str, int]): ...


DERIVED = ["2024-02-29", "P1D", "a", 1, {"a": 1}]
Point = collections.namedtuple("Point", "x y")
MANY = list(range(1200))


@pytest.mark.parametrize(
    ("result", "read"),
    [
        ({"mean": np.float32(1.5), "all": np.arange(1200)}, {"mean": 1.5, "all": MANY}),
        (np.float64(0.25), 0.25),
        (np.int8(-3), -3),
        (np.bool_(True), True),
        (np.longdouble(1.5), 1.5),
        (np.float16(0.5), 0.5),
        (np.zeros((2, 0)), [[], []]),
        (np.array(7), 7),
        (np.arange(4, dtype=ml_dtypes.bfloat16).reshape(2, 2), [[0.0, 1.0], [2.0, 3.0]]),
        (np.array([{"a": np.int64(1)}, None], dtype=object), [{"a": 1}, None]),
        (np.array(["ä", "b"]), ["ä", "b"]),
        (np.datetime64("2024-02-29"), "2024-02-29"),
        (np.array(["2024-02-29T01", "NaT"], "M8[ns]"), ["2024-02-29T01:00:00.000000000", None]),
        (np.array("2024-02-29", "M8[D]"), "2024-02-29"),
        ([Day(2024, 2, 29), Span(days=1), Words("a"), Number(1), Table(a=1)], DERIVED),
        (np.array([(1, 0.5)], [("a", "i4"), ("b", "f4")]), [{"a": 1, "b": 0.5}]),
        (np.array([(1, 0.5)], [("a", "i4"), ("b", "f4")])[0], {"a": 1, "b": 0.5}),
        (np.ma.array([1, 2], mask=[False, True]), [1, None]),
        (jnp.arange(1200), MANY),
        (jnp.float32(1.5), 1.5),
        ({np.int64(3): np.float32(0.5), "b": 1}, {"3": 0.5, "b": 1}),
        (Measured(mean=np.float32(2), all=(np.int64(1),)), {"mean": 2.0, "all": [1]}),
        ([Model()], [{"x": 1}]),
        (Point(np.int64(1), 2), [1, 2]),
        (Colour.RED, "red"),
        ({1, 2, 3}, [1, 2, 3]),
        (collections.deque([1, np.int64(2)]), [1, 2]),
        ({"a": 1}.keys(), ["a"]),
        (range(3), [0, 1, 2]),
        (collections.UserString("a"), "a"),
        (types.SimpleNamespace(a=np.int64(1)), {"a": 1}),
        (b"\x00\xff", "AP8="),  # RFC 4648
        (datetime.datetime(2024, 2, 29, 1, 2, 3), "2024-02-29T01:02:03"),  # RFC 3339
        (datetime.date(2024, 2, 29), "2024-02-29"),
        (datetime.timedelta(days=1), "P1D"),  # ISO 8601
        (decimal.Decimal("1.50"), "1.50"),
        (fractions.Fraction(1, 3), "1/3"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        ([float("nan"), np.float32("nan"), float("inf"), np.array(-np.inf)], [None] * 4),
        (2**80, 2**80),
        ({True: 1, None: 2, ("a", 1): 3}, {"True": 1, "None": 2, "('a', 1)": 3}),
        (None, None),
        ([], []),
        (["\ud800", np.int64(1)], ["\ud800", 1]),
    ],
)
def test_all_of_a_result_is_read(result: Any, read: Any) -> None:
    assert json.loads(text_of(result, "stats")) == read


def test_texts_are_read_as_they_are() -> None:
    for text in ("ä\n", np.str_("ä\n")):
        assert text_of(text, "stats") == "ä\n" and type(text_of(text, "stats")) is str
    assert text_of(Named.RED, "stats") == "red"


@dataclass
class Loop:
    inner: Any = None


class Broken:
    def model_dump(self, mode: str) -> Any:
        raise RuntimeError("model_dump\nfails of itself")


def endless() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (object(), "builtins.object"),
        ({"a": [1, object()]}, "builtins.object"),
        (np.array([object()]), "builtins.object"),
        ((each for each in [1]), "builtins.generator"),
        (lambda: 1, "builtins.function"),
        (np.array, "builtins.builtin_function_or_method"),
        (np.ndarray, "builtins.type"),
        (Model, "builtins.type"),
        (json, "builtins.module"),
        (Loop(inner=re.compile("a")), "re.Pattern"),
        ({object(): 1}, "builtins.object"),
        (ValueError("x"), "builtins.ValueError"),
        (endless(), "without end"),
        (Broken(), "model_dump fails of itself"),
    ],
)
def test_what_has_no_json_form_is_refused_by_name(result: Any, kind: str) -> None:
    """And never read as an address, which differs with every call."""
    with pytest.raises(BadResult) as raised:
        text_of(result, "stats")
    said = str(raised.value)
    assert said.startswith(f"tool 'stats' returned {type(result).__name__}: ") and kind in said
    assert "0x" not in said and "\n" not in said


def test_a_table_with_labels_is_no_list() -> None:
    """Which would lose them."""
    series = type("Series", (), {"index": [], "tolist": lambda self: [1]})
    series.__module__ = "pandas"
    with pytest.raises(BadResult, match=r"no JSON stands for pandas\.Series"):
        text_of(series(), "stats")


def test_a_tool_of_a_function_says_which_it_is() -> None:
    @tool
    def stats() -> Any:
        return {"mean": np.float32(1.5), "all": np.arange(1200)}

    @tool(name="odd")
    async def strange() -> Any:
        return object()

    assert json.loads(str(stats.run({}, "k"))) == {"mean": 1.5, "all": MANY}
    with pytest.raises(BadResult, match=r"tool 'odd' returned object"):
        strange.run({}, "k").send(None)  # type: ignore[union-attr]
