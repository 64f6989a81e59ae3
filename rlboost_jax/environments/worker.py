"""An environment worker: many episodes in one process, or each in one that is forked for it.

`python -m rlboost_jax.environments.worker SOCKET`, started by `processes.py`, where SOCKET is the
number of a file that is inherited. It imports the environment's factory once. With
`environment.isolation = "episode"` it runs none itself: it forks for each episode, with the socket
that comes with the request.
"""

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from rlboost_jax.environments import frames
from rlboost_jax.environments.factories import Make, check_made, maker_of
from rlboost_jax.environments.foreign import described
from rlboost_jax.environments.forks import fork_for_each
from rlboost_jax.environments.protocol import ToolCall, ToolResult
from rlboost_jax.environments.runner import (
    EnvironmentFailed,
    EpisodeRunner,
    KnownCall,
    OutcomeUnknown,
)
from rlboost_jax.rewards.calls import prctl
from rlboost_jax.rewards.frames import FrameTooLong, frame
from rlboost_jax.settings.errors import ConfigError

STACK_BYTES: Final = 2**20  # of a thread; there may be hundreds
_PR_SET_PDEATHSIG: Final = 1
_LENGTH_BYTES: Final = 4


def main() -> None:
    line = _own(socket.socket(fileno=int(sys.argv[1])))
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # with the trainer's thread that keeps us
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):  # environments may print and read as they like
        os.dup2(nowhere, standard)
    data = _frame(line)
    if data is None:
        return
    setup = frames.decode_to_worker(data)
    assert isinstance(setup, frames.Setup)
    os.environ["RLBOOST_SANDBOX"] = "required" if setup.sandbox_required else "best_effort"
    try:
        make = maker_of(setup.name, setup.options)
        _try(setup, make)
    except ConfigError as error:
        line.sendall(frame(frames.Ready(mistake=str(error))))
        return
    line.sendall(frame(frames.Ready()))
    os.dup2(nowhere, 2)  # what is printed for every episode would bury the run's own lines
    gc.collect()
    gc.freeze()
    if setup.isolation == "shared":
        _serve_here(line, setup, make)
    else:
        fork_for_each(line, lambda own: _serve_here(_own(own), setup, make))


def _own(line: socket.socket) -> socket.socket:
    """Programs that a tool starts do not get it: they would hold it open when we are gone, and the
    trainer would not hear of that."""
    line.set_inheritable(False)
    return line


def _try(setup: frames.Setup, make: Make) -> None:
    """Raise ConfigError for a factory that makes no environment."""
    try:
        made = make()
    except Exception as error:
        raise ConfigError(
            f"environment.name {setup.name!r} makes nothing of environment.options: "
            f"{described(error)}"
        ) from error
    check_made(setup.name, made)
    close = getattr(made, "close", None)
    if close is not None and not asyncio.iscoroutinefunction(close):
        close()


def _serve_here(line: socket.socket, setup: frames.Setup, make: Make) -> None:
    threading.stack_size(STACK_BYTES)
    _limit_memory(setup.memory_mb)
    asyncio.run(serve(line, setup, make))
    os._exit(0)  # threads that are stuck are not waited for


def _limit_memory(megabytes: int) -> None:
    """Allow so much memory beyond what is written to now (imported modules). Linux only."""
    try:
        with open("/proc/self/status") as file:
            kilobytes = next(int(row.split()[1]) for row in file if row.startswith("VmData:"))
    except (OSError, StopIteration):
        return
    limit = kilobytes * 1024 + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _frame(line: socket.socket) -> bytes | None:
    """The next one, before there is an event loop."""
    data = bytearray()
    length = _LENGTH_BYTES
    while len(data) < length:
        part = line.recv(length - len(data))
        if not part:
            return None
        data += part
        if len(data) == _LENGTH_BYTES:
            length = _LENGTH_BYTES + int.from_bytes(data, "little")
    return bytes(data[_LENGTH_BYTES:])


async def serve(line: socket.socket, setup: frames.Setup, make: Make) -> None:
    """Run episodes until the other side closes."""
    reader, writer = await asyncio.open_connection(sock=line)
    worker = _Worker(writer, setup, make)
    while (data := await frames.received(reader)) is not None:
        try:
            worker.hear(frames.decode_to_worker(data))
        except (FrameTooLong, msgspec.MsgspecError):
            return


class _Episode:
    """One, and the ledger that its runner asks: the trainer."""

    def __init__(self, worker: "_Worker", number: int) -> None:
        self._worker, self._number = worker, number
        self.runner = EpisodeRunner(
            worker.make, ledger=self, time_limit_seconds=worker.setup.time_limit_seconds
        )
        self.task: asyncio.Task[None] | None = None
        self.known: asyncio.Future[list[KnownCall]] | None = None

    async def begin(self, calls: Sequence[ToolCall], lasting: Sequence[bool]) -> list[KnownCall]:
        self.known = asyncio.get_running_loop().create_future()
        asked = frames.Calling(episode=self._number, calls=tuple(calls), lasting=tuple(lasting))
        self._worker.say(asked)
        return await self.known

    async def done(self, result: ToolResult) -> None:
        self._worker.say(frames.CallEnded(episode=self._number, result=result))


class _Worker:
    def __init__(self, writer: asyncio.StreamWriter, setup: frames.Setup, make: Make) -> None:
        self._writer, self.setup, self.make = writer, setup, make
        self._episodes: dict[int, _Episode] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def say(self, said: frames.FromWorker) -> None:
        self._writer.write(frame(said))

    def hear(self, message: frames.ToWorker) -> None:
        match message:
            case frames.Reset():
                episode = self._episodes[message.episode] = _Episode(self, message.episode)
                episode.task = asyncio.create_task(self._open(episode, message))
            case frames.GiveTurn():
                if (found := self._episodes.get(message.episode)) is not None:
                    found.task = asyncio.create_task(self._take(found, message))
            case frames.Known():
                found = self._episodes.get(message.episode)
                if found is not None and found.known is not None and not found.known.done():
                    found.known.set_result(list(message.calls))  # type: ignore[arg-type]
            case frames.Close():
                self._close(message.episode)
            case frames.Ping():
                self.say(frames.Pong(number=message.number))

    async def _open(self, episode: _Episode, message: frames.Reset) -> None:
        try:
            said = await episode.runner.reset(message.example, message.seed)
            tools = _described(episode.runner)
            answer = frames.Opened(
                episode=message.episode, said=frames.WireObservation.of(said), tools=tools
            )
            self.say(answer)
        except Exception as error:
            self._broke(message.episode, error)

    async def _take(self, episode: _Episode, message: frames.GiveTurn) -> None:
        since = time.monotonic()
        try:
            done = await episode.runner.step(message.turn, key=message.key)
            step = done.step
            self.say(
                frames.Taken(
                    episode=message.episode,
                    turn=done.turn,
                    said=frames.WireObservation.of(step.observation),
                    reward=step.reward,
                    done=step.done,
                    metrics=dict(step.metrics),
                    seconds=time.monotonic() - since,
                    stuck=episode.runner.stuck,
                    anew=step.anew,
                    tools=_described(episode.runner) if step.anew else (),
                )
            )
        except Exception as error:
            self._broke(message.episode, error)

    def _broke(self, number: int, error: Exception) -> None:
        """What else is raised than a failure is the worker's own way to be, such as a frame that
        cannot be sent: it costs this episode."""
        episode = self._episodes[number]
        self.say(
            frames.Broken(
                episode=number,
                why=str(error) if isinstance(error, EnvironmentFailed) else described(error),
                for_good=isinstance(error, OutcomeUnknown),
                stuck=episode.runner.stuck,
            )
        )
        self._close(number)

    def _close(self, number: int) -> None:
        episode = self._episodes.pop(number, None)
        if episode is None:
            return
        if episode.task is not None and episode.task is not asyncio.current_task():
            episode.task.cancel()
        task = asyncio.create_task(episode.runner.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _described(runner: EpisodeRunner) -> tuple[frames.ToolSpec, ...]:
    return tuple(
        frames.ToolSpec(
            name=tool.name, description=tool.description, parameters=dict(tool.parameters)
        )
        for tool in runner.tools.values()
    )


if __name__ == "__main__":
    main()
