"""Records with checksums, as journals keep them: read up to the first damaged byte.

A record is its payload's length and CRC-32 (of length and payload), each 4 bytes little-endian,
then the payload in MessagePack. Behind a torn tail, a flipped bit or a sector that the device has
lost nothing is believed. What becomes of the rest is the journal's to say.
"""

import io
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from rlboost_jax.platform import durable

MAX_PAYLOAD_BYTES: Final = 2**28  # a longer one is damage: no record is longer than a message
_HEADER: Final = struct.Struct("<II")
Record = TypeVar("Record")
_encode = msgspec.msgpack.Encoder().encode


def encode_records(records: Iterable[msgspec.Struct]) -> bytes:
    """Encode records as the bytes to append."""
    parts: list[bytes] = []
    for record in records:
        payload = _encode(record)
        length = len(payload).to_bytes(4, "little")
        parts += [length, zlib.crc32(payload, zlib.crc32(length)).to_bytes(4, "little"), payload]
    return b"".join(parts)


class RecordReader(Generic[Record]):
    """The records of a file in order, one in memory at a time, up to the first damaged byte.

    Args:
        read: gives that many of the next bytes, fewer only at the end of the file.
        size: of the file, in bytes.
        decode: a record from its payload; raises msgspec.DecodeError.

    Attributes:
        good_bytes: of the records so far.
        damage: why it went no further; "" where every byte is accounted for.
        is_lost: because the device has lost the rest.
    """

    def __init__(
        self, read: Callable[[int], bytes], size: int, decode: Callable[[bytes], Record]
    ) -> None:
        self._read, self._size, self._decode = read, size, decode
        self.good_bytes, self.damage, self.is_lost = 0, "", False

    def __iter__(self) -> Iterator[Record]:
        while self.good_bytes < self._size:
            try:
                record, record_bytes = self._next(self._size - self.good_bytes)
            except _DamagedRecord as damaged:
                self.damage = f"{damaged} at byte {self.good_bytes} of {self._size}"
                return
            self.good_bytes += record_bytes
            yield record

    def _next(self, left: int) -> tuple[Record, int]:
        """Read a record and the number of its bytes. Raises _DamagedRecord, OSError."""
        try:
            return self._read_next(left)
        except OSError as error:
            if not durable.is_lost(error):
                raise
            self.is_lost = True
            raise _DamagedRecord(f"it cannot be read ({error.strerror})") from None

    def _read_next(self, left: int) -> tuple[Record, int]:
        header = self._read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise _DamagedRecord("a torn tail")
        length, checksum = _HEADER.unpack(header)
        if not 0 < length <= MAX_PAYLOAD_BYTES:
            raise _DamagedRecord("a frame of impossible length")
        if _HEADER.size + length > left:
            raise _DamagedRecord("a torn tail")
        payload = self._read(length)
        if len(payload) < length:  # it became shorter meanwhile
            raise _DamagedRecord("a torn tail")
        if zlib.crc32(payload, zlib.crc32(header[:4])) != checksum:
            raise _DamagedRecord("a wrong checksum")
        try:
            return self._decode(payload), _HEADER.size + length
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _DamagedRecord(f"an entry that is none ({error})") from None


@dataclass(frozen=True, kw_only=True)
class RecordsRead(Generic[Record]):
    """The records of a file.

    Attributes:
        good_bytes: of these records: all before the damage.
        damage: as `RecordReader.damage`.
    """

    records: list[Record]
    good_bytes: int
    damage: str


def read_records(data: bytes, decode: Callable[[bytes], Record]) -> RecordsRead[Record]:
    """Read the records of a file that is in memory."""
    reader = RecordReader(io.BytesIO(data).read, len(data), decode)
    records = list(reader)
    return RecordsRead(records=records, good_bytes=reader.good_bytes, damage=reader.damage)


class _DamagedRecord(Exception):
    """No further record can be read."""
