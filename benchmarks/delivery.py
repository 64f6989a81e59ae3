"""How long a frame takes to the manager and back while servers fetch weights at its host.

    python -m benchmarks.delivery [--pullers=16] [--link=4] [--seconds=10] [--rounds=3]

Manager, file server and pulls are the real ones, over TLS, in processes of their own. A server asks
every 10 ms for the answer to a renewal, on the stream and in the event loop that tokens take, for
some seconds without pulls and as many with them, in turns. Each puller has a link of its own of so
many MB/s. What is looked for is whether pulls delay the manager, not whether they fill two cores:
it has the first core, the file server and the pullers the last.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.loop import settings
from benchmarks.stand_in import StandIn
from benchmarks.streams import Stream, joined
from benchmarks.trainer import RUN_ID, StandInTrainer
from rlboost_jax import messages as m
from rlboost_jax.settings.config_loading import write_run_config
from rlboost_jax.trust.credentials import Endpoint, read_credentials
from rlboost_jax.weights.pull import Puller

FILE_SERVER = "rlboost_jax.weights.file_server"
MEGABYTE = 1_000_000
EVERY_SECONDS = 0.01
CHUNK = 2**16
SNAPSHOT_BYTES = 32 * MEGABYTE
STAND_IN = StandIn(rate=1e6, slots=16, steps=8, samples=64, mean=64.0, longest=256)


async def round_trips(stream: Stream, seconds: float) -> list[float]:
    """Seconds that each answer took."""
    loop = asyncio.get_running_loop()
    times, end = [], loop.time() + seconds
    while (asked := loop.time()) < end:
        await stream.send_bytes(m.encode(m.Renew(echo=0.0, round_trip=0.0)))
        while not isinstance(m.decode_to_server(await stream.receive_bytes()), m.Renewed):
            pass
        times.append(loop.time() - asked)
        await asyncio.sleep(max(0.0, asked + EVERY_SECONDS - loop.time()))
    return times


async def pull_on(address: str, join: Path, pullers: int, megabytes: float) -> None:
    """Fetch the announced version again and again; prints bytes a second, twice a second."""
    credentials = read_credentials(join, environment={})
    manager = Endpoint(address=address, credentials=credentials)
    async with joined(manager, "pullers") as (stream, welcome):
        while True:
            answer = m.decode_to_server(await stream.receive_bytes())
            if isinstance(answer, m.Announce):
                break
        host = address.rpartition(":")[0]
        target = f"{host}:{welcome.weights_port}" if welcome.weights_port else address
        async with contextlib.AsyncExitStack() as stack:
            pulls = []
            for _ in range(pullers):
                way = await stack.enter_async_context(capped(target, megabytes * MEGABYTE))
                pulls.append(Puller(source="http", manager=manager, weights=way))
                await stack.enter_async_context(pulls[-1])

            async def again(puller: Puller) -> None:
                while True:
                    await puller.pull(answer.manifest)

            tasks = [asyncio.create_task(again(puller)) for puller in pulls]
            before = 0
            while not any(task.done() for task in tasks):
                await asyncio.sleep(0.5)
                total = sum(puller.pulled.total for puller in pulls)
                print(2 * (total - before), flush=True)
                before = total
            await asyncio.gather(*tasks)


@asynccontextmanager
async def capped(target: str, rate: float) -> AsyncIterator[str]:
    """HOST:PORT that leads to a target, with so many bytes a second back."""
    host, _, port = target.rpartition(":")
    free_at = 0.0

    async def carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limited: bool
    ) -> None:
        nonlocal free_at
        now = asyncio.get_running_loop().time
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                if limited:
                    free_at = max(now(), free_at) + len(data) / rate
                    await asyncio.sleep(free_at - now())
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, there = await asyncio.open_connection(host, int(port))
        await asyncio.gather(carry(near, there, False), carry(far, back, True))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=CHUNK)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def set_apart(pid: int) -> None:
    """Keep a process to the last core. Servers have hosts of their own, and the trainer's has more
    than two cores.
    """
    os.sched_setaffinity(pid, {(os.cpu_count() or 1) - 1})


def file_servers() -> list[int]:
    """Processes that serve weights for a manager that this process has started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if FILE_SERVER in (place / "cmdline").read_text().split("\0"):
                manager = (place / "stat").read_text().rpartition(")")[2].split()[1]
                above = Path(f"/proc/{manager}/stat").read_text().rpartition(")")[2].split()[1]
                if int(above) == os.getpid():
                    found.append(int(place.name))
    return found


async def measure(address: str, join: Path, options: argparse.Namespace) -> None:
    manager = Endpoint(address=address, credentials=read_credentials(join, environment={}))
    words = [sys.executable, "-m", "benchmarks.delivery", "--at", address, "--join", str(join)]
    words += [f"--pullers={options.pullers}", f"--link={options.link}"]
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    async with joined(manager, "asks") as (stream, _):
        await round_trips(stream, 2.0)
        for _ in range(options.rounds):
            for pulling in (False, True):
                process = None
                if pulling:
                    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
                    assert process.stdout is not None
                    while not int(await process.stdout.readline()):
                        pass
                    for pid in file_servers():
                        set_apart(pid)
                times = sorted(await round_trips(stream, options.seconds))
                p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
                found[pulling].append((p50, p99))
                name = "pulls" if pulling else "alone"
                line = f"{name} p50 {p50 * 1e3:6.2f} ms, p99 {p99 * 1e3:6.2f} ms"
                if process is not None:
                    process.terminate()
                    lines = (await process.communicate())[0].split()
                    line += f", {statistics.median(map(int, lines)) / MEGABYTE:.0f} MB/s"
                print(line, flush=True)
    for name, place in (("p50", 0), ("p99", 1)):
        alone, pulls = (statistics.median(each[place] for each in found[k]) for k in (False, True))
        print(f"{name} with pulls: {pulls / alone:.2f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pullers", type=int, default=16)
    parser.add_argument("--link", type=float, default=4.0, help="MB/s of each")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    parser.add_argument("--join", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.at:
        set_apart(os.getpid())
        asyncio.run(pull_on(options.at, options.join, options.pullers, options.link))
        return
    run = settings(STAND_IN, 2, deterministic=False)
    os.sched_setaffinity(0, {0})  # this process, and the manager that it starts
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder)
        write_run_config(workdir / "config.json", run, RUN_ID)
        trainer = StandInTrainer(
            run, workdir, STAND_IN, train_rate=1e6, snapshot_bytes=SNAPSHOT_BYTES
        )
        try:
            trainer.wait_for(0)
            asyncio.run(measure(trainer.address, workdir / "join", options))
        finally:
            trainer.close()


if __name__ == "__main__":
    main()
