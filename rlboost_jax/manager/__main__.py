"""The manager process: `python -m rlboost_jax.manager --workdir=W`.

Reads `<W>/config.json`, makes `<W>/token` if there is none, listens, then writes
`<W>/manager.json` for trainers and people to find it; appends to `<W>/events.jsonl`.
Ends with code 0 when the run is over, 3 when no trainer came back, 2 on a mistake in what
it was given.
"""

import argparse
import asyncio
import contextlib
import fcntl
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from aiohttp import web

from rlboost_jax.config.errors import ConfigError
from rlboost_jax.config.load import read_run_config, read_run_id
from rlboost_jax.config.records import FleetConfig, ManagerConfig, RunConfig
from rlboost_jax.fleet.local import LocalProvider
from rlboost_jax.fleet.market import MarketEvent, initial_capacity, market_events
from rlboost_jax.manager.app import make_app
from rlboost_jax.manager.driver import Driver
from rlboost_jax.manager.events import (
    InstanceExited,
    MachineAdded,
    MachineRemoved,
    Record,
    ServerFound,
    Shutdown,
)
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state import Manager
from rlboost_jax.observe.events import EventsWriter
from rlboost_jax.weights.serve import add_routes

MISTAKE = 2  # exit code
SHUTDOWN_SECONDS = 1.0  # for handlers to end

log = logging.getLogger("rlboost_jax.manager")


class AlreadyManaged(RuntimeError):
    """Another manager works in the same directory."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rlboost_jax.manager", description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True, help="of the run; has config.json")
    workdir = parser.parse_args(arguments).workdir.absolute()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        run, run_id = read_run_config(workdir), read_run_id(workdir)
        with _only_one(workdir):
            return asyncio.run(serve(workdir, run, run_id))
    except (ConfigError, AlreadyManaged, OSError) as error:
        print(error, file=sys.stderr)
        return MISTAKE


async def serve(workdir: Path, run: RunConfig, run_id: str) -> int:
    """Manage one run until it is over; returns the exit code.

    Raises:
        OSError: the address cannot be listened on.
    """
    loop = asyncio.get_running_loop()
    token_file = workdir / "token"
    token = _token(token_file)
    with EventsWriter(workdir) as events:

        def record(time: float, line: Record) -> None:
            events.write(
                time=time,
                step=line.step,
                kind=line.kind,
                instance=line.instance,
                detail=line.detail,
            )

        manager = Manager(Settings.of(run, run_id), loop.time())
        driver = Driver(manager, record)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, driver.apply, Shutdown(number.name))
        app = make_app(
            driver,
            token=token,
            config=(workdir / "config.json").read_bytes(),
            add_routes=[lambda app: add_routes(app, manager.manifest)],
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            await _listen(runner, run.manager, _former_port(workdir, run_id))
            host, port = runner.addresses[0][:2]
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            with _manager_file(workdir, address, token_file, run_id):
                log.info("listening on %s", address)
                market = _open_fleet(driver, run, workdir, address, token_file)
                code = (await driver.finished).code
                if market is not None:
                    market.cancel()
                await driver.close()
        finally:
            await runner.cleanup()
    return code


def _open_fleet(
    driver: Driver, run: RunConfig, workdir: Path, address: str, token_file: Path
) -> asyncio.Task[None] | None:
    """Let the provider and the market begin, where servers are not started by hand."""
    if run.fleet.provider != "local":
        return None
    provider = LocalProvider(
        workdir,
        address,
        token_file,
        price_per_hour=run.fleet.price_per_hour,
        on_exit=lambda name, code: driver.apply(InstanceExited(name, f"exit code {code}")),
    )
    driver.provider = provider
    for name in provider.adopt():  # a manager that was killed has left them
        driver.apply(ServerFound(name))
    events = market_events(run.fleet, seed=run.seed)
    return asyncio.create_task(driver.follow(_market(events, run.fleet, driver.begun)))


async def _market(
    events: Iterator[MarketEvent], settings: FleetConfig, begun: asyncio.Event
) -> AsyncIterator[MachineAdded | MachineRemoved]:
    """The market in real time. What it lends at first is there at once; then its clock
    waits for the first step, so that no chaos is spent on an idle fleet."""
    for number in range(1, initial_capacity(settings) + 1):
        yield MachineAdded(f"machine-{number}")
    loop = asyncio.get_running_loop()
    opened: float | None = None
    for event in events:
        if event.seconds > 0:
            await begun.wait()
            opened = opened or loop.time()
            await asyncio.sleep(max(0.0, opened + event.seconds - loop.time()))
        if event.kind == "add":
            yield MachineAdded(event.name)
        else:
            yield MachineRemoved(event.name, event.kind == "terminate", event.draw)


async def _listen(runner: web.AppRunner, settings: ManagerConfig, former_port: int) -> None:
    """On the port of the settings, or on the one before where any will do and it is free."""
    if settings.port == 0 and former_port:
        with contextlib.suppress(OSError):
            await web.TCPSite(runner, settings.host, former_port).start()
            return
    await web.TCPSite(runner, settings.host, settings.port).start()


def _former_port(workdir: Path, run_id: str) -> int:
    """Where a manager of this run that was killed used to listen; its servers dial on. 0: none."""
    try:
        record = json.loads((workdir / "manager.json").read_text())
        return int(record["address"].rpartition(":")[2]) if record["run_id"] == run_id else 0
    except (OSError, ValueError, KeyError):
        return 0


def _token(path: Path) -> str:
    """The bearer token of the workdir, readable by its owner only; made where absent."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
    token = path.read_text().strip()
    if not token:
        raise ConfigError(f"{path} is empty; delete it, and a new token is made")
    return token


@contextlib.contextmanager
def _only_one(workdir: Path) -> Iterator[None]:
    """Hold the workdir's lock, which the system frees however the process ends."""
    with open(workdir / "manager.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyManaged(
                f"a manager works in {workdir} already; {workdir / 'manager.json'} says where"
            ) from None
        yield


@contextlib.contextmanager
def _manager_file(workdir: Path, address: str, token_file: Path, run_id: str) -> Iterator[None]:
    """`manager.json`, in one piece, for as long as the manager listens."""
    path = workdir / "manager.json"
    part = workdir / "manager.json.part"
    values = {
        "address": address,
        "token_file": str(token_file),
        "pid": os.getpid(),
        "run_id": run_id,
    }
    part.write_text(json.dumps(values) + "\n")
    part.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
