"""The rollout server: an engine for whichever manager it is pointed at.

It asks the manager for the run's configuration, prepares every program, and only then
registers: a server that is known to the manager is one that can work at once.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import jax
import msgspec

from rlboost_jax.engine.compiles import num_compiles
from rlboost_jax.engine.device_memory import NotEnoughMemory
from rlboost_jax.engine.dispatches import NonFiniteLogits
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.invariance import RowsNotInvariant
from rlboost_jax.engine.shared import SharedEngine
from rlboost_jax.engine.step_programs import AttentionNotAvailable
from rlboost_jax.messages import FAILED_EXIT_CODE, decode_server, encode
from rlboost_jax.observe.span_recorder import Recorder
from rlboost_jax.platform import compile_cache
from rlboost_jax.platform.exhaustion import exhausted
from rlboost_jax.platform.jax_switches import check_switches, devices_found
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.providers.base import NONCE_VARIABLE
from rlboost_jax.qualification.engine_start import server_run
from rlboost_jax.qualification.trial_host import HERE, Host
from rlboost_jax.rollout import health
from rlboost_jax.rollout.client import FIRST_BACKOFF_SECONDS, InstanceClient
from rlboost_jax.rollout.dialing import dial_problem
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.rollout.file_server_offer import FileServerOffer, file_server, read_offer
from rlboost_jax.rollout.instance import engine_of, hello_of
from rlboost_jax.rollout.log_lines import KeptRecords, LogLines
from rlboost_jax.rollout.manager_stream import ServerRejected
from rlboost_jax.rollout.narration import Narrator, narrate
from rlboost_jax.rollout.notices.metadata_server import CloudNotice
from rlboost_jax.rollout.notices.notice_watch import watch_machine
from rlboost_jax.rollout.options import ANSWER_SECONDS, arguments
from rlboost_jax.rollout.peer_port import peer_port
from rlboost_jax.rollout.scorer import Scorer, scorer_of
from rlboost_jax.rollout.server_pullers import server_pullers
from rlboost_jax.rollout.sharing.shared_device import SharedDevice, shared_engine_of
from rlboost_jax.rollout.sharing.shared_server import SharedServer
from rlboost_jax.rollout.sharing.socket import SocketUnusable
from rlboost_jax.settings.config_loading import run_config_from_dict
from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.settings.memory_estimates import server_scoring_bytes
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.trust.credentials import (
    COPY_AGAIN,
    CredentialsUnusable,
    Endpoint,
    explain,
    read_credentials,
)
from rlboost_jax.weights.compiled import fetch_compiled
from rlboost_jax.weights.pieces import MOST_CONNECTIONS

CANNOT_SERVE = 2  # exit code: something to change on the command line or at the manager


class CannotServe(RuntimeError):
    """This server cannot work as it was started. One line: what is wrong, what to change."""


def main(argv: list[str], *, host: Host = HERE) -> int:
    """Serve until asked to leave; returns the exit code.

    0: it was asked to; `CANNOT_SERVE`; `FAILED_EXIT_CODE`: the device failed, ran out of memory,
    or gives what are no numbers, or the host lacks something.
    """
    args = arguments(argv)
    try:
        check_switches()
        manager = Endpoint(address=args.manager, credentials=read_credentials(args.join))
        log = LogLines([manager.credentials.token])
        logging.getLogger().addHandler(logging.StreamHandler())
        logging.getLogger().addHandler(KeptRecords(log))
        config, offer = asyncio.run(fetch_settings(manager, args.patience_seconds))
        asks = args.compiled == "fetch"
        files = file_server(manager, args.weights, offer.port) if asks else None
        build: Callable[..., Engine] = Engine
        if args.budget_socket is not None or args.neighbour_socket is not None:
            build = shared_engine_of(args)
        with health.preparing():
            teaches = build is Engine and config.distillation.on_servers
            engine = prepared_engine(
                config,
                host=host,
                build=build,
                say=log.say,
                files=files,
                connections=offer.connections,
                spare_bytes=server_scoring_bytes(config) if teaches else 0,
            )
            scorer = scorer_of(config, engine, log.say)
        serving = _serve(args, manager, config, engine, scorer, log, offer.connections)
        reason = asyncio.run(serving)
    except (
        CannotServe,
        CredentialsUnusable,
        ServerRejected,
        ConfigError,
        AttentionNotAvailable,
        NotEnoughMemory,
        RowsNotInvariant,
        SocketUnusable,
    ) as error:
        line = "; ".join(str(error).splitlines())
        print(f"rollout server at {args.manager}: {line}", file=sys.stderr, flush=True)
        return CANNOT_SERVE
    except (OSError, RuntimeError, MemoryError) as error:  # also "can't start new thread"
        line = exhausted(error)
        if not line and isinstance(error, NonFiniteLogits | jax.errors.JaxRuntimeError):
            line = " ".join(f"{type(error).__name__}: {error}".split())
        if not line:
            raise
        print(f"rollout server at {args.manager}: failed: {line}", file=sys.stderr, flush=True)
        return FAILED_EXIT_CODE
    print(f"leaving: {reason}", flush=True)
    return 0


async def fetch_config(manager: Endpoint, patience_seconds: float) -> RunConfig:
    """Fetch the run's configuration, see `fetch_settings`."""
    return (await fetch_settings(manager, patience_seconds))[0]


async def fetch_settings(
    manager: Endpoint, patience_seconds: float
) -> tuple[RunConfig, FileServerOffer]:
    """Fetch the run's configuration from the manager, and the offer of its file server.

    Args:
        patience_seconds: how long to try a manager that does not answer, in case it is
            about to come up.

    Raises:
        CannotServe, ConfigError.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_seconds
    said = False  # what is wrong
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(headers=manager.headers, timeout=timeout) as session:
        while True:
            try:
                async with session.get(manager.url("/config"), ssl=manager.tls) as response:
                    if response.status in (401, 403):
                        raise CannotServe(f"wrong token; {COPY_AGAIN}")
                    if response.status != 200:
                        raise CannotServe(
                            f"HTTP {response.status} for /config; is this a rlboost-jax manager?"
                        )
                    values: Any = await response.json(content_type=None)
                    offer = read_offer(response.headers)
                    break
            except aiohttp.InvalidURL:
                raise CannotServe("--manager must be HOST:PORT") from None
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                explanation = explain(error)
                problem = explanation or dial_problem(error, manager.address)
                if loop.time() >= deadline:
                    raise CannotServe(problem) from None
                if not said:
                    print(f"{problem}; trying for {patience_seconds:g} s", flush=True)
                    said = True
                await asyncio.sleep(FIRST_BACKOFF_SECONDS)
            except ValueError:
                raise CannotServe("/config is not JSON; is this a rlboost-jax manager?") from None
    if not isinstance(values, dict):
        raise CannotServe("/config is not a configuration; is this a rlboost-jax manager?")
    try:
        return run_config_from_dict(values), offer
    except ConfigError as error:  # it was checked where it was written
        reason = "; ".join(str(error).splitlines()[:2])
        raise CannotServe(
            f"the run's configuration is of another release ({reason}); install the release of the "
            "manager here"
        ) from None


def prepared_engine(
    config: RunConfig,
    *,
    host: Host = HERE,
    build: Callable[..., Engine] = Engine,
    say: Callable[[str], None] = lambda line: print(line, flush=True),
    files: Endpoint | None = None,
    connections: int = MOST_CONNECTIONS,
    spare_bytes: int = 0,
) -> Engine:
    """Build the engine with `engine_of`, with lines for the server's log.

    Args:
        host: that it is to run on.
        build: makes the engine.
        say: takes a line.
        files: server of the run's compiled programs; None: there is none.
        connections: to that, at a time.
        spare_bytes: of the device's memory to leave to others, if an engine fits beside them.

    Raises:
        AttentionNotAvailable: this device cannot run what all engines of the run have to.
    """
    place = compile_cache.enable(config.compile_cache_dir)
    # Before any device is touched.
    config = server_run(config, say=say, host=host)
    say(f"device {devices_found()[0].device_kind}; compiled programs in {place}")
    if files is not None:
        say(asyncio.run(fetch_compiled(files, compile_cache.kind(), place, connections)))
    started = time.perf_counter()
    try:
        engine = engine_of(config, announce=say, build=build, taken_bytes=spare_bytes)
    except NotEnoughMemory:
        if not spare_bytes:
            raise
        engine = engine_of(config, announce=say, build=build)
    say(f"programs ready in {time.perf_counter() - started:.1f} s")
    return engine


async def _serve(
    args: argparse.Namespace,
    manager: Endpoint,
    config: RunConfig,
    engine: Engine,
    scorer: Scorer | None,
    log: LogLines,
    connections: int,
) -> str:
    stack = contextlib.AsyncExitStack()
    port = await stack.enter_async_context(peer_port(config.weights, manager, args.peers, log.say))
    hello = hello_of(
        engine,
        name=args.name,
        reserved=False,
        price_per_hour=args.price,
        zone=args.zone,
        nonce=os.environ.get(NONCE_VARIABLE, ""),
        peer=port.offer,
    )
    puller, teachers = server_pullers(
        config.weights,
        manager,
        args.weights,
        scores=scorer is not None,
        connections=connections,
        say=log.say,
        peers=port.exchange,
    )
    try:
        decode_server(encode(hello))
    except msgspec.ValidationError as error:
        raise CannotServe(
            f"a manager would not take its introduction: {error}; --name and {NONCE_VARIABLE} have "
            "letters, digits, '.', '_' and '-' only and are short, and so is --zone"
        ) from None
    before = num_compiles()
    sharing = SharedServer(engine, say=log.say) if isinstance(engine, SharedEngine) else None
    device = SharedDevice(args, sharing, log.say)
    hello = msgspec.structs.replace(hello, bids=device.has_neighbours)
    worker = EngineWorker(engine, Recorder(config.observe.profile_step), turns=sharing)

    def reach(port: int) -> None:
        for each in (puller, teachers):
            each.reach(port)

    client = InstanceClient(
        lambda: manager,
        hello,
        worker,
        puller,
        teachers=teachers,
        scorer=scorer,
        orphan_seconds=config.fleet.orphan_seconds,
        compiled=lambda: num_compiles() - before,
        reach=reach,
        log=log,
        peers=port.exchange,
        bid=device.bid,
    )
    _heed_signals(args, config.fleet, client)

    def tell(notice: CloudNotice) -> None:
        log.say(f"notice: {notice.reason}")
        if notice.seconds is None:
            client.hint(notice.reason)
        else:
            client.notice(notice.seconds, notice.reason)

    cloud = args.notices or config.fleet.notices
    watching = asyncio.ensure_future(watch_machine(cloud, tell, log.say, address=args.notices_url))
    narrator = Narrator(log.say)
    narrating = asyncio.ensure_future(narrate(client.seen, narrator))
    log.say(f"registering with {args.manager}")
    try:
        async with stack, puller, teachers, device.shared(worker):
            return await client.run()
    finally:
        for task in (watching, narrating):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        _heed_no_more()


def _heed_no_more() -> None:
    """Ignore signals while this server leaves.

    The loop would close its pipe for them before it takes its handlers back: what comes in between
    would be printed as an error.
    """
    signal.set_wakeup_fd(-1)


def _heed_signals(args: argparse.Namespace, fleet: FleetConfig, client: InstanceClient) -> None:
    """End this server at once on SIGINT and SIGTERM, unless that signal comes with some grace.

    A second one of the kind does: its sender has lost patience.
    """
    loop = asyncio.get_running_loop()
    for leave in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(leave, client.leave, leave.name)
    given = args.notice_seconds
    seconds = fleet.notice_seconds if given is None else given
    if seconds == 0:
        return
    name = args.notice_signal or fleet.notice_signal
    number = signal.Signals[name]

    def notice() -> None:
        loop.add_signal_handler(number, client.leave, name)
        client.notice(seconds, name)

    loop.add_signal_handler(number, notice)
