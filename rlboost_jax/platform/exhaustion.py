"""Resources that a host has run out of, or denies, in a line.

That may pass, and then the same command goes on.
"""

import errno
from collections.abc import Iterator
from typing import Final

_ADVICE: Final = {
    errno.ENOSPC: "no space (or no inode) is left on the device; free some",
    errno.EDQUOT: "the quota of the disk is used up; free some",
    errno.EFBIG: "a file has reached the limit of this process; raise `ulimit -f`",
    errno.EMFILE: "this process has no descriptor left; raise `ulimit -n`",
    errno.ENFILE: "the host has no descriptor left",
    errno.EAGAIN: "no process or thread can be started; raise `ulimit -u` or pids.max, or free "
    "memory",
    errno.ENOMEM: "no memory is left",
    errno.EROFS: "the file system can only be read (a disk that failed may be mounted so); check "
    "and mount it again",
    errno.EIO: "the disk, or what leads to it, failed to read or write; look at `dmesg`",
    errno.ESTALE: "the server of a network file system has lost a file that was open; mount it "
    "again",
}
# Where a library says it in words only: another's OSError, or one of the dynamic linker's.
_WORDS: Final = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "File too large": errno.EFBIG,
    "Too many open files in system": errno.ENFILE,
    "Too many open files": errno.EMFILE,
    "can't start new thread": errno.EAGAIN,
    "cannot allocate memory": errno.ENOMEM,
    "Cannot allocate memory": errno.ENOMEM,
    "Read-only file system": errno.EROFS,
    "Input/output error": errno.EIO,
    "Stale file handle": errno.ESTALE,
}


def exhausted(error: BaseException) -> str:
    """Describe the used-up resource and where that was seen; "" for any other error.

    Looks at what the error was raised for, too: libraries make an `ImportError` of a full disk.
    """
    number, cause = _found(error)
    if number is None:
        return ""
    name = getattr(cause, "filename", None)
    where = f" ({name})" if isinstance(name, str) else ""
    return f"{_ADVICE[number]}{where}; then the same command goes on"


def passing(error: BaseException) -> str:
    """Like `exhausted`, but "" also where a file is lost for good, which its reader explains."""
    return "" if number_of(error) == errno.EIO else exhausted(error)


def number_of(error: BaseException) -> int | None:
    """Return the system's error number; None for an error of another kind."""
    return _found(error)[0]


def _found(error: BaseException) -> tuple[int | None, BaseException]:
    """Return the number of the used-up resource, and the cause of the error that has it."""
    for cause in _causes(error):
        if isinstance(cause, BlockingIOError) and cause is not error:
            continue  # of a lock or a socket, which had to be waited for
        if (number := _number_of(cause)) is not None:
            return number, cause
    return None, error


def _number_of(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno in _ADVICE:
        return error.errno
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    said = str(error)
    return next((number for words, number in _WORDS.items() if words in said), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__
