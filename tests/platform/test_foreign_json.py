"""JSON of others: a value of the kind that was asked for, or one line that names the file."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlboost_jax.platform.bounded_files import Unreadable
from rlboost_jax.platform.foreign_json import MOST_DEPTH, MOST_DIGITS, decode, deeper, read

LIMIT = 10_000


def nested(depth: int) -> str:
    return '{"a": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b'{"a": ', "is no JSON (Expecting value: line 1, column 7)"),
        (b'{"a": 1} {', "is no JSON (Extra data: line 1, column 10)"),
        (b'{"a": "\xff"}', "is not UTF-8 (byte 7)"),
        ('{"a": 1}'.encode("utf-16"), "is UTF-16, UTF-32 or no text at all"),
        ('{"a": 1}'.encode("utf-16-le"), "is UTF-16, UTF-32 or no text at all"),
        ('{"a": 1}'.encode("utf-32-be"), "is UTF-16, UTF-32 or no text at all"),
        (b"\0" * 64, "is UTF-16, UTF-32 or no text at all"),
        (b'{"a": 1}' + b" " * LIMIT, "has 10,008 bytes"),
        (nested(MOST_DEPTH + 1), "is nested too deeply: more than 100"),
        ("[" * 9_000, "is nested too deeply: more than 100"),
        ('{"a":' * 1_500, "is nested too deeply: more than 100"),
        ('{"a": ' + "9" * (MOST_DIGITS + 1) + "}", "has a number of 309 digits"),
        ('{"a": ' + "9" * 9_000 + "}", "has a number of 9,000 digits"),
        ('{"a": 1, "b": {"a": 2, "a": 3}}', "has two values of the key 'a' in one object"),
        ('{"a": ["b", "\\ud800"]}', "has half of a surrogate pair in 'a[1]'"),
        ('{"a": "\ud800"}', "has half of a surrogate pair in 'a'"),
        ('{"\\uDC00": 1}', r"has half of a surrogate pair in '\\udc00'"),
        ("[1]", "is a list"),
        ('"a"', "is a text"),
        ("7", "is a number"),
        ("null", "is null"),
        ("true", "is true or false"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_such_json_is_one_line(text: bytes | str, reason: str) -> None:
    with pytest.raises(Unreadable) as caught:
        decode(text, "x.json", dict, limit=LIMIT)
    assert caught.value.reason.startswith(reason)
    assert str(caught.value).startswith(f"x.json {reason}")
    assert str(caught.value).endswith("; expected a JSON object of at most 10,000 bytes")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        '\ufeff {"a": [1, -2.5e3, null, true]} ',
        '{"a": 1, "a": 1}',  # says nothing else the second time
        '{"a": "\\ud83d\\ude00 数"}',
        nested(MOST_DEPTH),
        json.dumps({"[" * 200: "{" * 200}),  # brackets that open nothing
        json.dumps([[]] * 500),
        "-" + "9" * MOST_DIGITS,
        '{"a": 1e400, "b": -Infinity}',
    ],
    ids=lambda value: value[:20],
)
def test_all_else_is_what_python_says(text: str) -> None:
    expected = json.loads(text.removeprefix("\ufeff"))
    for form in (text, text.encode()):
        assert decode(form, "x", object) == expected
    assert math.isnan(decode("NaN", "x", object))  # type: ignore[arg-type]


def test_halves_of_pairs_where_a_reader_has_its_own_word_for_them() -> None:
    assert decode('{"a": "\\ud800"}', "x", dict, halves=True) == {"a": "\ud800"}


@pytest.mark.parametrize("most", range(4))
def test_depth_is_counted_as_brackets_are(most: int) -> None:
    for value, depth in ((1, 0), ([], 1), ({"a": 1}, 1), ([1, {"a": []}, 2], 3)):
        assert deeper(value, most) == (depth > most)


PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder": (os.mkdir, "is a folder and no file"),
    "a FIFO": (os.mkfifo, "is a FIFO and no file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is a device and no file"),
    "a sparse file": (lambda path: (path.touch(), os.truncate(path, 2**40)), "has 1,099,511,627"),
    "a file without size": (lambda path: path.symlink_to("/proc/self/smaps"), "has more than 1"),
    "a short file": (lambda path: path.write_text('{"a": '), "is no JSON"),
}


@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_such_file_is_one_line(place: str, tmp_path: Path) -> None:
    make, reason = PLACES[place]
    path = tmp_path / "x.json"
    make(path)
    with pytest.raises(Unreadable) as caught:
        read(path, dict, limit=100)
    assert str(caught.value).startswith(f"{path} {reason}")
    assert str(caught.value).endswith("; expected a JSON object of at most 100 bytes")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Unreadable):
        read(path, dict, limit=100)
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_file_and_no_way_to_it_are_errors_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for name in ("none", "loop", "file/x"):
        with pytest.raises(OSError, match="/".join((str(tmp_path), name))):
            read(tmp_path / name, dict)
