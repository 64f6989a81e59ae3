"""Values between two processes: the same afterwards, and plain whatever was sent."""

import json
import os
import random

import pytest

from rlboost_jax.workers.apart.plain_values import MAX_BYTES, ChannelError, Line, Reader, Writer

PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray)
MODULES = ("builtins", "collections", "fractions", "decimal", "datetime")
HOLDERS = (list, tuple, dict, set, frozenset)


def refused(*_):
    raise ChannelError("refers to what is not there")


def sent(value):
    return Reader(refused).value(json.loads(json.dumps(Writer(refused).value(value))))


def drawn(draw, depth=0):
    """A value that compares by what it holds."""
    if depth > 3 or draw.random() < 0.4:
        return draw.choice(
            (None, True, 0, -1, 2**70, 0.5, -0.0, float("inf"), 1j, "", "é\ud800", b"\0", 1.0)
        )
    members = [drawn(draw, depth + 1) for _ in range(draw.randrange(4))]
    hashable = [m for m in members if isinstance(m, (int, float, str, bytes))]
    kind = draw.choice(HOLDERS)
    if kind is dict:
        return dict(zip(hashable, members, strict=False))
    return kind(hashable[:1] if kind in (set, frozenset) else members)  # they have no order


def test_a_value_is_the_same_afterwards():
    draw = random.Random(3)
    for _ in range(3000):
        value = drawn(draw)
        assert repr(sent(value)) == repr(value) and sent(value) == value


def test_what_is_there_twice_is_one_and_may_hold_itself():
    inner = [1]
    both = sent([inner, inner, {"a": inner}])
    assert both[0] is both[1] is both[2]["a"]
    inner.append(inner)
    again = sent(inner)
    assert again[1] is again and again[0] == 1


def test_what_a_call_changed_is_put_back_into_what_was_given():
    given = {"rows": [[1], [2]]}
    writer = Writer(refused)
    node = writer.value(given)
    other = Reader(refused)
    theirs = other.value(json.loads(json.dumps(node)))
    theirs["rows"][0].append(7)
    theirs["rows"].reverse()
    after = Writer(refused, {id(c): n for n, c in other.containers.items()}).value(theirs)
    first = given["rows"][0]
    assert Reader(refused, writer.containers).value(after) is given
    assert given == {"rows": [[2], [1, 7]]} and given["rows"][1] is first


def all_plain(value, seen):
    if id(value) in seen:
        return True
    seen.add(id(value))
    if type(value) in PLAIN:
        return True
    if type(value).__module__ not in MODULES:
        return False
    members = list(value)[:100] if type(value) in HOLDERS else []
    if isinstance(value, dict):
        members = [*value, *value.values()]
    return all(all_plain(member, seen) for member in members)


def test_whatever_is_sent_is_read_as_plain_values_or_not_at_all():
    """Nodes of every kind with members that do not belong there."""
    draw = random.Random(5)
    kinds = ("int", "complex", "bytes", "tuple", "frozenset", "again", "copy", "list", "dict")
    kinds += ("set", "bytearray", "object", "x")
    places = ("builtins", "collections", "fractions", "datetime", "os", "numpy")
    names = ("range", "Counter", "deque", "Fraction", "date", "timedelta", "system", "ndarray")

    def node(depth=0):
        if depth > 3 or draw.random() < 0.3:
            return draw.choice((None, True, 0, -1, 10**9, 1e308, "0x4", "ff", "", "2024-02-29", {}))
        if draw.random() < 0.2:
            return ["copy", draw.choice(places), draw.choice(names), node(depth + 1)]
        members = [node(depth + 1) for _ in range(draw.randrange(3))]
        return draw.choice(
            (members, [draw.choice(kinds), *members], [draw.choice(kinds), 0, members])
        )

    read = 0
    for _ in range(20_000):
        try:
            value = Reader(refused).value(node())
        except Exception:
            continue
        read += 1
        assert all_plain(value, set()) or type(value).__module__ == "numpy", value
    assert read > 2000


LARGE = (MAX_BYTES + 1).to_bytes(4, "big")
DEEP = (10_000).to_bytes(4, "big") + b"[" * 10_000


@pytest.mark.parametrize("data", [b"", b"\0\0", LARGE, b"\0\0\0\2{[", DEEP])
def test_what_is_no_message_is_broken(data):
    incoming, theirs = os.pipe()
    os.write(theirs, data)
    os.close(theirs)
    with pytest.raises(ChannelError):
        Line(incoming, -1).receive()
    os.close(incoming)
