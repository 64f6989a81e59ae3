"""An environment worker: many episodes in one process, or each in one that is forked for it.

`python -m rlboost_jax.environments.environment_worker SOCKET` is started by `worker_process.py`;
SOCKET is the number of a file that is inherited. It imports the environment's factory once.
With `environment.isolation = "episode"` it runs none itself: it forks for each episode, with the
socket that comes with the request.
"""

import asyncio
import os
import resource
import socket
import threading
from collections.abc import Sequence
from typing import Final, NoReturn

import msgspec

from rlboost_jax.environments import environment_frames
from rlboost_jax.environments.factories import Make, check_made, maker_of
from rlboost_jax.environments.foreign import described
from rlboost_jax.environments.protocol import ToolCall, ToolResult
from rlboost_jax.environments.runner import (
    EnvironmentFailed,
    EpisodeRunner,
    KnownCall,
    OutcomeUnknown,
)
from rlboost_jax.platform.fork_server import ForkServer
from rlboost_jax.platform.frames import FrameTooLong, frame, read_body
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.platform.process_liveness import end_with_parent
from rlboost_jax.workers.worker_kind import Ping, Pong
from rlboost_jax.workers.worker_program import started

STACK_BYTES: Final = 2**20  # of a thread; there may be hundreds


def main() -> None:
    end_with_parent(os.getppid())  # with the trainer's thread that keeps us
    begun = started(environment_frames.EnvironmentSetup, _imported)
    if begun is None:
        return
    line, setup, make = begun
    os.dup2(1, 2)  # what is printed for every episode would bury the run's own lines
    if setup.isolation == "shared":
        _serve_here(line, setup, make)
    else:
        ForkServer(
            line,
            lambda _, own: _serve_here(socket.socket(fileno=own), setup, make),
            together=True,
        ).serve()


def _imported(setup: environment_frames.EnvironmentSetup) -> Make:
    """Import the environment's factory. Raises ConfigError if it makes no environment."""
    make = maker_of(setup.name, setup.options)
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
    return make


def _serve_here(
    line: socket.socket, setup: environment_frames.EnvironmentSetup, make: Make
) -> NoReturn:
    threading.stack_size(STACK_BYTES)
    _limit_memory(setup.memory_mb)
    asyncio.run(serve(line, setup, make))
    os._exit(0)  # threads that are stuck are not waited for


def _limit_memory(megabytes: int) -> None:
    """Limit memory to `megabytes` beyond what is in use now (imported modules). Linux only."""
    try:
        with open("/proc/self/status") as file:
            kilobytes = next(int(row.split()[1]) for row in file if row.startswith("VmData:"))
    except (OSError, StopIteration):
        return
    limit = kilobytes * 1024 + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


async def serve(
    line: socket.socket, setup: environment_frames.EnvironmentSetup, make: Make
) -> None:
    """Run episodes until the other side closes."""
    reader, writer = await asyncio.open_connection(sock=line)
    worker = _Worker(writer, setup, make)
    while (data := await read_body(reader)) is not None:
        try:
            worker.hear(environment_frames.decode_to_worker(data))
        except (FrameTooLong, msgspec.MsgspecError):
            return


class _Episode:
    """An episode, and the ledger that its runner asks: the trainer."""

    def __init__(self, worker: "_Worker", number: int) -> None:
        self._worker, self._number = worker, number
        self.runner = EpisodeRunner(
            worker.make,
            ledger=self,
            time_limit_seconds=worker.setup.time_limit_seconds,
            number=number,
        )
        self.task: asyncio.Task[None] | None = None
        self.known: asyncio.Future[list[KnownCall]] | None = None

    async def begin(self, calls: Sequence[ToolCall], lasting: Sequence[bool]) -> list[KnownCall]:
        self.known = asyncio.get_running_loop().create_future()
        asked = environment_frames.Calling(
            episode=self._number, calls=tuple(calls), lasting=tuple(lasting)
        )
        self._worker.say(asked)
        return await self.known

    async def done(self, result: ToolResult) -> None:
        self._worker.say(environment_frames.CallEnded(episode=self._number, result=result))


class _Worker:
    def __init__(
        self, writer: asyncio.StreamWriter, setup: environment_frames.EnvironmentSetup, make: Make
    ) -> None:
        self._writer, self.setup, self.make = writer, setup, make
        self._episodes: dict[int, _Episode] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def say(self, said: environment_frames.FromWorker) -> None:
        self._writer.write(frame(said))

    def hear(self, message: environment_frames.ToWorker) -> None:
        match message:
            case environment_frames.Reset():
                episode = self._episodes[message.episode] = _Episode(self, message.episode)
                episode.task = asyncio.create_task(self._open(episode, message))
            case environment_frames.GiveTurn():
                if (found := self._episodes.get(message.episode)) is not None:
                    found.task = asyncio.create_task(self._take(found, message))
            case environment_frames.Known():
                found = self._episodes.get(message.episode)
                if found is not None and found.known is not None and not found.known.done():
                    found.known.set_result(list(message.calls))  # type: ignore[arg-type]
            case environment_frames.CloseEpisode():
                self._close(message.episode)
            case Ping():
                self.say(Pong(number=message.number))

    async def _open(self, episode: _Episode, message: environment_frames.Reset) -> None:
        try:
            said = await episode.runner.reset(message.example, message.seed)
            answer = environment_frames.Opened(
                episode=message.episode,
                said=environment_frames.WireObservation.of(said),
                tools=episode.runner.tool_specs,
            )
            self.say(answer)
        except Exception as error:
            self._broke(message.episode, error)

    async def _take(self, episode: _Episode, message: environment_frames.GiveTurn) -> None:
        try:
            self.say(await episode.runner.step(message.turn, key=message.key))
        except Exception as error:
            self._broke(message.episode, error)

    def _broke(self, number: int, error: Exception) -> None:
        """End an episode after an error of the worker itself, such as a frame that cannot be sent.

        Environment failures are handled elsewhere; this costs the one episode.
        """
        episode = self._episodes[number]
        self.say(
            environment_frames.StepFailed(
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


if __name__ == "__main__":
    main()
