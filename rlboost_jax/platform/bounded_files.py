"""Files that others may have written or changed, read within a bound.

What a name leads to may be anything by the time it is read: a folder, a FIFO that nobody writes to,
a device without end, a file that grows. None of these is waited for or read.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from rlboost_jax.platform.mistakes import Mistake

_KINDS: Final[dict[str, Callable[[int], bool]]] = {
    "a folder": stat.S_ISDIR,
    "a FIFO": stat.S_ISFIFO,
    "a socket": stat.S_ISSOCK,
}


class Unreadable(Mistake, ValueError):
    """What a file or source has is not what was expected of it.

    Attributes:
        reason: what is wrong, for a line that names the file or source itself.
    """

    def __init__(self, name: object, reason: str, expected: str) -> None:
        super().__init__(f"{name} {reason}; expected {expected}")
        self.reason = reason


def read_bytes(path: Path, limit: int, what: str = "a file") -> bytes:
    """Read all bytes of a regular file.

    Args:
        limit: bytes that it may have.
        what: it is to hold, for the error.

    Raises:
        Unreadable: it is no regular file, or has more bytes.
        OSError: there is no such file, or it cannot be read now; the error names it.
    """
    with named(path), _opened(path, limit, what) as file:
        data = file.read(limit + 1)
    if len(data) > limit:  # it grows, or is one of /proc, whose size is 0
        raise Unreadable(path, f"has more than {limit:,} bytes", _expected(limit, what))
    return data


def read_text(path: Path, limit: int, what: str = "a text file") -> str:
    """Read a regular file in UTF-8, with or without a byte order mark.

    Raises:
        Unreadable, OSError: see `read_bytes`; or it is no UTF-8.
    """
    data = read_bytes(path, limit, what)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 (byte {error.start:,})"
        raise Unreadable(path, reason, _expected(limit, what)) from None


def check_size(path: Path, limit: int, what: str = "a file") -> None:
    """Check the type and size of a file that a library is to read.

    Raises Unreadable, OSError as `read_bytes`.
    """
    _opened(path, limit, what).close()


def open_regular(path: Path, expected: str = "a file") -> int:
    """Open a regular file; return its descriptor, which the caller closes.

    Raises:
        Unreadable: it is something else, which is neither waited for nor read.
        OSError: there is no such file, or it may not be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise Unreadable(path, f"is {_kind(mode)} and no file", expected)


def explained(error: OSError | Unreadable) -> str:
    """Say why a file was not read, in a line that names it."""
    if isinstance(error, OSError):
        return f"cannot read {error.filename}: {error.strerror}"
    return str(error)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Add the file's name to errors within; the system adds it only when opening."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _opened(path: Path, limit: int, what: str) -> BinaryIO:
    file = open(open_regular(path, _expected(limit, what)), "rb")  # noqa: SIM115  (the caller's)
    size = os.fstat(file.fileno()).st_size
    if size <= limit:
        return file
    file.close()
    raise Unreadable(path, f"has {size:,} bytes", _expected(limit, what))


def _expected(limit: int, what: str) -> str:
    return f"{what} of at most {limit:,} bytes"


def _kind(mode: int) -> str:
    return next((name for name, has in _KINDS.items() if has(mode)), "a device")
