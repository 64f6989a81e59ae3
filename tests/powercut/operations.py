"""What the recorder has written down: operations on files, in the order in which they happened."""

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<IIIIIIQQ")  # as `Header` in recorder.c


class Kind(enum.IntEnum):
    """As in recorder.c."""

    CREATE = 1
    WRITE = 2
    TRUNCATE = 3
    RENAME = 4
    LINK = 5
    UNLINK = 6
    MKDIR = 7
    RMDIR = 8
    SYNC = 9
    SYNC_ALL = 10
    ESCAPE = 11  # the file was written in a way that is not recorded
    SYMLINK = 12


@dataclass(frozen=True)
class Operation:
    """
    Attributes:
        path: absolute.
        other: the new name, or where a symbolic link leads.
        offset: of what is written; the size after TRUNCATE.
    """

    kind: Kind
    pid: int
    thread: int  # its number; that of the main thread is the process's
    path: str
    other: str
    offset: int
    data: bytes


def read_log(path: Path) -> list[Operation]:
    return list(_operations(path.read_bytes()))


def _operations(log: bytes) -> Iterator[Operation]:
    at = 0
    while at < len(log):
        (kind, pid, thread, _, path_length, other_length, offset, length) = _HEADER.unpack_from(
            log, at
        )
        at += _HEADER.size
        path, other, data = (
            log[at : at + path_length],
            log[at + path_length : at + path_length + other_length],
            log[at + path_length + other_length : at + path_length + other_length + length],
        )
        at += path_length + other_length + length
        assert at <= len(log), "the log is torn"
        yield Operation(Kind(kind), pid, thread, path.decode(), other.decode(), offset, data)
