"""Journal entries and their encoding: a manager writes them before it sends anything.

A killed manager is followed by one that reads this and goes on: every token that was taken in is
here before it is sent to anybody. Entries say what became true, never what to do, so reading them
twice or only the first half of them does no harm: what is missing is generated again.

A frame is its payload's length and CRC-32 (of length and payload), each 4 bytes little-endian,
then the payload. A segment is a run of frames; it is read up to its first bad frame. A device that
has lost a part of it is one more way for a frame to be bad: all of it can be generated again.
"""

import io
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from rlboost_jax.manager.accounts import Books
from rlboost_jax.messages import BeginBatch, ExtendBatch, Manifest, WindowState
from rlboost_jax.platform import durable
from rlboost_jax.sequences.identities import Batch

FORMAT: Final = 3
MAX_FRAME_BYTES: Final = 2**28  # a longer one is damage: entries are no longer than messages
_HEADER: Final = struct.Struct("<II")


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Base of all entries. Times are seconds on the manager's clock."""


class SegmentBegun(Entry, frozen=True, kw_only=True):
    """First entry of every segment."""

    run_id: str
    format: int = FORMAT


class PoolEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """State of one of several pools, see `state.pools`."""

    asked: int
    granted: int
    refused: int
    lost: int
    losses: float
    seconds: float
    alive: float  # instance-seconds
    dollars: float
    dollars_per_second: float
    price: float
    start_seconds: float
    speed: float
    failures: int
    retry_in: float


class RunState(Entry, frozen=True, kw_only=True):
    """State that outlives a batch. Each entry replaces the one before."""

    window: WindowState
    learnt: bool  # that window follows from a whole batch seen here
    paid: dict[Batch, float]  # batch → dollars of the run when it was reported
    banished: dict[str, str]
    joined: int
    lost: int
    # In names given out: none is given twice, for tokens and processes are known by them.
    numbers: int
    fleet_numbers: int
    dollars: float  # at `at`, growing by `dollars_per_second`
    dollars_per_second: float
    at: float
    pools: dict[str, PoolEntry] = {}
    left: int = 0  # of the lost, with notice
    # Batch → how many had joined, were lost and had left when it was reported.
    counts: dict[Batch, tuple[int, int, int]] = {}


class Published(Entry, frozen=True, kw_only=True):
    manifest: Manifest


class BatchOpened(Entry, frozen=True, kw_only=True):
    """A new batch was begun, of which nothing was kept. Begins a segment."""

    begin: BeginBatch
    at: float
    still_open: tuple[Batch, ...] = ()  # earlier ones that stay open


class BatchExtended(Entry, frozen=True, kw_only=True):
    """New prompts were added to a batch."""

    extend: ExtendBatch


class BatchResumed(Entry, frozen=True, kw_only=True):
    """A batch that was kept was opened again."""

    batch: Batch
    at: float
    still_open: tuple[Batch, ...] = ()  # earlier ones that stay open


class TurnBegun(Entry, frozen=True, kw_only=True):
    """An open batch has become the oldest open one.

    A batch that is begun as the oldest has its turn at once, without this entry.
    """

    batch: Batch
    at: float


class CollectedTokens(Entry, frozen=True, kw_only=True):
    """Common fields of `Collected` and `CollectedRouted`, encoded before their own."""

    batch: Batch
    instance: str
    samples: bytes  # uint32
    # uint32: tokens that the rollout had before after its prompts, given ones included
    starts: bytes
    counts: bytes  # uint16
    tokens: bytes  # int32
    logprobs: bytes  # float32
    at: float


class Collected(CollectedTokens, frozen=True, kw_only=True):
    """Tokens that one instance added to rollouts of one batch; row i has `counts[i]` of them."""

    server: str = ""  # who has that name (`state.names`); "" for an engine of the trainer's


class CollectedRouted(CollectedTokens, frozen=True, kw_only=True):
    """Like `Collected`, with routes laid out as in `messages.RoutedTokenBatch`."""

    leads: bytes  # uint32
    routes: bytes
    server: str = ""


class Redone(Entry, frozen=True, kw_only=True):
    """Rollouts were cut to their first `lengths[i]` tokens, counted over all their sequences."""

    batch: Batch
    samples: bytes  # uint32
    lengths: bytes  # uint32


class Answered(Entry, frozen=True, kw_only=True):
    """Answer of the environment to a parked rollout.

    That it was parked follows from its tokens. If the environment has a rollout start anew, the
    entry is `Redone`.
    """

    batch: Batch
    sample: int
    attempt: int
    turn: int
    tokens: bytes  # int32; without those that there was no room for
    over: bool
    sequence: int = 0
    prompt: bytes = b""  # int32, of the next sequence; without what there was no room for


class Counted(Entry, frozen=True, kw_only=True):
    """The counts of a batch so far (-1: of the time after the last one).

    `in_flight_…` are tokens of all dispatches under way: lost if this is the last `Counted`.
    """

    batch: Batch
    books: Books
    in_flight_reserved: int
    in_flight_preemptible: int


class BatchClosed(Entry, frozen=True, kw_only=True):
    """The update of a batch was applied."""

    batch: Batch


class Forgotten(Entry, frozen=True, kw_only=True):
    """Steps up to `committed` are in a durable checkpoint."""

    committed: Batch


class RunOver(Entry, frozen=True, kw_only=True):
    """The run has ended; nothing is left to resume."""


AnyEntry = (
    SegmentBegun
    | RunState
    | Published
    | BatchOpened
    | BatchExtended
    | BatchResumed
    | TurnBegun
    | Collected
    | CollectedRouted
    | Redone
    | Answered
    | Counted
    | BatchClosed
    | Forgotten
    | RunOver
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyEntry).decode


def frames(entries: Iterable[Entry]) -> bytes:
    """Encode entries as the bytes to append."""
    parts: list[bytes] = []
    for entry in entries:
        payload = _encode(entry)
        length = len(payload).to_bytes(4, "little")
        parts += [length, zlib.crc32(payload, zlib.crc32(length)).to_bytes(4, "little"), payload]
    return b"".join(parts)


class SegmentReader:
    """The entries of a segment in order, one in memory at a time, up to its first bad byte.

    Args:
        read: gives that many of the next bytes, fewer only at the end of the file.
        size: of the file, in bytes.

    Attributes:
        good_bytes: of the entries so far.
        damage: why it went no further; "" where every byte is accounted for.
        is_lost: because the device has lost the rest.
    """

    def __init__(self, read: Callable[[int], bytes], size: int) -> None:
        self._read, self._size = read, size
        self.good_bytes, self.damage, self.is_lost = 0, "", False

    def __iter__(self) -> Iterator[Any]:
        while self.good_bytes < self._size:
            entry, frame_bytes, damage = self._frame(self._size - self.good_bytes)
            if damage:
                self.damage = f"{damage} at byte {self.good_bytes} of {self._size}"
                return
            self.good_bytes += frame_bytes
            yield entry

    def _frame(self, left: int) -> tuple[Any, int, str]:
        """(entry, bytes of its frame, ""), or (None, 0, what is wrong)."""
        try:
            return self._read_frame(left)
        except OSError as error:
            if not durable.is_lost(error):
                raise
            self.is_lost = True
            return None, 0, f"it cannot be read ({error.strerror})"

    def _read_frame(self, left: int) -> tuple[Any, int, str]:
        header = self._read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None, 0, "a torn tail"
        length, checksum = _HEADER.unpack(header)
        if not 0 < length <= MAX_FRAME_BYTES:
            return None, 0, "a frame of impossible length"
        if _HEADER.size + length > left:
            return None, 0, "a torn tail"
        payload = self._read(length)
        if len(payload) < length:  # it became shorter meanwhile
            return None, 0, "a torn tail"
        if zlib.crc32(payload, zlib.crc32(header[:4])) != checksum:
            return None, 0, "a wrong checksum"
        try:
            return _decode(payload), _HEADER.size + length, ""
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return None, 0, f"an entry that is none ({error})"


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment as it was read."""

    entries: list[Any]
    good_bytes: int  # before the damage, or all
    damage: str  # "" where every byte is accounted for


def read_segment(data: bytes) -> Segment:
    """Read a whole segment from bytes in memory."""
    reader = SegmentReader(io.BytesIO(data).read, len(data))
    entries = list(reader)
    return Segment(entries=entries, good_bytes=reader.good_bytes, damage=reader.damage)
