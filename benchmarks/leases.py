"""What else a manager's process does, and how long a renewal of a lease waits for it.

    python -m benchmarks.leases --json=benchmarks/results/leases.json

Some servers without an engine renew their leases with a real manager process, and each answer is
timed, as are the manager's seconds on a core. Meanwhile, in turns within one run, pullers download
a snapshot at full rate, or tokens come for a journal on a disk whose every write takes half a
second. *Before*: the manager's event loop serves the files and writes the journal; *after*: the
file server and the disk writer do.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Literal, get_args

import aiohttp

from configs import tiny
from rlboost_jax import messages as m
from rlboost_jax.manager.events import Record
from rlboost_jax.manager.journal_entries import Entry
from rlboost_jax.manager.service import disk_writer, journal_files
from rlboost_jax.observe.events_file import read_events
from rlboost_jax.sequences.identities import Version
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.trust.credentials import Endpoint, read_credentials

Place = Literal["before", "after"]
SERVERS = 8
PULLERS = 8
FILE_BYTES = 256 * 2**20
CHUNK_BYTES = 2**20
RENEW_SECONDS = 0.05  # more often than servers do, for more to count
SLOW_SECONDS = 0.5  # of a write to the slow disk
LEASE_SECONDS = 1.5
MAX_TOKENS = 99  # of a response: one every 0.2 s


def manager_main(workdir: str, place: Place, slow: bool) -> None:
    """The manager's process, with what was moved out of its loop put back where that is asked."""
    from rlboost_jax.manager import __main__ as manager
    from rlboost_jax.manager.service import manager_app
    from rlboost_jax.weights import serve

    if slow:

        def write(descriptor: int, data: memoryview) -> int:
            time.sleep(SLOW_SECONDS)
            return os.write(descriptor, data)

        journal_files.JournalFiles.__init__.__kwdefaults__["write"] = write
    if place == "before":

        class Inline(disk_writer.DiskWriter):
            def append(self, entries: Sequence[Entry], done: disk_writer.Done) -> None:
                done(self._append(entries))

            def record(self, time: float, record: Record) -> None:
                self._record(time, record)

        manager.DiskWriter = Inline  # type: ignore[misc]
        make_app = manager_app.make_app

        def with_weights(driver: Any, **options: Any) -> Any:
            made = make_app(driver, **options)
            versions = serve.ServedVersions()
            serve.add_routes(made, versions)
            announce = driver._serve

            def tell(manifests: Any) -> None:
                announce(manifests)
                served = list(map(serve.served_version, manifests))
                asyncio.get_running_loop().create_task(versions.replace(served))

            driver._serve = tell
            return made

        manager.make_app = with_weights
    sys.exit(manager.main([f"--workdir={workdir}"]))


@contextmanager
def managing(workdir: Path, place: Place, *, slow: bool = False) -> Iterator[None]:
    config = tiny.get_config()
    config.deterministic = False
    config.fleet.provider = "none"
    config.manager.lease_seconds = LEASE_SECONDS
    write_run_config(workdir / "config.json", run_config(config), "bench")
    program = (
        f"from benchmarks.leases import manager_main as m; m({str(workdir)!r}, {place!r}, {slow})"
    )
    with open(workdir / "manager.log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-c", program], stderr=log)
    try:
        while not (workdir / "manager.json").exists():
            assert process.poll() is None, (workdir / "manager.log").read_text()
            time.sleep(0.02)
        yield
    finally:
        process.kill()
        process.wait()


def endpoint(workdir: Path, folder: str, port: str = "") -> Endpoint:
    record = json.loads((workdir / "manager.json").read_text())
    credentials = read_credentials(workdir / folder, environment={})
    host, _, own = record["local_address"].rpartition(":")
    return Endpoint(address=f"{host}:{record[port] if port else own}", credentials=credentials)


class Server:
    """Renews its lease, gives tokens where asked for, and knows how long each answer took."""

    def __init__(self, name: str, stream: aiohttp.ClientWebSocketResponse) -> None:
        self._name, self._stream = name, stream
        self.seconds: list[float] = []
        self.requests: list[m.GenerateRequest] = []
        self._asked: list[float] = []
        self._stamp = 0.0
        self._sequence = 0

    async def join(self) -> None:
        hello = m.Hello(
            instance=self._name, reserved=False, slots=1, slot_tokens=2**17, price_per_hour=0.0,
            zone="", host="", device="none", fingerprint="none", fetches_lists=True,
        )  # fmt: skip
        await self._stream.send_bytes(m.encode(hello))

    async def hear(self) -> None:
        async for frame in self._stream:
            match m.decode_to_server(frame.data):
                case m.Welcome(stamp=stamp):
                    self._stamp = stamp
                case m.Renewed(stamp=stamp):
                    self._stamp = stamp
                    self.seconds.append(time.monotonic() - self._asked.pop(0))
                case m.Announce(manifest=chosen):
                    ready = m.Ready(version=chosen.version, params_digest=chosen.params_digest)
                    await self._stream.send_bytes(m.encode(ready))
                case m.Generate(requests=requests):
                    self.requests += requests

    async def renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            self._asked.append(time.monotonic())
            await self._stream.send_bytes(m.encode(m.Renew(echo=self._stamp)))

    async def work(self) -> None:
        """A token of the first response every 0.2 s."""
        while True:
            await asyncio.sleep(0.2)
            ids = [r.request_id for r in self.requests[:1]]
            tokens = m.TokenBatch(
                sequence=self._sequence, version=0, request_ids=m.pack_ids(ids),
                counts=m.pack_counts([1] * len(ids)), tokens=m.pack_tokens([1] * len(ids)),
                logprobs=m.pack_logprobs([-1.0] * len(ids)), in_flight=len(ids), running=len(ids),
                waiting=max(0, len(self.requests) - 1), prefilled_again=0,
            )  # fmt: skip
            self._sequence += 1
            await self._stream.send_bytes(m.encode(tokens))


@asynccontextmanager
async def renewing(workdir: Path, *, working: bool = False) -> AsyncIterator[list[Server]]:
    """Servers at a manager that has one version and, for `working`, a step."""
    trainers, servers = endpoint(workdir, "trainer"), endpoint(workdir, "join")
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def dial(there: Endpoint, path: str) -> aiohttp.ClientWebSocketResponse:
            return await stack.enter_async_context(
                session.ws_connect(
                    there.url(path), headers=there.headers, ssl=there.tls, max_msg_size=2**28
                )
            )

        trainer = await dial(trainers, "/trainer")
        await trainer.send_bytes(m.encode(m.TrainerHello(run_id="bench", window=None)))
        await trainer.send_bytes(m.encode(m.Publish(manifest=_snapshot(workdir))))
        those = [Server(f"s{i}", await dial(servers, "/instance")) for i in range(SERVERS)]
        tasks = [asyncio.create_task(_drain(trainer))]
        for server in those:
            await server.join()
            tasks += [asyncio.create_task(part) for part in (server.hear(), server.renew())]
        if working:
            await trainer.send_bytes(m.encode(_step()))
            tasks += [asyncio.create_task(server.work()) for server in those]
        try:
            yield those
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _drain(stream: aiohttp.ClientWebSocketResponse) -> None:
    async for _ in stream:
        pass


def _step() -> m.BeginBatch:
    sampling = m.Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=MAX_TOKENS, stop_ids=(0,))
    return m.BeginBatch(
        batch=0, version=0, params_digest="d", seed=0, group_size=1, sampling=sampling,
        prompts=tuple(
            m.PromptRequest(prompt=p, tokens=m.pack_tokens([1])) for p in range(SERVERS)
        ),
    )  # fmt: skip


def _snapshot(workdir: Path) -> m.Manifest:
    place = workdir / "snapshots" / "0"
    place.mkdir(parents=True)
    with open(place / "a", "wb") as file:
        for _ in range(FILE_BYTES // CHUNK_BYTES):
            file.write(os.urandom(CHUNK_BYTES))
    entry = m.FileEntry(path="a", size=FILE_BYTES, sha256="")
    pieces = m.PieceList(files=(entry,), leaves=())
    return write_list(place, pieces, version=Version(0), params_digest="d")


def _pull(workdir: str, port: str, count: int, stop: Event, total: Any) -> None:
    """The pullers' process: bytes are thrown away as they come."""

    async def one(there: Endpoint) -> None:
        async with aiohttp.ClientSession(headers=there.headers, read_bufsize=2**20) as session:
            while not stop.is_set():
                async with session.get(there.url("/weights/0"), ssl=there.tls) as answer:
                    assert answer.status == 200, answer.status
                    async for data in answer.content.iter_any():
                        total.value += len(data)
                        if stop.is_set():
                            return

    async def pull() -> None:
        there = endpoint(Path(workdir), "join", port)
        await asyncio.gather(*(one(there) for _ in range(count)))

    asyncio.run(pull())


@contextmanager
def pulling(workdir: Path, port: str) -> Iterator[Any]:
    """Yields the number of bytes so far."""
    spawn = multiprocessing.get_context("spawn")
    stop, total = spawn.Event(), spawn.Value("q", 0)
    process = spawn.Process(target=_pull, args=(str(workdir), port, PULLERS, stop, total))
    process.start()
    try:
        yield total
    finally:
        stop.set()
        process.join()


async def downloads(place: Place, seconds: float, *, pullers: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, managing(Path(folder), place):
        workdir = Path(folder)
        port = "weights_port" if place == "after" else ""
        async with renewing(workdir) as servers:
            with pulling(workdir, port) if pullers else contextlib.nullcontext() as total:
                while total is not None and not total.value:
                    await asyncio.sleep(0.05)
                await asyncio.sleep(1.0)  # the process that serves has come up
                before = total.value if total is not None else 0
                found = await _counted(workdir, servers, seconds)
                if total is not None:
                    rate = (total.value - before) / seconds
                    found["megabytes_per_second"] = round(rate / 1e6)
        return found


async def slow_disk(place: Place, seconds: float) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as folder,
        managing(Path(folder), place, slow=True),
    ):
        async with renewing(Path(folder), working=True) as servers:
            while not any(server.requests for server in servers):
                await asyncio.sleep(0.05)
            return await _counted(Path(folder), servers, seconds)


async def _counted(workdir: Path, servers: list[Server], seconds: float) -> dict[str, Any]:
    pid = json.loads((workdir / "manager.json").read_text())["pid"]
    busy = _processor_seconds(pid)
    for server in servers:
        server.seconds.clear()
    await asyncio.sleep(seconds)
    waits = sorted(second for server in servers for second in server.seconds)
    lost = [event for event in read_events(workdir) if event["kind"] == "lost"]
    return {
        "renewals": len(waits),
        **{f"p{p}_ms": round(1e3 * _quantile(waits, p / 100), 2) for p in (50, 99)},
        "max_ms": round(1e3 * waits[-1], 1) if waits else None,
        "manager_cores": round((_processor_seconds(pid) - busy) / seconds, 3),
        "lost": [event["detail"]["reason"] for event in lost],
    }


def _processor_seconds(pid: int) -> float:
    """Processor time that a process has used so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


LOADS: dict[str, Callable[[Place, float], Coroutine[Any, Any, dict[str, Any]]]] = {
    "nothing": partial(downloads, pullers=False),
    "pullers": partial(downloads, pullers=True),
    "slow-disk": slow_disk,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    args = parser.parse_args()
    rows = []
    for number in range(args.rounds):
        for place in get_args(Place):
            for load in args.loads:
                found = asyncio.run(LOADS[load](place, args.seconds))
                row = {"round": number, "load": load, "place": place, **found}
                print(json.dumps(row), flush=True)
                rows.append(row)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
