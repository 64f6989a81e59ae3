"""Frames that are nearly right, and frames that are nothing at all."""

import math
import struct
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import msgspec

_encode = msgspec.msgpack.Encoder().encode

INTS: Final = (
    *(0, 1, 2, 3, 7, 8, 12, 13, 63, 64, 65, 127, 128, 255, 256),
    *(2**15, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63),
    *(2**64 - 1, -1, -2, -128, -(2**31), -(2**63)),
)
FLOATS: Final = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, math.inf, -math.inf, math.nan)
TEXTS: Final = (
    *("", "d", "mine", "good", "reserved", "x" * 99, "x" * 101, "y" * 5000, "../..", "a\x00b"),
    *("\x1b[2J\x1b[H", "</script><script>", "{}", "%s%n", "\u202eevil", "\U0001f600", "a\nb"),
)
# Types of MessagePack that say how much follows: the place for lies about it.
LENGTHS: Final = frozenset((*range(0x80, 0xC0), *range(0xC4, 0xCA), *range(0xD4, 0xE0)))
HUGE: Final = (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
               b"\xc6\xff\xff\xff\xff", b"\xc9\x7f\xff\xff\xff\x01", b"\xdc\xff\xff")  # fmt: skip
MAX_DEPTH: Final = 3
MAX_LIVE: Final = 16


class Mutator:
    """An endless supply, the same for the same seed.

    Args:
        frames: valid ones to begin with.
    """

    def __init__(self, frames: Sequence[bytes], random: Random) -> None:
        self._frames = list(frames)
        self._live: deque[bytes] = deque(maxlen=MAX_LIVE)
        self._random = random
        self._structured: list[Callable[[], bytes]] = [
            self._other_value,
            self._other_value,
            self._other_number,
            self._other_number,
            self._crossed,
            self._longer_or_shorter,
        ]
        self._valid_only: list[Callable[[], bytes]] = [self._valid]
        self._raw: list[Callable[[], bytes]] = [
            self._flipped,
            self._truncated,
            self._lengths,
            self._spliced,
            self._inserted,
            self._random_value,
            self._nested,
            self._noise,
        ]

    def __call__(self) -> bytes:
        """Every third is valid as it is, or all streams would end at once."""
        random = self._random
        makers = random.choices((self._valid_only, self._structured, self._raw), (3, 4, 2))[0]
        return random.choice(makers)()

    def learn(self, frame: bytes) -> None:
        """A frame that would be valid at this moment: what is near it goes deepest."""
        self._live.append(frame)

    # Of values

    def _picked(self) -> list[Any]:
        value: list[Any] = msgspec.msgpack.decode(self._valid())
        return value

    def _valid(self) -> bytes:
        if self._live and self._random.random() < 0.4:
            return self._random.choice(self._live)
        return self._random.choice(self._frames)

    def _other_value(self) -> bytes:
        """Type confusion, mostly."""
        value = self._picked()
        owner, key = self._place(value)
        owner[key] = self._value()
        return _encode(value)

    def _other_number(self) -> bytes:
        """A value of its own type, at the edges of what it may be."""
        random, value = self._random, self._picked()
        for _ in range(random.randint(1, 3)):
            owner, key = self._place(value)
            match owner[key]:
                case bool():
                    owner[key] = not owner[key]
                case int() as number:
                    owner[key] = _fitting(number + random.choice((-1, 1, *INTS)))
                case float():
                    owner[key] = random.choice(FLOATS)
                case bytes() as data:
                    owner[key] = self._array(data)
                case str() if owner is not value or key:
                    owner[key] = random.choice(TEXTS)
        return _encode(value)

    def _place(self, value: list[Any]) -> tuple[Any, Any]:
        """Some place in a message, however deep: its owner and its index or name there."""
        owner: Any = value
        while True:
            keys = list(owner) if isinstance(owner, dict) else range(len(owner))
            key = self._random.choice(keys)
            inner = owner[key]
            if not isinstance(inner, list | dict) or not inner or self._random.random() < 0.2:
                return owner, key
            owner = inner

    def _crossed(self) -> bytes:
        """The name of one message and fields of another."""
        one, other = self._picked(), self._picked()
        cut = self._random.randrange(1, len(one) + 1)
        return _encode(one[:cut] + other[cut:])

    def _longer_or_shorter(self) -> bytes:
        value = self._picked()
        if self._random.random() < 0.5:
            return _encode(value[: self._random.randrange(len(value))])
        return _encode(value + [self._value() for _ in range(self._random.randint(1, 4))])

    def _array(self, data: bytes) -> bytes:
        """Bytes that stand for an array: other numbers in it, or another length."""
        random = self._random
        if not data or random.random() < 0.3:
            return random.randbytes(random.choice((0, 1, 2, 3, 4, 8, 12, 16, 64)))
        if random.random() < 0.3:
            return data[: random.randrange(len(data))]
        if random.random() < 0.3:
            return data * random.randint(2, 4)
        place = random.randrange(0, len(data), 4)
        number = random.choice((0, 1, 2, 63, 64, 2**31, 2**32 - 1, 0x7FC00000, 0xFF800000))
        return (data[:place] + struct.pack("<I", number) + data[place + 4 :])[: len(data)]

    def _value(self, depth: int = 0) -> Any:
        random = self._random
        kind = random.randrange(8 if depth < MAX_DEPTH else 6)
        match kind:
            case 0:
                return random.choice(INTS)
            case 1:
                return random.choice(FLOATS)
            case 2:
                return random.choice(TEXTS)
            case 3:
                return random.randbytes(random.choice((0, 1, 4, 8, 31, 300)))
            case 4:
                return None
            case 5:
                return random.random() < 0.5
            case 6:
                return [self._value(depth + 1) for _ in range(random.randrange(4))]
            case _:
                keys = (random.choice(TEXTS[:5]) for _ in range(random.randrange(4)))
                return {key: self._value(depth + 1) for key in keys}

    # Of bytes

    def _flipped(self) -> bytes:
        data = bytearray(self._valid())
        for _ in range(self._random.randint(1, 8)):
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        return bytes(data)

    def _truncated(self) -> bytes:
        data = self._valid()
        return data[: self._random.randrange(len(data))]

    def _lengths(self) -> bytes:
        """Lies about how much follows."""
        data = bytearray(self._valid())
        places = [i for i, byte in enumerate(data) if byte in LENGTHS]
        place = self._random.choice(places)
        if self._random.random() < 0.5:
            data[place] = self._random.choice(sorted(LENGTHS))
        else:
            data[place : place + 1] = self._random.choice(HUGE)
        return bytes(data)

    def _spliced(self) -> bytes:
        one, other = self._valid(), self._valid()
        return one[: self._random.randrange(len(one))] + other[self._random.randrange(len(other)) :]

    def _inserted(self) -> bytes:
        data = self._valid()
        place = self._random.randrange(len(data) + 1)
        return data[:place] + self._random.randbytes(self._random.randint(1, 9)) + data[place:]

    def _random_value(self) -> bytes:
        return _encode(self._value())

    def _nested(self) -> bytes:
        """Deeper than any stack; a list in a list, or a map in a map."""
        opening = self._random.choice((b"\x91", b"\x81\x00", b"\x92\xa5Hello", b"\x92\xa5Ready"))
        return opening * self._random.choice((2, 50, 1_200, 20_000))

    def _noise(self) -> bytes:
        return self._random.randbytes(self._random.choice((0, 1, 2, 9, 100, 3_000)))


def _fitting(number: int) -> int:
    """Within what MessagePack can hold."""
    return max(-(2**63), min(2**64 - 1, number))
