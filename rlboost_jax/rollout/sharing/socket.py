"""Unix socket for the tenants of a device: other processes of the same user.

Invariants: processes of other users are refused (SO_PEERCRED, and a folder that is its owner's
alone); a line has at most `MAX_LINE_BYTES`; a tenant that says anything else gets an error and
is disconnected; its orders end with its connection.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, assert_never

import msgspec

from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.rollout.sharing.shared_server import SharedServer
from rlboost_jax.rollout.sharing.slack import Due, Latencies
from rlboost_jax.rollout.sharing.tenant_protocol import (
    MAX_LINE_BYTES,
    Answer,
    BudgetOrder,
    OrderRefused,
    Promise,
    StateAsked,
    TenantQueue,
    decode_order,
    encode_line,
)
from rlboost_jax.trust.listener_limits import ListenerLimits

OPTION: Final = "--budget_socket"
MAX_TENANTS: Final = 16
LIMITS: Final = ListenerLimits(
    name="budget socket",
    connections=MAX_TENANTS,  # of this user's own processes; others cannot open it
    credential_connections=MAX_TENANTS,
    newcomers=1,  # who is accepted is known at once, by the kernel's word
    newcomer_seconds=1.0,
    handshake_seconds=1.0,
    connection_bytes=2**17,
    idle_seconds=365 * 86_400.0,  # a tenant may have nothing to say for as long as it likes
    message_bytes=MAX_LINE_BYTES,
    credential_bytes=2 * MAX_TENANTS * MAX_LINE_BYTES,  # asyncio reads on up to twice a line
    total_bytes=2 * MAX_TENANTS * MAX_LINE_BYTES,
)
MAX_PATH_BYTES: Final = 107  # of a Unix socket's address
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid


class SocketUnusable(Mistake, ValueError):
    """`--budget_socket` names a place where listening is not safe."""


def peer_uid(connection: socket.socket) -> int:
    """User id of the process at the other end, as the kernel reports it."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(raw)[1]
    return uid


@contextlib.asynccontextmanager
async def tenants_heard(
    path: Path, sharing: SharedServer, *, user_of: Callable[[socket.socket], int] = peer_uid
) -> AsyncIterator[None]:
    """Listen at `path` while the context lasts.

    Args:
        user_of: a connection's other end.

    Raises:
        SocketUnusable: the folder is not this user's alone, or something is in the way.
    """
    check_place(path)
    numbers = itertools.count()
    open_now: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now[asyncio.current_task()] = writer
        try:
            refusal = ""
            if user_of(writer.get_extra_info("socket")) != os.geteuid():
                refusal = "another user's process"
            elif len(open_now) > LIMITS.connections:
                refusal = f"there are {MAX_TENANTS} tenants already"
            await _serve(reader, writer, sharing, next(numbers), refusal=refusal)
        finally:
            open_now.pop(asyncio.current_task())
            writer.close()

    try:
        server = await asyncio.start_unix_server(connected, path, limit=LIMITS.message_bytes)
    except OSError as error:
        raise SocketUnusable(f"--budget_socket={path}: {error.strerror or error}") from None
    os.chmod(path, 0o600)
    try:
        yield
    finally:
        server.close()
        hearing = [task for task in open_now if task is not None]
        for task in hearing:
            task.cancel()
        await asyncio.gather(*hearing, return_exceptions=True)
        with contextlib.suppress(OSError):
            path.unlink()


def check_place(path: Path, option: str = OPTION, *, own: bool = True) -> None:
    """Make the socket's folder, private to this user, and remove an old socket.

    Args:
        option: that named the path.
        own: False: a socket there may be another process's, and stays.

    Raises:
        SocketUnusable.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise SocketUnusable(
            f"{option}={path} is longer than {MAX_PATH_BYTES} bytes; choose a shorter path"
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = path.parent.stat()
        if folder.st_uid != os.geteuid() or folder.st_mode & 0o077:
            raise SocketUnusable(
                f"{option}={path}: {path.parent} has mode "
                f"{stat.S_IMODE(folder.st_mode):o}; other users could enter it: "
                "choose a folder of this user's with mode 700"
            )
        if os.path.lexists(path):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise SocketUnusable(f"{option}={path} is there and is no socket")
            if not own:
                return
            if _answers(path):
                raise SocketUnusable(
                    f"{option}={path} is another process's; a server needs one of its own"
                )
            path.unlink()
    except OSError as error:
        raise SocketUnusable(f"{option}={path}: {error.strerror or error}") from None


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionError:
            return False
        return True


async def _serve(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    sharing: SharedServer,
    tenant: int,
    *,
    refusal: str,
) -> None:
    """Serve one tenant.

    Args:
        refusal: why it is not listened to; "": it is.
    """
    if refusal:
        await _say(writer, OrderRefused(reason=refusal))
        return
    latencies: Latencies | None = None
    try:
        while line := await reader.readline():
            match decode_order(line):
                case BudgetOrder() as order:
                    await _say(writer, await sharing.order(tenant, order))
                case Promise(first_token_seconds=first, token_seconds=each):
                    latencies = Latencies(first_token_seconds=first, token_seconds=each)
                    sharing.queue(tenant, latencies, ())
                    await _say(writer, sharing.state)
                case TenantQueue(dues=dues):
                    if latencies is None:
                        await _say(writer, OrderRefused(reason="a queue before a promise"))
                        return
                    sharing.queue(tenant, latencies, _dues(dues, sharing.now))
                case StateAsked():
                    await _say(writer, sharing.state)
                case never:
                    assert_never(never)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        await _say(writer, OrderRefused(reason=" ".join(str(error).split())[:200]))
    except ValueError:  # of `readline`
        await _say(writer, OrderRefused(reason=f"a line of over {MAX_LINE_BYTES} bytes"))
    except (ConnectionError, asyncio.CancelledError):  # the server ends; streams want no other end
        pass
    finally:
        sharing.left(tenant)


def _dues(offsets: tuple[tuple[float, float, bool], ...], now: float) -> tuple[Due, ...]:
    return tuple(Due(at=now + at, needs=needs, first=first) for at, needs, first in offsets)


async def _say(writer: asyncio.StreamWriter, answer: Answer) -> None:
    with contextlib.suppress(ConnectionError):
        writer.write(encode_line(answer) + b"\n")
        await writer.drain()
