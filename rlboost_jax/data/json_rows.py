"""Layout of a JSON file's rows: an object per line, or the elements of one array."""

import json
import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from rlboost_jax.data.row import BrokenRow, FileLayout, Row
from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable
from rlboost_jax.platform.mistakes import ConfigError

CHUNK: Final = 2**24  # bytes of an array that are read at once
MAX_ROW: Final = foreign_json.MOST_BYTES
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_CUT: Final = 16  # an error so close to the end of what was read may be the cut's


def json_layout(file: BinaryIO, start: int) -> FileLayout:
    """Find the rows from the byte `start` on.

    Raises:
        ConfigError: neither lines nor an array; while rows are asked for, too.
    """
    text = _Text(file, start)
    first = text.mark()
    if first == "[":
        return FileLayout(_elements(text), json_object, "element")
    if first == "{" and text.line() == "{":
        raise ConfigError(
            "it is one JSON object over several lines; rows are an object per line, or one array "
            "of objects (of an object's key: jq .data FILE)"
        )
    return FileLayout(_lines(file, start), json_object, "line")


def json_object(text: bytes) -> Row:
    """Decode a row. Raises BrokenRow."""
    try:
        return foreign_json.decode(text, "it", dict, halves=True)
    except Unreadable as error:
        raise BrokenRow(f"no JSON object: it {error.reason}") from None


def _lines(file: BinaryIO, start: int) -> Iterator[tuple[int, bytes, int]]:
    """Lines that are not blank."""
    file.seek(start)
    for number, line in enumerate(iter(lambda: file.readline(MAX_ROW + 1), b""), 1):
        if len(line) > MAX_ROW:
            raise ConfigError(f"line {number} has more than {MAX_ROW:,} bytes, too many for a row")
        if line.strip():
            yield start, line, number
        start += len(line)


def _elements(text: "_Text") -> Iterator[tuple[int, bytes, int]]:
    text.at += 1  # the bracket that opens it
    number, ended = 0, text.mark() == "]"
    while not ended:
        number += 1
        first, element = text.value(number)
        yield first, element, number
        after = text.mark()
        if after not in (",", "]"):
            raise ConfigError(
                f"no JSON array: {after or 'its end'!r} after element {number}, where ',' or ']' "
                "belongs"
            )
        ended = after == "]"
        if not ended:
            text.at += 1
            text.mark()
    text.at += 1
    if text.mark():
        raise ConfigError(f"there is more after its JSON array of {number:,} elements")


class _Text:
    """A file from a byte on, as Latin-1: each character is a byte, and JSON's marks are ASCII.

    Attributes:
        text: what was read and is still needed.
        at: where in it the reader is.
    """

    def __init__(self, file: BinaryIO, first: int) -> None:
        file.seek(first)
        self.text, self.at = "", 0
        self._file, self._first = file, first
        self._decoder = json.JSONDecoder(parse_int=str, parse_float=str)  # of any length

    def mark(self) -> str:
        """Move to the next character that is no white space, and return it; "" at the end."""
        while True:
            match = _SPACE.match(self.text, self.at)
            assert match
            self.at = match.end()
            if self.at < len(self.text):
                return self.text[self.at]
            if not self._more():
                return ""

    def line(self) -> str:
        """Rest of the line as far as it was read, stripped."""
        return self.text[self.at :].partition("\n")[0].strip()

    def value(self, number: int) -> tuple[int, bytes]:
        """Read the JSON value here as (first byte, bytes), and move behind it."""
        while True:
            try:
                _, end = self._decoder.raw_decode(self.text, self.at)
                # Behind what was read, a number may go on.
                if end - self.at > MAX_ROW:
                    raise self._too_long(number)
                if end == len(self.text) and self._more():
                    continue
            except json.JSONDecodeError as error:
                byte = self._first + error.pos
                cut = error.msg.startswith("Unterminated") or error.pos + _CUT > len(self.text)
                if cut and len(self.text) - self.at > MAX_ROW:
                    raise self._too_long(number) from None
                if cut and self._more():
                    continue
                raise ConfigError(
                    f"no JSON array: element {number}, byte {byte:,}: {error.msg}"
                ) from None
            except RecursionError:
                raise ConfigError(f"no JSON array: element {number} is nested too deeply") from None
            first, element = self._first + self.at, self.text[self.at : end].encode("latin-1")
            self.at = end
            return first, element

    def _too_long(self, number: int) -> ConfigError:
        return ConfigError(f"element {number} has more than {MAX_ROW:,} bytes, too many for a row")

    def _more(self) -> bool:
        """Read more, and drop what is behind the reader; return whether there was more."""
        rest = self.text[self.at :]
        read = self._file.read(max(CHUNK, len(rest)))
        self._first += self.at
        self.text, self.at = rest + read.decode("latin-1"), 0
        return bool(read)
