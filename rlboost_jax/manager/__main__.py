"""The manager process, which a run's trainer starts: rlboost manager --workdir=W

Reads `<W>/config.json`, makes tokens and certificates if there are none, listens, then writes
`<W>/manager.json` for trainers and people to find it; appends to `<W>/events.jsonl`. Goes on from
`<W>/journal/` where an earlier manager of the run was killed.
Ends with code 0 when the run is over, 3 when no trainer came back, 4 when another manager
works there, 2 on a mistake in what it was given, 1 where the system failed it or ran out of
something.
"""

import asyncio
import contextlib
import datetime
import logging
import os
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import web

from rlboost_jax.manager.events import (
    Record,
    Shutdown,
)
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.service.disk_writer import DiskWriter
from rlboost_jax.manager.service.journal_files import JournalFiles
from rlboost_jax.manager.service.manager_app import make_app, manager_limits
from rlboost_jax.manager.service.manager_driver import Driver
from rlboost_jax.manager.service.market_feed import market, priced
from rlboost_jax.manager.service.observers import watches_of
from rlboost_jax.manager.service.page.page_process import page_of
from rlboost_jax.manager.service.replay import parts_of
from rlboost_jax.manager.service.wall_clock import WallClock
from rlboost_jax.manager.settings import Settings
from rlboost_jax.observe.events_file import EventsWriter
from rlboost_jax.platform import command_parser, process_liveness
from rlboost_jax.platform.exhaustion import exhausted
from rlboost_jax.platform.malloc import keep_small
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.platform.output_relay import speak_through_relay
from rlboost_jax.platform.private_paths import own_folder
from rlboost_jax.platform.shortage import meet_shortages
from rlboost_jax.providers.base import Rendezvous
from rlboost_jax.providers.log_files import remove_old_logs
from rlboost_jax.providers.market import initial_capacity, market_events
from rlboost_jax.providers.price_command import prices
from rlboost_jax.providers.provider_choice import open_provider
from rlboost_jax.settings.config_loading import read_run_config, read_run_id
from rlboost_jax.settings.for_servers import sent_to_servers
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.trust import authority
from rlboost_jax.trust.addresses import for_other_hosts, for_this_host, names, public, settings_of
from rlboost_jax.trust.gate import RUNNER_OPTIONS, Gate
from rlboost_jax.trust.peer_limits import server_frame_bytes
from rlboost_jax.trust.run_files import (
    ALREADY_MANAGED,
    AlreadyManaged,
    ManagerRecord,
    Tokens,
    authority_folder,
    join_folder,
    only_manager,
    read_record,
    read_tokens,
    recorded,
    trainer_folder,
)
from rlboost_jax.trust.seal import prepare_seal
from rlboost_jax.weights.compiled import FOLDER as COMPILED
from rlboost_jax.weights.connections import connections_each
from rlboost_jax.weights.file_server.file_server_orders import FileServerSetup
from rlboost_jax.weights.file_server.file_server_process import FileServer, listening_socket
from rlboost_jax.weights.wheels import check_place

BROKEN, MISTAKE = 1, 2  # exit codes
SHUTDOWN_SECONDS = 1.0  # for handlers to end
END_SECONDS = 1.0  # for what was logged to be written

log = logging.getLogger("rlboost_jax.manager")


def main(arguments: list[str] | None = None) -> int:
    parser = command_parser.parser("manager", __doc__)
    parser.add_argument("--workdir", type=Path, required=True, help="of the run; has config.json")
    workdir = parser.parse_args(arguments).workdir.absolute()
    keep_small()
    speak_through_relay(END_SECONDS)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        own_folder(workdir, "--workdir")
        run, run_id = read_run_config(workdir), read_run_id(workdir)
        run = replace(run, fleet=run.fleet.as_billed())
        check_place(run.fleet.wheelhouse)
        with only_manager(workdir):
            return asyncio.run(serve(workdir, run, run_id))
    except (Mistake, AlreadyManaged, OSError, MemoryError) as error:
        if line := exhausted(error):
            print(line, file=sys.stderr)
            return BROKEN
        print(error, file=sys.stderr)
        if isinstance(error, AlreadyManaged):
            return ALREADY_MANAGED
        return MISTAKE if isinstance(error, Mistake) else BROKEN


async def serve(workdir: Path, run: RunConfig, run_id: str) -> int:
    """Manage one run until it is over; returns the exit code.

    Raises:
        OSError: the address cannot be listened on.
    """
    loop, dates = asyncio.get_running_loop(), WallClock()
    meet_shortages(loop, lambda error: driver.fail(error))
    with contextlib.ExitStack() as stack:
        events = stack.enter_context(EventsWriter(workdir))

        def write(moment: float, line: Record) -> None:
            events.write(
                time=moment,
                step=line.step,
                kind=line.kind,
                instance=line.instance,
                detail=line.detail,
            )

        aside = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="journal"))
        journal = JournalFiles(workdir / "journal", run_id, later=aside.submit)
        stack.callback(journal.close)
        journal.check()
        to_read = journal.size()
        writer = stack.enter_context(
            DiskWriter(journal.append, write, lambda error: driver.fail(error))
        )
        former = _former(workdir, run_id)
        tokens, tls = read_tokens(workdir), _tls(workdir, run.manager.host)
        listener = _weights_listener(run, former)
        settings = Settings.of(run, run_id, weights_port=listener.getsockname()[1])
        manager = Manager(settings, loop.time(), life=secrets.token_hex(8))
        step = run.observe.profile_step
        watch = watches_of(stack, workdir, step=step, remove_old=remove_old_logs)
        route_bytes = settings.routing.route_bytes if settings.routing else 0
        files = _file_server(
            listener, workdir, run, tokens, writer, lambda error: driver.fail(error), dates.now
        )
        driver = Driver(
            manager,
            *(writer.record, writer.append, watch, route_bytes, files.serve),
            recovers=True,
            date=dates.now,
        )
        writer.record(dates.now(), Record("manager", -1, "", {"pid": os.getpid()}))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, driver.apply, Shutdown(number.name))
        frame_bytes = server_frame_bytes(
            slots=run.engine.slots,
            slot_tokens=run.slot_tokens,
            max_pending=run.manager.max_pending,
            route_bytes=route_bytes,
        )
        gate = Gate(manager_limits(frame_bytes, route_bytes))
        app = make_app(
            driver,
            tokens=tokens,
            server_frame_bytes=frame_bytes,
            route_bytes=route_bytes,
            gate=gate,
            config=msgspec.json.encode(sent_to_servers(run)),
            snapshots=workdir / "snapshots",
            weights_port=settings.weights_port,
            weights_connections=connections_each(run.fleet.most_instances),
            progress=lambda: f" ({journal.read_bytes:,} of {to_read:,} bytes)",
        )
        runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN_SECONDS, **RUNNER_OPTIONS)
        await runner.setup()
        assert runner.server is not None
        listen = partial(gate.listen, runner.server, run.manager.host, tls=tls)
        try:
            # Its connections are closed later, by the runner: some are in the middle of an answer.
            port = former.port if former is not None else 0
            wanted = run.manager.port
            with settings_of(run.manager.host, wanted, "manager.port", first=former is None):
                listening = await _listening(listen, wanted, port)
            with contextlib.closing(listening) as server:
                host, port = server.sockets[0].getsockname()[:2]
                record = _record(workdir, run_id, host, port, files.port)
                async with contextlib.AsyncExitStack() as shown:
                    shown.enter_context(recorded(workdir, record))
                    await shown.enter_async_context(
                        page_of(
                            workdir,
                            run.observe.page,
                            first=former is None,
                            report=lambda line: writer.record(
                                dates.now(), Record("page", -1, "", {"reason": line})
                            ),
                            fail=driver.fail,
                        )
                    )
                    log.info("listening on %s, for weights on port %d", record.address, files.port)
                    await driver.recover(parts_of(journal))
                    for damage in journal.damages:
                        log.error("damaged journal: %s; what is missing is made again", damage)
                        writer.record(dates.now(), Record("journal", -1, "", {"reason": damage}))
                    return await _manage(driver, workdir, run, record, former)
        finally:
            await files.close()
            await runner.cleanup()


def _former(workdir: Path, run_id: str) -> ManagerRecord | None:
    """Record of an earlier manager of this run that died; None if there is none."""
    before = read_record(workdir)
    return before if before is not None and before.run_id == run_id else None


def _weights_listener(run: RunConfig, former: ManagerRecord | None) -> socket.socket:
    """Listen on the configured port; if any will do, on the former manager's one if it is free."""
    wanted = run.manager.weights_port
    if wanted == 0 and former is not None and former.weights_port:
        with contextlib.suppress(OSError):
            return listening_socket(run.manager.host, former.weights_port)
    with settings_of(run.manager.host, wanted, "manager.weights_port", first=former is None):
        return listening_socket(run.manager.host, wanted)


def _file_server(
    listener: socket.socket,
    workdir: Path,
    run: RunConfig,
    tokens: Tokens,
    writer: DiskWriter,
    fail: Callable[[BaseException], None],
    date: Callable[[], float],
) -> FileServer:
    setup = FileServerSetup(
        server_token=tokens.server,
        trainer_token=tokens.trainer,
        authority=str(authority_folder(workdir)),
        compiled=str(workdir / COMPILED),
        wheels=run.fleet.wheelhouse and str(Path(run.fleet.wheelhouse).expanduser()),
    )

    def report(reason: str) -> None:
        writer.record(date(), Record("file_server", -1, "", {"reason": reason}))

    return FileServer(listener, setup, report, fail)


def _tls(workdir: Path, host: str) -> ssl.SSLContext:
    """TLS context to listen with.

    Certificates and the public key of the weights' seal are written where their users look for
    them.
    """
    folder, servers, trainer = (
        of(workdir) for of in (authority_folder, join_folder, trainer_folder)
    )
    authority.prepare(
        authority=folder,
        servers=servers,
        trainer=trainer,
        names=names(host),
        now=datetime.datetime.now(datetime.UTC),
    )
    prepare_seal(trainer, [servers])
    return authority.server_tls(folder)


def _record(workdir: Path, run_id: str, host: str, port: int, weights_port: int) -> ManagerRecord:
    """Record of this process and of the ports it listens on."""
    return ManagerRecord(
        address=for_other_hosts(host, port),
        local_address=for_this_host(host, port),
        join=str(join_folder(workdir)),
        pid=os.getpid(),
        started=process_liveness.start_time(os.getpid()),
        run_id=run_id,
        weights_port=weights_port,
    )


async def _manage(
    driver: Driver,
    workdir: Path,
    run: RunConfig,
    record: ManagerRecord,
    former: ManagerRecord | None,
) -> int:
    """Manage the run from the end of recovery to the end of the run; return the exit code.

    Args:
        record: of this manager.
        former: of the one whose servers may be left.
    """
    rendezvous = Rendezvous(
        run_id=record.run_id,
        workdir=workdir,
        address=public(record.address, run.fleet.public_address),
        local_address=record.local_address,
        join=join_folder(workdir),
    )
    provider = open_provider(run.fleet, rendezvous)
    await driver.employ(provider, found_us=former is not None and record.port == former.port)
    events = market_events(run.fleet, seed=run.seed)
    driver.follow(market(events, initial_capacity(run.fleet), driver.begun))
    if run.fleet.price_command:
        driver.follow(priced(prices(run.fleet)))
    code = (await driver.finished).code
    await driver.close()
    return code


async def _listening(
    listen: Callable[[int], Awaitable[asyncio.Server]], port: int, former: int
) -> asyncio.Server:
    """Listen on the configured port; if any will do, on the former manager's one if it is free."""
    if port == 0 and former:
        with contextlib.suppress(OSError):
            return await listen(former)
    return await listen(port)


if __name__ == "__main__":
    sys.exit(main())
