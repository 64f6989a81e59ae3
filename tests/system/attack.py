"""Attack a living run with all that can happen to machines and networks, and keep a log of it.

A third of the servers at a time: killed, asked to go, stopped for good, cut off, slowed down;
the manager and the trainer by SIGKILL when the run has come to given steps.
"""

import asyncio
import contextlib
import dataclasses
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.system.harness import MARK, REPOSITORY, Run

WAVE_SECONDS = 3.0
SLOW_PERIOD_SECONDS, SLOW_SHARE = 0.05, 0.1  # it runs for a tenth of each period
SLOW_SECONDS = 6.0
DROP_SECONDS = 6.0
STOPPED_SECONDS = 6.0  # then what was left stopped is taken away, as a host would be
WAVE_PATIENCE_SECONDS = 2.0  # for a moment when servers are at work; then they are hit idle
LOOK_SECONDS = 0.02
NEAR_SECONDS = 4.0
KINDS = ("kill", "terminate", "stop", "drop", "slow")
LOSSES = ("kill", "terminate", "stop", "drop")  # after which the manager has to miss a server


@dataclasses.dataclass(frozen=True)
class Strike:
    time: float  # seconds since the epoch
    kind: str  # one of KINDS, "manager" or "trainer"
    instance: str
    pid: int


class Proxy:
    """A TCP proxy that can go silent: connections stay open and carry nothing, either way."""

    def __init__(self, target: Callable[[], tuple[str, int]]) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open = asyncio.Event()
        self._open.set()
        serving = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    def silence(self, seconds: float) -> None:
        """Nothing passes for so long; what was sent meanwhile arrives afterwards."""

        def begin() -> None:
            self._open.clear()
            self._loop.call_later(seconds, self._open.set)

        self._loop.call_soon_threadsafe(begin)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _hang_up(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Ended by `close`, or there is no manager now.
        with contextlib.suppress(asyncio.CancelledError, OSError, ValueError):
            await self._open.wait()
            far_reader, far_writer = await asyncio.open_connection(*self._target())
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(2**16):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


class Outpost:
    """A server started by hand behind a proxy of its own, and another when it has gone."""

    def __init__(self, run: Run, number: int) -> None:
        self._run, self._number = run, number
        self.proxy = Proxy(self._manager)
        self.process: subprocess.Popen[bytes] | None = None

    def keep(self) -> None:
        """See to it that one runs."""
        if self.process is not None and self.process.poll() is None:
            return
        with open(self._run.workdir / "logs" / f"outpost-{self._number}.log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "rlboost_jax.rollout"),
                    f"--manager=127.0.0.1:{self.proxy.port}",
                    f"--join={self._run.workdir / 'join'}",
                ],
                cwd=REPOSITORY,
                env={**os.environ, "NPROC": "1", MARK: str(self._run.workdir)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.proxy.close()

    def _manager(self) -> tuple[str, int]:
        record = json.loads((self._run.workdir / "manager.json").read_text())
        host, _, port = record["address"].rpartition(":")
        return host, int(port)


class Attack:
    """
    Args:
        seed: of the choice of servers and of what is done to them.
        manager_at, trainer_at: numbers of finished steps at which these are killed.
    """

    def __init__(
        self,
        run: Run,
        *,
        seed: int,
        manager_at: tuple[int, ...],
        trainer_at: tuple[int, ...],
        num_outposts: int,
    ) -> None:
        self._run, self._random = run, random.Random(seed)
        self._crashes = sorted(
            [(step, "manager") for step in manager_at] + [(step, "trainer") for step in trainer_at]
        )
        self._outposts = [Outpost(run, number) for number in range(num_outposts)]
        self._deck: list[str] = []
        self._ends: list[tuple[float, int]] = []  # when a stopped process is taken away
        self._slowed: dict[str, threading.Thread] = {}
        self.strikes: list[Strike] = []

    def until_over(self, patience_seconds: float) -> None:
        """Attack until the run has ended by itself."""
        process = self._run.process
        assert process is not None
        deadline = time.monotonic() + patience_seconds
        wave = time.monotonic()
        while process.lives:
            assert time.monotonic() < deadline, f"not over in {patience_seconds} s"
            if self._run.metrics():  # before the first there is nothing to hurt
                for outpost in self._outposts:
                    outpost.keep()
                status = self._run.status()
                busy = bool(status) and status["finished"] < status["total"] * 3 // 4
                self._crash(busy)
                if time.monotonic() >= wave + (0 if busy else WAVE_PATIENCE_SECONDS):
                    wave = max(wave + WAVE_SECONDS, time.monotonic())
                    self._strike_a_third(status)
            self._take_away()
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        self._take_away(all_of_them=True)
        for thread in self._slowed.values():
            thread.join()
        for outpost in self._outposts:
            outpost.close()

    def _crash(self, busy: bool) -> None:
        """All that are due: a manager and a trainer at the same step die together.

        Args:
            busy: servers are at work. That is waited for, for a step.
        """
        done = len(self._run.metrics()) - (not busy)
        with contextlib.suppress(OSError, ValueError):  # between two of its kind: a look later
            while self._crashes and done >= self._crashes[0][0]:
                _, victim = self._crashes[0]
                if victim == "manager":
                    pid = int(json.loads((self._run.workdir / "manager.json").read_text())["pid"])
                else:
                    pid = int((self._run.workdir / "lock").read_text())
                self._hit(victim, "", pid, signal.SIGKILL)
                self._crashes.pop(0)

    def _strike_a_third(self, status: dict[str, Any]) -> None:
        """Strike a third of the servers, those at work first; a slowed one has trouble enough."""
        pids = self._run.servers()
        for name in [name for name, thread in self._slowed.items() if not thread.is_alive()]:
            del self._slowed[name]
        fit = pids.keys() - self._slowed.keys()
        living = [i for i in status.get("instances", ()) if i["instance"] in fit]
        self._random.shuffle(living)
        living.sort(key=lambda instance: not instance["running"])
        for instance in living[: math.ceil(len(living) / 3)]:
            self._strike(instance["instance"], pids[instance["instance"]])

    def _strike(self, name: str, pid: int) -> None:
        outpost = next((o for o in self._outposts if o.process and o.process.pid == pid), None)
        kind = self._draw(can_drop=outpost is not None)
        with contextlib.suppress(OSError):  # it has left meanwhile
            match kind:
                case "kill":
                    self._hit(kind, name, pid, signal.SIGKILL)
                case "terminate":
                    self._hit(kind, name, pid, signal.SIGTERM)
                case "stop":
                    self._hit(kind, name, pid, signal.SIGSTOP)
                    self._ends.append((time.monotonic() + STOPPED_SECONDS, pid))
                case "drop":
                    assert outpost is not None
                    self.strikes.append(Strike(time.time(), kind, name, pid))
                    outpost.proxy.silence(DROP_SECONDS)
                case "slow":
                    self.strikes.append(Strike(time.time(), kind, name, pid))
                    self._slowed[name] = threading.Thread(target=_slow_down, args=(pid,))
                    self._slowed[name].start()

    def _draw(self, *, can_drop: bool) -> str:
        """The kinds in random order, each as often as the others, where it is possible."""
        if not any(can_drop or kind != "drop" for kind in self._deck):
            self._deck += self._random.sample(KINDS, len(KINDS))
        kind = next(kind for kind in self._deck if can_drop or kind != "drop")
        self._deck.remove(kind)
        return kind

    def _take_away(self, *, all_of_them: bool = False) -> None:
        now = time.monotonic()
        for due, pid in list(self._ends):
            if all_of_them or now >= due:
                self._ends.remove((due, pid))
                with contextlib.suppress(OSError):  # it has left meanwhile
                    self._kill(pid, signal.SIGKILL)

    def _hit(self, kind: str, instance: str, pid: int, number: signal.Signals) -> None:
        """The time is taken before the signal leaves: its effect can be quicker than this."""
        since = time.time()
        self._kill(pid, number)
        self.strikes.append(Strike(since, kind, instance, pid))

    def _kill(self, pid: int, number: signal.Signals) -> None:
        mark = f"{MARK}={self._run.workdir}".encode()
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if mark not in environment:  # the number is another's by now
            raise ProcessLookupError
        os.kill(pid, number)


def _slow_down(pid: int) -> None:
    """Let a process run for a tenth of the time."""
    until = time.monotonic() + SLOW_SECONDS
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(SLOW_PERIOD_SECONDS * (1 - SLOW_SHARE))
            os.kill(pid, signal.SIGCONT)
            time.sleep(SLOW_PERIOD_SECONDS * SLOW_SHARE)


@contextlib.contextmanager
def attacking(run: Run, **choices: Any) -> Iterator[Attack]:
    attack = Attack(run, **choices)
    try:
        yield attack
    finally:
        attack.close()


def detections(strikes: list[Strike], events: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Seconds from each loss of a server to the manager's word of it, by kind.

    Left out are those that a killed manager could not tell of, since the next one does not know
    who was there, and those that nobody had reported by the end of the run, when it was near.
    """
    end = max((event["time"] for event in events), default=0.0)
    managers = [strike.time for strike in strikes if strike.kind in ("manager", "trainer")]
    found: dict[str, list[float]] = {kind: [] for kind in LOSSES}
    for strike in strikes:
        if strike.kind not in LOSSES:
            continue
        words = [
            event["time"] - strike.time
            for event in events
            if event["kind"] in ("lost", "drained")
            and event["instance"] == strike.instance
            and event["time"] >= strike.time
        ]
        seconds = min(words, default=math.inf)
        if seconds == math.inf and end - strike.time < NEAR_SECONDS:
            continue
        if not any(strike.time - 1 <= time <= strike.time + min(seconds, 10) for time in managers):
            found[strike.kind].append(seconds)
    return found


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def report(run: Run, attack: Attack) -> dict[str, Any]:
    """What was done and how fast it was seen; also in `attack.json` of the workdir."""
    found = detections(attack.strikes, run.events())
    everything = [seconds for values in found.values() for seconds in values]
    counts: dict[str, int] = {}
    for strike in attack.strikes:
        counts[strike.kind] = counts.get(strike.kind, 0) + 1
    figures = {
        "strikes": counts,
        "detection_p99_seconds": quantile(everything, 0.99) if everything else None,
        "detection_seconds": {
            kind: {
                "count": len(values),
                "median": quantile(values, 0.5),
                "p99": quantile(values, 0.99),
                "most": max(values),
            }
            for kind, values in found.items()
            if values
        },
        "recovered": len(run.events("recovered")),
        "resumed": len(run.events("resumed")),
        "lost": len(run.events("lost")),
        "lost_at_work": len([e for e in run.events("lost") if e["detail"].get("count")]),
        "tokens_recovered": [e["detail"]["tokens"] for e in run.events("recovered")],
        "tokens_lost": sum(row["tokens_lost"] for row in run.metrics()),
        "tokens_generated": sum(row["tokens_generated"] for row in run.metrics()),
    }
    log = [dataclasses.asdict(strike) for strike in attack.strikes]
    Path(run.workdir / "attack.json").write_text(json.dumps({**figures, "log": log}, indent=1))
    return figures
