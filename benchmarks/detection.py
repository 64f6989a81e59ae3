"""How long a lost server goes unnoticed, by fault.

    python -m benchmarks.detection --count=100 --busy=2

A real manager process, real sockets, servers without an engine (`benchmarks/streams.py`).
Each is struck at a moment of its own; the time until its `lost` line in events.jsonl is
shown. `--busy` processes keep the cores busy meanwhile. "cable" needs the right to make
network namespaces and is left out where there is none.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.streams import Connection, Wire, serving
from configs import tiny
from rlboost_jax import messages as m
from rlboost_jax.observe.events_file import read_events
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.trust.credentials import Credentials, Endpoint, read_credentials
from rlboost_jax.trust.run_files import join_folder, trainer_folder

PATIENCE_SECONDS = 600.0  # for anything here: on a busy machine a process takes long to start
SPREAD_SECONDS = 1.0  # over which servers of one kind are struck: some three renewals
PER_PROCESS = 5  # streams that die together
PROGRESS_SECONDS = 3.0  # manager.progress_seconds of these runs
LOCAL = "127.0.0.1"
HERE, THERE = "10.87.65.1", "10.87.65.2"  # ends of the cable


@dataclass(frozen=True)
class Loss:
    seconds: float  # from the fault to the record; below 0 for a false alarm
    reason: str


@dataclass
class Bench:
    """A manager at work, and the trainer that it waits for."""

    workdir: Path
    port: int
    servers: Credentials
    trainer: aiohttp.ClientWebSocketResponse
    struck: dict[str, float] = field(default_factory=dict)  # name → seconds since the epoch

    def manager(self, address: str = "") -> Endpoint:
        """For servers, at its own address or at that of a wire to it."""
        return Endpoint(address=address or f"{LOCAL}:{self.port}", credentials=self.servers)

    def strike(self, name: str) -> None:
        self.struck[name] = time.time()

    async def losses(self) -> dict[str, Loss]:
        """Wait until all struck servers are lost, and return the losses."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            found = {
                e["instance"]: Loss(e["time"] - self.struck[e["instance"]], e["detail"]["reason"])
                for e in read_events(self.workdir)
                if e["kind"] == "lost" and e["instance"] in self.struck
            }
            if found.keys() == self.struck.keys():
                return found
            await asyncio.sleep(0.1)
        raise TimeoutError(f"{len(self.struck) - len(found)} are not lost")


@asynccontextmanager
async def bench(workdir: Path) -> AsyncIterator[Bench]:
    """Start a bench with a fresh manager."""
    config = tiny.get_config()
    config.deterministic = False  # no reserved engine, whose fingerprint others would need
    config.fleet.provider = "none"
    config.manager.host = "0.0.0.0"
    config.manager.progress_seconds = PROGRESS_SECONDS
    write_run_config(workdir / "config.json", run_config(config), "bench")
    command = [sys.executable, "-m", "rlboost_jax.manager", f"--workdir={workdir}"]
    with open(workdir / "manager.log", "wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        await wait_for(lambda: (workdir / "manager.json").exists(), "the manager")
        record = json.loads((workdir / "manager.json").read_text())
        port = int(record["address"].rpartition(":")[2])
        own = read_credentials(trainer_folder(workdir), environment={})
        there = Endpoint(address=f"{LOCAL}:{port}", credentials=own)
        async with (
            aiohttp.ClientSession(headers=there.headers) as session,
            session.ws_connect(
                there.url("/trainer"), ssl=there.tls, max_msg_size=m.MAX_FRAME_BYTES
            ) as trainer,
        ):
            await trainer.send_bytes(m.encode(m.TrainerHello(run_id="bench", window=None)))
            reading = asyncio.create_task(_read(trainer))
            servers = read_credentials(join_folder(workdir), environment={})
            yield Bench(workdir, port, servers, trainer)
            reading.cancel()
    finally:
        process.kill()
        process.wait()


async def _read(stream: aiohttp.ClientWebSocketResponse) -> None:
    async for _ in stream:  # the fleet's status, mostly
        pass


async def wait_for(settled: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not settled():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what}")
        await asyncio.sleep(0.02)


# Faults. Each strikes `count` servers and returns what became of them.


async def killed(bench: Bench, count: int) -> dict[str, Loss]:
    return await _signalled(bench, count, signal.SIGKILL)


async def stopped(bench: Bench, count: int) -> dict[str, Loss]:
    return await _signalled(bench, count, signal.SIGSTOP)


async def _signalled(bench: Bench, count: int, number: signal.Signals) -> dict[str, Loss]:
    """Processes with some streams each."""
    with ExitStack() as stack:
        groups = []
        for first in range(0, count, PER_PROCESS):
            prefix = f"{number.name}{first}"
            size = min(PER_PROCESS, count - first)
            process = stack.enter_context(_streams(bench, prefix, size))
            groups.append((process.pid, [f"{prefix}-{i}" for i in range(size)]))
        await wait_for(lambda: _joined(bench, number.name) == count, "servers")

        async def strike(pid: int, names: list[str]) -> None:
            await asyncio.sleep(random.uniform(0, SPREAD_SECONDS))
            for name in names:
                bench.strike(name)
            os.kill(pid, number)

        await asyncio.gather(*(strike(*group) for group in groups))
        return await bench.losses()


@contextmanager
def _streams(
    bench: Bench, prefix: str, count: int, *wrapper: str, address: str = LOCAL
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [
            *(*wrapper, sys.executable, "-m", "benchmarks.streams"),
            *(f"--manager={address}:{bench.port}",),
            *(f"--join={join_folder(bench.workdir)}", f"--count={count}", f"--prefix={prefix}"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # of servers that are hung up on
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _joined(bench: Bench, prefix: str) -> int:
    events = read_events(bench.workdir)
    return sum(e["kind"] == "joined" and e["instance"].startswith(prefix) for e in events)


async def _cut(bench: Bench, count: int, kind: str, cut: Callable[[Connection], None]) -> Any:
    """Servers behind a wire of our own."""
    names = [f"{kind}-{i}" for i in range(count)]
    async with Wire(LOCAL, bench.port) as wire, contextlib.AsyncExitStack() as stack:
        for name in names:  # one by one: the order of dials tells whose connection is whose
            await stack.enter_async_context(serving(bench.manager(wire.address), [name]))

        async def strike(name: str, connection: Connection) -> None:
            await asyncio.sleep(random.uniform(0, SPREAD_SECONDS))
            bench.strike(name)
            cut(connection)

        await asyncio.gather(*map(strike, names, wire.connections))
        return await bench.losses()


async def cut_both_ways(bench: Bench, count: int) -> dict[str, Loss]:
    def cut(connection: Connection) -> None:
        connection.up = connection.down = False

    return await _cut(bench, count, "both", cut)


async def cut_to_the_manager(bench: Bench, count: int) -> dict[str, Loss]:
    def cut(connection: Connection) -> None:
        connection.up = False

    return await _cut(bench, count, "up", cut)


async def cut_from_the_manager(bench: Bench, count: int) -> dict[str, Loss]:
    def cut(connection: Connection) -> None:
        connection.down = False

    return await _cut(bench, count, "down", cut)


async def half_open(bench: Bench, count: int) -> dict[str, Loss]:
    """The server's end is gone, and the manager's was never notified."""

    def cut(connection: Connection) -> None:
        connection.up = connection.down = False
        connection.writers[0].transport.abort()

    return await _cut(bench, count, "half", cut)


async def stuck(bench: Bench, count: int) -> dict[str, Loss]:
    """Servers that take work, renew their leases and do nothing.

    They are struck as they are given their work. Those that are left get that of the others, so
    there is one rollout each.
    """
    names = [f"stuck-{i}" for i in range(count)]
    async with serving(bench.manager(), names):
        manifest = m.Manifest(
            version=0,
            directory=str(bench.workdir / "snapshots"),
            params_digest="d",
            list_sha256="list",
        )
        await bench.trainer.send_bytes(m.encode(m.Publish(manifest=manifest)))
        ready = lambda: sum(e["kind"] == "ready" for e in read_events(bench.workdir))  # noqa: E731
        await wait_for(lambda: ready() >= count, "weights")
        sampling = m.Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=99, stop_ids=())
        prompt = m.pack_tokens([1])
        begin = m.BeginBatch(
            batch=0, version=0, params_digest="d", seed=0, group_size=1, sampling=sampling,
            prompts=tuple(m.PromptRequest(prompt=p, tokens=prompt) for p in range(count)),
        )  # fmt: skip
        for name in names:
            bench.strike(name)
        await bench.trainer.send_bytes(m.encode(begin))
        return await bench.losses()


async def cable_pulled(bench: Bench, count: int) -> dict[str, Loss]:
    """Servers in a network namespace of their own, whose link goes down. Ours must not be the
    host's: see `main`."""
    with _cable() as enter, _streams(bench, "cable", count, *enter, address=HERE):
        await wait_for(lambda: _joined(bench, "cable") == count, "servers")
        await asyncio.sleep(random.uniform(0, SPREAD_SECONDS))
        for i in range(count):
            bench.strike(f"cable-{i}")
        _ip("link", "set", "rlb0", "down")
        return await bench.losses()


@contextmanager
def _cable() -> Iterator[list[str]]:
    """A link from this namespace (HERE) to another (THERE); yields what enters that one."""
    other = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
    enter = ["nsenter", "-t", str(other.pid), "-n"]
    try:
        while os.readlink(f"/proc/{other.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert other.poll() is None, "it came up before"
            time.sleep(0.01)
        _ip("link", "add", "name", "rlb0", "type", "veth", "peer", "name", "rlb1")
        _ip("link", "set", "rlb1", "netns", str(other.pid))
        for wrapper, end, address in (([], "rlb0", HERE), (enter, "rlb1", THERE)):
            _ip("addr", "add", f"{address}/30", "dev", end, wrapper=wrapper)
            _ip("link", "set", end, "up", wrapper=wrapper)
        yield enter
    finally:
        other.kill()
        other.wait()  # its end of the link goes with it, and so does ours


def _ip(*arguments: str, wrapper: Sequence[str] = ()) -> None:
    subprocess.run([*wrapper, "ip", *arguments], check=True)


FAULTS: dict[str, Callable[[Bench, int], Awaitable[dict[str, Loss]]]] = {
    "killed": killed,
    "stopped": stopped,
    "cut both ways": cut_both_ways,
    "cut to manager": cut_to_the_manager,
    "cut from manager": cut_from_the_manager,
    "half open": half_open,
    "stuck": stuck,
    "cable": cable_pulled,
}


async def measure(fault: str, count: int) -> list[Loss]:
    """Strike so many servers of a fresh manager."""
    with tempfile.TemporaryDirectory() as folder:
        async with bench(Path(folder)) as manager:
            return list((await FAULTS[fault](manager, count)).values())


def row(fault: str, losses: list[Loss]) -> str:
    seconds = sorted(loss.seconds for loss in losses)
    p50, p99 = (seconds[math.ceil(share * len(seconds)) - 1] for share in (0.5, 0.99))
    reasons = sorted({re.sub(r"(?<=for )[\d.]+ s", "… s", loss.reason) for loss in losses})
    times = "".join(f"{value:9.3f}" for value in (p50, p99, seconds[-1]))
    alarms = sum(value < 0 for value in seconds)
    return f"{fault:18}{len(seconds):5}{times}{alarms:7}   {'; '.join(reasons)}"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that only compute."""
    spin = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(spin) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def may_make_namespaces() -> bool:
    """Whether a cable can be laid, in a network that is ours alone."""
    tools = all(map(shutil.which, ("unshare", "nsenter", "ip")))
    return tools and subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="servers a fault strikes")
    parser.add_argument("--busy", type=int, default=0, help="processes that compete for the cores")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--inside", action="store_true", help="this network is ours alone")
    args = parser.parse_args()
    faults = list(args.faults)
    if "cable" in faults and not args.inside:
        if may_make_namespaces():
            again = [sys.executable, "-m", "benchmarks.detection", *sys.argv[1:], "--inside"]
            os.execvp("unshare", ["unshare", "-rn", *again])
        faults.remove("cable")
        print("no network namespaces here: the cable stays where it is")
    if args.inside:
        _ip("link", "set", "lo", "up")
    print(f"{'fault':18}{'n':>5}{'p50 s':>9}{'p99 s':>9}{'max s':>9}  false   reason")
    with busy(args.busy):
        for fault in faults:
            print(row(fault, asyncio.run(measure(fault, args.count))), flush=True)


if __name__ == "__main__":
    main()
