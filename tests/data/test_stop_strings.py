"""Stop strings, against a search in the text token by token."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.data.stop_strings import NO_STRINGS, StopStrings
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.sequences.stop_table import StopTable, stop_table

PIECES = (
    *(b"a", b"b", b"ab", b"ba", b"aab", b"abab", b"bb", b"<", b"</", b"/a", b">", b"x</a>y"),
    *(b"\xe6\x95", b"\xb0\xe5", b"\xad\xa6", "数学".encode(), "ä".encode(), b"\xc3", b"\xa4"),
    *(b"\n", b"", b" ab a"),
)
STRINGS = ("ab", "aba", "bab", "</a>", "\n\n", "数学", "ä", "aaaa", "b数", "xy", "ba\nab")


def text_of(tokens: list[int]) -> bytes:
    return b"".join(PIECES[token] for token in tokens)


def end_by_hand(tokens: list[int], strings: tuple[str, ...]) -> int | None:
    """The first number of tokens whose text has a string in it."""
    for end in range(1, len(tokens) + 1):
        if any(string.encode() in text_of(tokens[:end]) for string in strings):
            return end
    return None


TOKENS = st.lists(st.integers(0, len(PIECES) - 1), max_size=14).filter(
    lambda tokens: b"" not in [PIECES[token] for token in tokens]
)
SOME = st.lists(st.sampled_from(STRINGS), min_size=1, max_size=4).map(tuple)


@given(TOKENS, SOME, st.data())
def test_the_end_of_a_turn_is_where_its_text_has_a_string(
    tokens: list[int], strings: tuple[str, ...], data: st.DataObject
) -> None:
    """Wherever it is cut into what is known and what is new, as by dispatches and migrations."""
    table = stop_table(StopStrings(strings, PIECES).table)
    expected = end_by_hand(tokens, strings)
    assert table.end(tokens, len(tokens)) == expected
    open_ = tokens if expected is None else tokens[: expected - 1]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(open_)), max_size=4)))
    for start, stop in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        found = table.end(np.array(tokens[:stop], np.int32), stop - start)
        assert found == (expected if stop == len(tokens) else None)


@given(TOKENS, SOME)
def test_text_ends_before_the_first_string(tokens: list[int], strings: tuple[str, ...]) -> None:
    stops = StopStrings(strings, PIECES)

    def decode(ids) -> str:
        return text_of(ids).decode(errors="replace")

    end = end_by_hand(tokens, strings)
    if end is None:
        assert stops.before(tokens, decode) == decode(tokens)
        return
    whole = text_of(tokens[:end])
    first = min(place for s in strings if (place := whole.find(s.encode())) >= 0)
    assert stops.before(tokens[:end], decode) == whole[:first].decode(errors="replace")


def test_large_vocabularies_of_random_bytes() -> None:
    """Three bytes, so that strings and tokens overlap in every way; long runs of one token."""
    draw = random.Random(3)
    pieces = [bytes(draw.choices(b"xyz", k=draw.randint(1, 5))) for _ in range(300)]
    for _ in range(30):
        strings = ["".join(draw.choices("xyz", k=draw.randint(4, 9))) for _ in range(4)]
        table = stop_table(StopStrings(strings, pieces).table)
        for _ in range(20):
            tokens = draw.choices(range(300), k=40)
            texts = [b"".join(pieces[t] for t in tokens[:n]) for n in range(41)]
            ends = [n for n, text in enumerate(texts) if any(s.encode() in text for s in strings)]
            assert table.end(tokens, 40) == (ends[0] if ends else None)
            if ends:
                for cut in range(ends[0]):
                    assert table.end(tokens, 40 - cut) == ends[0]


def test_what_is_left_out_of_the_text_ends_it_too() -> None:
    """Special tokens, or a tokenizer that writes " ." as ".": nothing of the string is left."""
    pieces = (b"so", b" <", b"end", b">.", b"<end>", b" .")

    def cleaned(ids) -> str:
        return b"".join(pieces[i] for i in ids if i != 4).decode().replace(" .", ".")

    stops = StopStrings(("<end>", "so ."), pieces)
    assert stops.before([0, 1, 2, 3], cleaned) == "so "
    assert stops.before([0, 4], cleaned) == "so"
    assert stops.before([2, 0, 5], cleaned) == "end"


def test_a_string_that_too_many_tokens_have_in_them() -> None:
    pieces = [b"e%d" % number for number in range(40_000)]
    with pytest.raises(ConfigError, match=r"\('e',\); more than 32,768 tokens"):
        StopStrings(("e",), pieces)
    assert stop_table(StopStrings(("e123",), pieces).table).end([7, 123], 1) == 2


def test_no_strings_are_no_table_and_any_bytes_are_one() -> None:
    assert NO_STRINGS.table == b"" and stop_table(b"").end([1, 2, 3], 3) is None
    assert NO_STRINGS.before([1], lambda ids: f"{len(ids)}") == "1"
    assert StopTable(bytes(range(30))).num_rows == 2
