"""Stop strings of a run: where in a response's tokens one is complete, and the text before it.

A string is looked for in the bytes of the sampled tokens, one after the other: it may begin and end
within tokens, and a character may be in several. A special token has the bytes of its name.

Source: Aho and Corasick 1975, "Efficient string matching", for the states and where they lead; a
token leads where its bytes do.
"""

import bisect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import ArrayLike

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.sequences.shared_limits import MAX_STOP_ROWS
from rlboost_jax.sequences.stop_table import END, pack, stop_table

_PROBES: Final = ("The answer is 42.", "x = {1: 'ä'}\n\tfor", "数学 🙂", " two  spaces ")


class StopStrings:
    """Stop strings of a run, as text and as a table over token ids.

    Attributes:
        strings: any of these ends a turn.
        table: for `sequences.stop_table`; b"" without strings.
    """

    def __init__(self, strings: Sequence[str], tokens: Sequence[bytes]) -> None:
        """Build the table of stop strings.

        Args:
            tokens: bytes of each token id; b"" of one that is no text.

        Raises ConfigError where too many tokens are part of a string.
        """
        self.strings = tuple(dict.fromkeys(strings))
        self._tokens = tokens
        encoded = [string.encode() for string in self.strings]
        self.table = pack(_rows(encoded, tokens, self.strings)) if encoded else b""
        self._longest = max(map(len, encoded), default=0)
        self._any = re.compile(b"|".join(map(re.escape, encoded)) or b"(?!)")

    def before(self, turn: ArrayLike, decode: Callable[[Sequence[int]], str]) -> str:
        """Text of a turn, without the string that ended it and what came with its last token.

        Args:
            decode: gives the text of some tokens.
        """
        ids: list[int] = np.asarray(turn).tolist()
        text = decode(ids)
        if not ids or stop_table(self.table).end(ids, 1) is None:
            return text
        start, tail = len(ids) - 1, self._bytes(ids[-1])
        least = len(tail) + self._longest
        while start and len(tail) < least:
            start -= 1
            tail = self._bytes(ids[start]) + tail
        found = self._any.search(tail)
        assert found is not None, "the table and its strings are of one making"
        cut = tail[found.start() :].decode(errors="replace")
        if text.endswith(cut):
            return text[: len(text) - len(cut)]
        # Decoding left something out, or changed it: the token in which the string begins goes.
        at = 0
        while at + len(self._bytes(ids[start])) <= found.start():
            at += len(self._bytes(ids[start]))
            start += 1
        return decode(ids[:start])

    def _bytes(self, token: int) -> bytes:
        return self._tokens[token] if 0 <= token < len(self._tokens) else b""


NO_STRINGS: Final = StopStrings((), ())


class _Vocabulary(Protocol):
    """Part of `tokenizers.HuggingFaceTokenizer` that is needed here."""

    vocab_size: int

    def encode(self, texts: Sequence[str], *, chat: bool) -> list[list[int]]: ...
    def text(self, tokens: ArrayLike) -> str: ...
    def bytes_of(self, token: int) -> bytes | None: ...


def strings_in(tokenizer: _Vocabulary, strings: Sequence[str]) -> StopStrings:
    """Build stop strings for the tokens of a vocabulary.

    Raises ConfigError where the bytes of a text's tokens are not the text's, as some texts show, or
    too many tokens are part of a string.
    """
    tokens = [tokenizer.bytes_of(token) for token in range(tokenizer.vocab_size)]
    for ids in tokenizer.encode((*_PROBES, *strings), chat=True):
        text, own = tokenizer.text(ids), [tokens[token] for token in ids]
        made = b"?" if None in own else b"".join(part or b"" for part in own)
        if made.decode(errors="replace") not in (text, f" {text}"):  # which some strip
            raise ConfigError(
                f"data.stop_strings is {tuple(strings)}, and data.tokenizer does not say which "
                f"bytes its tokens are (tried with {text!r}); take data.stop_ids, or a tokenizer "
                "of byte-level BPE or SentencePiece"
            )
    return StopStrings(strings, [part or b"" for part in tokens])


def _rows(
    strings: Sequence[bytes], tokens: Sequence[bytes], shown: Sequence[str]
) -> list[tuple[int, int, int]]:
    """Transitions of tokens in every state that tokens can lead to."""
    automaton = _Automaton(strings)
    begins = {prefix[-1] for prefix in automaton.prefixes[1:]}
    inside = re.compile(b"|".join(map(re.escape, strings)))
    rows: dict[tuple[int, int], int] = {}

    def add(state: int, token: int, following: int) -> None:
        rows[state, token] = following
        if len(rows) > MAX_STOP_ROWS:
            raise ConfigError(
                f"data.stop_strings is {tuple(shown)}; more than {MAX_STOP_ROWS:,} tokens have "
                "such a string in them, or the beginning or the end of one: name longer ones"
            )

    for token, text in enumerate(tokens):
        near = text and (text[-1] in begins or inside.search(text))
        if near and (following := automaton.after(0, text)):
            add(0, token, following)
    ordered = sorted((text, token) for token, text in enumerate(tokens) if text)
    todo, seen = sorted({state for state in rows.values() if state > 0}), set()
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        for rest in automaton.rests(state):
            for text, token in _of_the_beginning(rest, ordered):
                following = automaton.after(state, text)
                if following != rows.get((0, token), 0):
                    add(state, token, following)
                    todo += [following] * (following > 0)
    return [(state, token, following) for (state, token), following in rows.items()]


def _of_the_beginning(
    rest: bytes, ordered: Sequence[tuple[bytes, int]]
) -> Iterator[tuple[bytes, int]]:
    """Tokens that are a prefix of `rest`, or have it as a prefix.

    Args:
        ordered: all tokens, by their bytes.
    """
    for length in range(1, len(rest) + 1):
        begin = rest[:length]
        place = bisect.bisect_left(ordered, (begin, -1))
        while place < len(ordered) and ordered[place][0].startswith(begin):
            if len(ordered[place][0]) > length < len(rest):
                break  # goes on otherwise, or is found with more of `rest`
            yield ordered[place]
            place += 1


class _Automaton:
    """Automaton over bytes that finds stop strings.

    Attributes:
        prefixes: what each state stands for, the shortest first; state 0 stands for nothing.
    """

    def __init__(self, strings: Sequence[bytes]) -> None:
        self._strings = strings
        beginnings = {string[:length] for string in strings for length in range(len(string))}
        self.prefixes = sorted(beginnings, key=lambda prefix: (len(prefix), prefix))
        self._states = {prefix: state for state, prefix in enumerate(self.prefixes)}
        self._complete = frozenset(strings)

    def after(self, state: int, text: bytes) -> int:
        """State after some bytes; END if any of them completes a string."""
        read = self.prefixes[state]
        for byte in text:
            read += bytes([byte])
            ends = [read[start:] for start in range(len(read))]
            if not self._complete.isdisjoint(ends):
                return END
            read = next((end for end in ends if end in self._states), b"")
        return self._states[read]

    def rests(self, state: int) -> list[bytes]:
        """Missing remainder of each string that a state's bytes may begin."""
        read = self.prefixes[state]
        ends = [read[start:] for start in range(len(read))]
        return [s[len(e) :] for e in ends for s in self._strings if s.startswith(e)]
