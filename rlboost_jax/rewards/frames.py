"""What the trainer and its reward workers say to each other: records with a length in front."""

import os
import select
import struct
import time
from typing import Any, Final, Generic, TypeVar

import msgspec

from rlboost_jax.settings.rewards import Per, RewardConfig

MAX_FRAME_BYTES: Final = 64 * 2**20
_LENGTH: Final = struct.Struct("<I")
Record = TypeVar("Record")


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame: everything that a worker needs to know of the run."""

    functions: tuple[RewardConfig, ...]  # with their time limits
    columns: tuple[str, ...]  # that every job has
    memory_mb: int
    sandbox_required: bool
    seed: int
    at_once: bool = False  # jobs come while others run, and are answered in any order


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `Setup`."""

    mistake: str = ""  # why the functions cannot be used


class Response(msgspec.Struct, frozen=True, kw_only=True):
    completion: str
    completion_ids: tuple[int, ...]
    finished: bool


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Responses to a prompt that are judged in one call: one, or a whole group in sample order."""

    prompt: str
    responses: tuple[Response, ...]
    columns: dict[str, Any]
    per: Per = "response"  # asks the functions that are called so
    number: int = 0  # what its answer is known by, where several are asked at once


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one function for one response: a value, None for "says nothing", a fault."""

    value: float | None = None
    fault: str = ""


Found = tuple[Outcome, ...]  # by one function, for each response of a job


class Returned(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of a call says of one function."""

    found: Found


class Outcomes(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `Job`, in the order of its functions."""

    outcomes: tuple[Found, ...]
    number: int = 0


def all_failed(job: Job, fault: str) -> Found:
    """What a function that failed for the job as a whole says of each of its responses."""
    return (Outcome(fault=fault),) * len(job.responses)


class Unsendable(ValueError):
    """A record holds what no frame can carry: columns of a data set, for one."""


class FrameTooLong(Unsendable):
    """More than a peer can have reason to send."""


def frame(record: msgspec.Struct) -> bytes:
    """As it goes over a pipe. Raises Unsendable."""
    try:
        data = msgspec.msgpack.encode(record, enc_hook=_plain)
    except (OverflowError, RecursionError, TypeError, UnicodeError) as error:
        raise Unsendable(f"it cannot be sent to a worker: {error}") from None
    if len(data) > MAX_FRAME_BYTES:
        raise FrameTooLong(f"a frame of {len(data)} bytes, {MAX_FRAME_BYTES} allowed")
    return _LENGTH.pack(len(data)) + data


def send(file: int, record: msgspec.Struct, *, timeout: float | None = None) -> None:
    """Write a whole frame to a pipe.

    Raises:
        TimeoutError: nobody has read it in `timeout` seconds.
        Unsendable: nothing was written.
    """
    end = None if timeout is None else time.monotonic() + timeout
    view = memoryview(frame(record))
    while view:
        _wait(file, select.POLLOUT, end)
        view = view[os.write(file, view[: select.PIPE_BUF]) :]


def receive(
    file: int,
    kind: type[Record],
    *,
    timeout: float | None = None,
    max_bytes: int = MAX_FRAME_BYTES,
) -> Record | None:
    """The next frame; None where the other side has closed.

    Raises:
        TimeoutError: it was not whole in `timeout` seconds.
        FrameTooLong, msgspec.ValidationError, msgspec.DecodeError: it is none of ours.
    """
    end = None if timeout is None else time.monotonic() + timeout
    header = _exactly(file, _LENGTH.size, end)
    if header is None:
        return None
    (length,) = _LENGTH.unpack(header)
    if length > max_bytes:
        raise FrameTooLong(f"a frame of {length} bytes, {max_bytes} allowed")
    data = _exactly(file, length, end)
    return None if data is None else msgspec.msgpack.decode(data, type=kind)


class Incoming(Generic[Record]):
    """Frames of a pipe that is read as it has something, as others are."""

    def __init__(self, kind: type[Record], *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._decoder, self._max_bytes = msgspec.msgpack.Decoder(kind), max_bytes
        self._data = bytearray()

    def take(self, data: bytes) -> list[Record]:
        """The records that are whole with it.

        Raises:
            FrameTooLong, msgspec.ValidationError, msgspec.DecodeError: it is none of ours.
        """
        self._data += data
        records: list[Record] = []
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > self._max_bytes:
                raise FrameTooLong(f"a frame of {length} bytes, {self._max_bytes} allowed")
            end = _LENGTH.size + length
            if len(self._data) < end:
                break
            records.append(self._decoder.decode(bytes(self._data[_LENGTH.size : end])))
            del self._data[:end]
        return records


def _exactly(file: int, count: int, end: float | None) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        _wait(file, select.POLLIN, end)
        part = os.read(file, min(count - len(data), 2**16))
        if not part:
            return None
        data += part
    return bytes(data)


def _wait(file: int, event: int, end: float | None) -> None:
    """Until the pipe can be read, or takes PIPE_BUF bytes; TimeoutError after `end`."""
    poll = select.poll()
    poll.register(file, event)
    if not poll.poll(None if end is None else max(0.0, end - time.monotonic()) * 1000):
        raise TimeoutError


def _plain(value: Any) -> Any:
    """Arrays and their scalars, as data sets hold them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a column holds {type(value).__name__}, which rewards cannot be given")
