"""Environments of many episodes at once, in processes that may be gone at any moment.

    live = await pool.open(example, seed, ledger)      # made and reset
    taken = await live.take(turn, key)                 # a turn, with its calls
    live.close()

What is lost with a process is `Lost`; the episode is made again elsewhere. All of it is called in
one event loop.
"""

import asyncio
import itertools
import socket
from collections.abc import Mapping
from typing import Any, Final, Literal

from rlboost_jax.backoff import backoff_seconds
from rlboost_jax.environments import frames
from rlboost_jax.environments.chaos import kill_workers
from rlboost_jax.environments.forks import Forked, Forks
from rlboost_jax.environments.processes import START_SECONDS, EndedFromOutside, Line, Process
from rlboost_jax.environments.protocol import Turn
from rlboost_jax.environments.runner import CallLedger
from rlboost_jax.rewards.frames import Unsendable
from rlboost_jax.settings.environment import EnvironmentConfig
from rlboost_jax.settings.errors import ConfigError, Mistake

MOST_STARTS: Final = 20  # of a worker that somebody ends before it is ready
LOOK_SECONDS: Final = 5.0  # between two questions whether a worker still listens
GRACE_SECONDS: Final = 20.0  # for the answer, beside the time that a step may take

# Whose fault a failure is: the episode's own environment; that of one of several in a process,
# nobody knows which; or nobody's in there.
Blame = Literal["own", "shared", "outside"]


class EnvironmentWorkersLost(Mistake, RuntimeError):
    """Workers end as soon as they are started; the run cannot go on."""


class Lost(RuntimeError):
    """An environment is gone. The message says why.

    Attributes:
        for_good: to make it again is of no use.
    """

    def __init__(self, why: str, blame: Blame, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.blame: Blame = blame
        self.for_good = for_good


class Live:
    """One environment, in some process. Asked one thing at a time."""

    def __init__(self, host: "_WorkerHost", number: int, ledger: CallLedger) -> None:
        self._host, self._number, self._ledger = host, number, ledger
        self.said: asyncio.Future[Any] | None = None  # what is waited for
        self._lost: Lost | None = None
        self._noting: set[asyncio.Task[None]] = set()

    async def reset(self, example: Mapping[str, Any], seed: int) -> frames.Opened:
        """Raises Lost."""
        message = frames.Reset(episode=self._number, example=dict(example), seed=seed)
        opened = await self._asked(message)
        assert isinstance(opened, frames.Opened)
        return opened

    async def take(self, turn: Turn, key: str) -> frames.Taken:
        """Raises Lost."""
        taken = await self._asked(frames.GiveTurn(episode=self._number, turn=turn, key=key))
        assert isinstance(taken, frames.Taken)
        return taken

    def close(self) -> None:
        """Whatever is under way is lost with it."""
        self.lose(Lost("it was closed", "outside"))

    async def _asked(self, message: frames.Reset | frames.GiveTurn) -> Any:
        if self._lost is not None:
            raise self._lost
        self.said = asyncio.get_running_loop().create_future()
        try:
            self._host.say(message)
            return await self.said
        except Unsendable as error:
            raise Lost(str(error), "own", for_good=True) from None
        finally:
            self.said = None

    def hear(self, message: frames.FromWorker) -> None:
        match message:
            case frames.Calling():
                self._note(self._answer(message))
            case frames.CallEnded():
                self._note(self._ledger.done(message.result))
            case frames.Broken():
                self.lose(Lost(message.why, "own", for_good=message.for_good))
            case _:
                if self.said is not None and not self.said.done():
                    self.said.set_result(message)

    def lose(self, lost: Lost) -> None:
        """It is gone, with whatever is under way."""
        self._lost = lost
        if self.said is not None and not self.said.done():
            self.said.set_exception(lost)
        self._host.forget(self._number)

    @property
    def under_way(self) -> bool:
        return self.said is not None

    async def _answer(self, asked: frames.Calling) -> None:
        known = await self._ledger.begin(asked.calls, asked.lasting)
        self._host.say(frames.Known(episode=self._number, calls=tuple(known)))

    def _note(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._noting.add(task)
        task.add_done_callback(self._noted)

    def _noted(self, task: "asyncio.Task[None]") -> None:
        self._noting.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self.said is not None and not self.said.done():
            self.said.set_exception(error)


class _WorkerHost:
    """A process that runs episodes: some, or one."""

    def __init__(
        self, pool: "EnvironmentPool", process: Process | Forked, end: socket.socket
    ) -> None:
        self._pool, self.process = pool, process
        self.episodes: dict[int, Live] = {}
        self.retired = self.gone = False
        self.alone = False  # it is for one episode
        self._pong = 0
        self._line = Line(end, hear=self._hear, over=self._over, how_it_ended=process.how_it_ended)

    def say(self, message: frames.ToWorker) -> None:
        if not self.gone:
            self._line.say(message)

    def forget(self, number: int) -> None:
        if self.episodes.pop(number, None) is None:
            return
        self.say(frames.Close(episode=number))
        if (self.retired or self.alone) and not self.episodes:
            self.end()

    def end(self) -> None:
        """It, whatever it does."""
        if not self.gone:
            self.gone = True
            self._line.close()
            self.process.kill()
            self._pool.drop(self)

    async def watch(self, seconds: float) -> None:
        """Kill it where it does not answer for so long: it is frozen, or code that should wait
        does not let others."""
        number = 0
        while not self.gone:
            number += 1
            self.say(frames.Ping(number=number))
            for _ in range(max(1, round(seconds / LOOK_SECONDS))):
                await asyncio.sleep(LOOK_SECONDS)
                if self._pong == number or self.gone:
                    break
            else:
                self._over(f"the environment worker did not answer for {seconds:g} s", False)

    def _hear(self, message: frames.FromWorker) -> None:
        if isinstance(message, frames.Pong):
            self._pong = message.number
            return
        if isinstance(message, frames.Taken | frames.Broken) and message.stuck:
            self.retired = True  # a thread that is stuck ends with its process only
        assert not isinstance(message, frames.Ready)
        if (live := self.episodes.get(message.episode)) is not None:
            live.hear(message)

    def _over(self, why: str, outside: bool) -> None:
        episodes = list(self.episodes.values())
        at_work = [live for live in episodes if live.under_way]
        blame: Blame = "outside" if outside else "own" if len(at_work) == 1 else "shared"
        self.end()
        for live in episodes:
            live.lose(Lost(why, blame if live in at_work else "outside"))


class EnvironmentPool:
    """The processes of a run's environments. `start` comes first."""

    def __init__(
        self,
        settings: EnvironmentConfig,
        *,
        sandbox_required: bool = True,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._settings, self._start_seconds = settings, start_seconds
        self._setup = frames.Setup(
            name=settings.name,
            options=dict(settings.options),
            time_limit_seconds=settings.time_limit_seconds,
            memory_mb=settings.memory_mb,
            isolation=settings.isolation,
            sandbox_required=sandbox_required,
        )
        self._hosts: list[_WorkerHost] = []
        self._forks: Forks | None = None  # of "episode"
        self._numbers = itertools.count()
        self._starting = asyncio.Lock()
        self._watching: set[asyncio.Task[None]] = set()
        self._closed = False
        self.processes_lost = 0

    @property
    def pids(self) -> list[int]:
        """Of the processes that run episodes."""
        return [host.process.pid for host in self._hosts]

    async def start(self) -> None:
        """The first worker, so that a mistake is reported before anything is asked.

        Raises:
            ConfigError, OSError
        """
        if self._settings.isolation == "episode":
            self._forks = Forks(await self._started())
        else:
            await self._add_shared()
        rate = self._settings.chaos_kills_per_minute
        self._watch(kill_workers(lambda: self.pids, per_minute=rate))

    async def open(self, ledger: CallLedger, *, alone: bool = False) -> Live:
        """An environment that is not reset yet.

        Args:
            ledger: of its calls.
            alone: in a process of its own.

        Raises:
            Lost: its process was gone at once.
            EnvironmentWorkersLost: none can be started.
        """
        try:
            host = await self._host(alone)
        except (ConfigError, OSError) as error:
            raise EnvironmentWorkersLost(
                f"an environment worker cannot be started again: {error}"
            ) from error
        number = next(self._numbers)
        live = host.episodes[number] = Live(host, number, ledger)
        if host.gone:
            raise Lost("the environment worker ended at once", "outside")
        return live

    async def close(self) -> None:
        """End all of them."""
        self._closed = True
        for task in self._watching:
            task.cancel()
        for host in list(self._hosts):
            host.end()
        if self._forks is not None:
            await self._forks.close()

    def drop(self, host: _WorkerHost) -> None:
        """It has ended."""
        if host in self._hosts:
            self._hosts.remove(host)
            if not self._closed and not (host.retired or host.alone):
                self.processes_lost += 1
        self._watch(host.process.ended())

    async def _host(self, alone: bool) -> _WorkerHost:
        if self._settings.isolation == "episode":
            return await self._forked()
        if alone:
            return await self._add_shared(alone=True)
        async with self._starting:  # who comes meanwhile takes what is started here
            open_ones = [host for host in self._hosts if not (host.retired or host.alone)]
            idlest = min(open_ones, key=lambda host: len(host.episodes), default=None)
            if idlest is not None and (
                not idlest.episodes or len(open_ones) >= self._settings.workers
            ):
                return idlest
            return await self._add_shared()

    async def _add_shared(self, *, alone: bool = False) -> _WorkerHost:
        process = await self._started()
        return self._add(_WorkerHost(self, process, process.end), alone)

    async def _forked(self) -> _WorkerHost:
        async with self._starting:
            for _ in range(2):  # it may have been ended meanwhile: then there is another
                if self._forks is None or not self._forks.lives:
                    self._forks = Forks(await self._started())
                try:
                    end, forked = await self._forks.fork()
                except OSError:
                    await self._forks.close()
                else:
                    return self._add(_WorkerHost(self, forked, end), alone=True)
        raise EnvironmentWorkersLost("the process that forks for episodes ends at once")

    def _add(self, host: _WorkerHost, alone: bool) -> _WorkerHost:
        host.alone = alone
        self._hosts.append(host)
        self._watch(host.watch(self._settings.time_limit_seconds + GRACE_SECONDS))
        return host

    async def _started(self) -> Process:
        """One that is ready; who is ended while it begins has a successor.

        Raises:
            ConfigError, OSError
        """
        for ended in range(MOST_STARTS):
            process = Process(self._setup)
            try:
                await process.prepare(self._start_seconds)
                return process
            except EndedFromOutside:
                process.end.close()
                if ended + 1 == MOST_STARTS:
                    raise
                await asyncio.sleep(backoff_seconds(ended, first=0.05, longest=5.0))
            except BaseException:  # whatever it was, it goes on upwards
                process.kill()
                process.end.close()
                raise
        raise AssertionError("the last start returns or raises")

    def _watch(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
