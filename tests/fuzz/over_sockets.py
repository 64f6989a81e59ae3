"""A manager process under attack, while honest peers are at work with it.

The attackers are a process of their own. Meanwhile the manager must answer; afterwards it
must be as it was: the same process, no larger, the same fleet, no token more or less. Then
the honest finish the step, and all of its tokens are checked.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import aiohttp

from configs import tiny
from rlboost_jax import messages as m
from rlboost_jax.observe.events_file import read_events
from rlboost_jax.settings.config_loading import read_run_config, run_config, write_run_config
from rlboost_jax.trust.credentials import Endpoint, read_credentials
from rlboost_jax.weights.piece_lists import write_list
from tests.fuzz.attacks import ATTACKS, SECRET, Target
from tests.manager.fakes import RUN, batch, begin_batch, hello, length, ready, token
from tests.patience import PATIENCE_SECONDS

CROWD: Final = 6  # attacks at a time
LEAST_SENT: Final = 100  # frames and requests, however long they take
GROWTH_BYTES: Final = 32 * 2**20  # of the manager, from its first second under attack to the end
FILES: Final = {"a/0": bytes(range(256)) * 40, "b.c/.zarray": b"{}"}
DIGEST: Final = "d"
PROMPTS: Final = 8


@dataclass
class Tally:
    sent: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    answers: int = 0  # to honest questions meanwhile
    slowest_seconds: float = 0.0
    first_bytes: int = 0  # of the manager's memory
    last_bytes: int = 0

    def __str__(self) -> str:
        total = sum(self.sent.values())
        kinds = ", ".join(f"{count:,} {name}" for name, count in sorted(self.sent.items()))
        return (
            f"{total:,} in {self.seconds:.0f} s ({total / self.seconds:,.0f}/s): {kinds}; status "
            f"answered {self.answers} times, at the slowest in {self.slowest_seconds:.2f} s; "
            f"memory {self.first_bytes / 2**20:.0f} → {self.last_bytes / 2**20:.0f} MB"
        )


def fuzz(folder: Path, seconds: float, seed: int) -> Tally:
    """Attack a new manager in `folder`; raises AssertionError for what is not as it was."""
    config = tiny.get_config()
    config.fleet.provider = "none"
    config.manager.progress_seconds = seconds + 600.0  # the honest engine answers after it all
    write_run_config(folder / "config.json", run_config(config), RUN)
    return asyncio.run(_fuzz(folder, seconds, seed))


async def _fuzz(folder: Path, seconds: float, seed: int) -> Tally:
    tally = Tally()
    async with _manager(folder) as (process, address):
        honest = Honest(folder, address)
        async with honest.at_work():
            before = await honest.state()
            await _attacked(folder, address, seconds, seed, process, honest, tally)
            # Those who left last are gone as soon as the manager has come round to it.
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (after := await honest.state()) != before:
                    await asyncio.sleep(0.1)
            assert after == before
            await honest.finish()
        assert process.poll() is None, "the manager has ended"
        ended = [e for e in read_events(folder) if e["kind"] == "file_server"]
        assert not ended, f"the file server has ended: {ended}"
    log = (folder / "manager.log").read_text()
    assert "Traceback" not in log, log[-3000:]
    assert len(log) < 100_000, "any peer can fill its log"
    return tally


async def _attacked(
    folder: Path,
    address: str,
    seconds: float,
    seed: int,
    process: subprocess.Popen[bytes],
    honest: "Honest",
    tally: Tally,
) -> None:
    spawn = multiprocessing.get_context("spawn")
    outcome: Any = spawn.Queue()
    attacker = spawn.Process(
        target=_attack, args=(str(folder), address, seconds, seed, outcome), daemon=True
    )
    attacker.start()
    started = time.monotonic()
    while attacker.is_alive() and outcome.empty():
        asked = time.monotonic()
        await honest.status()
        tally.answers += 1
        tally.slowest_seconds = max(tally.slowest_seconds, time.monotonic() - asked)
        assert process.poll() is None, "the manager has ended"
        tally.last_bytes = _memory(process.pid)
        if time.monotonic() - started > min(5.0, seconds / 3) and not tally.first_bytes:
            tally.first_bytes = tally.last_bytes
        assert time.monotonic() - started < seconds + PATIENCE_SECONDS, "the attackers do not end"
        await asyncio.sleep(0.1)
    sent, error = await asyncio.to_thread(outcome.get, timeout=PATIENCE_SECONDS)
    await asyncio.to_thread(attacker.join)
    assert not error, error
    tally.sent.update(sent)
    tally.seconds = time.monotonic() - started
    tally.first_bytes = tally.first_bytes or tally.last_bytes
    grown = tally.last_bytes - tally.first_bytes
    assert grown < GROWTH_BYTES, f"grown by {grown / 2**20:.0f} MB"


def _attack(folder: str, address: str, seconds: float, seed: int, outcome: Any) -> None:
    """The attackers' process."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # of writing to who has hung up
    sent: Counter[str] = Counter()
    try:
        asyncio.run(_crowd(Path(folder), address, seconds, seed, sent))
    except BaseException:  # whatever it was, the other side must hear of it
        outcome.put((dict(sent), traceback.format_exc()))
    else:
        outcome.put((dict(sent), ""))


async def _crowd(folder: Path, address: str, seconds: float, seed: int, sent: Counter[str]) -> None:
    credentials = read_credentials(folder / "join", environment={})
    record = json.loads((folder / "manager.json").read_text())
    weights = f"{address.rpartition(':')[0]}:{record['weights_port']}"
    target = Target(
        Endpoint(address=address, credentials=credentials),
        Endpoint(address=weights, credentials=credentials),
        FILES,
    )
    deadline = time.monotonic() + seconds

    async def one(number: int) -> None:
        random = Random(seed * 1_000 + number)
        while time.monotonic() < deadline or sum(sent.values()) <= LEAST_SENT:
            attack = random.choice(ATTACKS)
            try:
                sent[attack.__name__] += await attack(target, random)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                sent["hung up on"] += 1

    await asyncio.gather(*(one(number) for number in range(CROWD)))


class Honest:
    """The trainer and its engine."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        credentials = read_credentials(folder / "trainer", environment={})
        self._manager = Endpoint(address=address, credentials=credentials)
        self._requests: list[m.GenerateRequest] = []
        self._finished: dict[int, m.FinishedRollout] = {}
        self._ended: list[str] = []

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """A step under way: the engine holds all of it and has given nothing yet."""
        async with (
            aiohttp.ClientSession(headers=self._manager.headers) as self._session,
            self._dial("/trainer") as trainer,
            self._dial("/instance") as self._engine,
        ):
            run = read_run_config(self._folder)
            sizes = {"slots": run.engine.slots, "slot_tokens": run.slot_tokens}
            engine = hello(instance="reserved", reserved=True, **sizes)
            for stream, message in (
                (trainer, m.TrainerHello(run_id=RUN, window=None)),
                (self._engine, engine),
                (self._engine, ready(0, DIGEST)),
                (trainer, m.Publish(manifest=_snapshot(self._folder))),
                (trainer, begin_batch(0, 0, DIGEST, prompts=PROMPTS)),
            ):
                await stream.send_bytes(m.encode(message))
            tasks = [
                asyncio.ensure_future(part)
                for part in (
                    self._hear(trainer, m.decode_to_trainer),
                    self._hear(self._engine, m.decode_to_server),
                    self._renew(),
                )
            ]
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(self._requests) < 2 * PROMPTS:
                    assert not self._ended, self._ended
                    await asyncio.sleep(0.02)
            yield
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _dial(self, path: str) -> Any:
        url = self._manager.url(path)
        return self._session.ws_connect(url, ssl=self._manager.tls, max_msg_size=0)

    async def status(self) -> dict[str, Any]:
        url = self._manager.url("/status")
        async with asyncio.timeout(PATIENCE_SECONDS):
            async with self._session.get(url, ssl=self._manager.tls) as answer:
                status: dict[str, Any] = await answer.json()
                return status

    async def state(self) -> dict[str, Any]:
        """What the attackers must not have changed."""
        assert not self._ended, self._ended
        status = await self.status()
        for name in ("joined", "lost", "cost_dollars", "window_seconds"):
            del status[name]  # theirs, and the clock's
        for instance in status["instances"]:
            del instance["seconds"]
        return status

    async def finish(self) -> None:
        """All of the step at once; what the trainer hears of it is what was said."""
        rows = []
        for request in self._requests:
            place = range(length(DIGEST, 0, request.work.sample))
            tokens = [token(DIGEST, 0, request.work.sample, i) for i in place]
            rows.append((request.request_id, tokens))
        await self._engine.send_bytes(m.encode(batch(0, 0, rows)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self._finished) < 2 * PROMPTS:
                await asyncio.sleep(0.02)
        for sample, result in self._finished.items():
            place = range(length(DIGEST, 0, sample))
            assert result.tokens == m.pack_tokens([token(DIGEST, 0, sample, i) for i in place])
            assert result.instances == ("reserved",)

    async def _hear(self, stream: aiohttp.ClientWebSocketResponse, decode: Any) -> None:
        async for frame in stream:
            match decode(frame.data):
                case m.Generate(requests=requests):
                    self._requests += requests
                case m.FinishedRollout(work=work) as result:
                    assert work.sample not in self._finished, "twice"
                    self._finished[work.sample] = result
        self._ended.append(f"an honest stream has ended: {stream.close_code}")

    async def _renew(self) -> None:
        while True:
            await self._engine.send_bytes(m.encode(m.Renew()))
            await asyncio.sleep(0.3)


@contextlib.asynccontextmanager
async def _manager(folder: Path) -> AsyncIterator[tuple[subprocess.Popen[bytes], str]]:
    """A manager process that listens."""
    with open(folder / "manager.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rlboost_jax.manager", f"--workdir={folder}"],
            stdout=log,
            stderr=log,
        )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (folder / "manager.json").exists():
                assert process.poll() is None, (folder / "manager.log").read_text()
                await asyncio.sleep(0.02)
        yield process, json.loads((folder / "manager.json").read_text())["local_address"]
    except BaseException as error:  # the folder goes with the caller
        error.add_note(
            f"exit code {process.poll()}; {(folder / 'manager.log').read_text()[-3000:]}"
        )
        raise
    finally:
        process.kill()
        process.wait()


def _snapshot(folder: Path) -> m.Manifest:
    """Files as a snapshot has them, and one beside them that it does not name."""
    place = folder / "snapshots" / "0"
    for path, content in {**FILES, "secret": SECRET, "a/secret": SECRET}.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)
    entries = tuple(
        m.FileEntry(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        for path, content in FILES.items()
    )
    pieces = m.PieceList(files=entries, leaves=())
    return write_list(place, pieces, version=0, params_digest=DIGEST)


def _memory(pid: int) -> int:
    """Resident bytes of a process (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
