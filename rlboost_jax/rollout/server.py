"""The rollout server: an engine for whichever manager it is pointed at.

It asks the manager for the run's configuration, prepares every program, and only then
registers: a server that is known to the manager is one that can work at once.
"""

import argparse
import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import jax
import msgspec

from rlboost_jax import compile_cache
from rlboost_jax.config.errors import ConfigError
from rlboost_jax.config.load import run_config_from_dict
from rlboost_jax.config.records import RunConfig
from rlboost_jax.credentials import (
    COPY_AGAIN,
    TOKEN_VARIABLE,
    CredentialsUnusable,
    Endpoint,
    explain,
    read_credentials,
)
from rlboost_jax.engine.compiles import num_compiles
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.invariance import RowsNotInvariant
from rlboost_jax.engine.memory import NotEnoughMemory
from rlboost_jax.engine.programs import AttentionNotAvailable
from rlboost_jax.messages import decode_server, encode
from rlboost_jax.rollout.instance import engine_of, hello_of
from rlboost_jax.rollout.stream import FIRST_BACKOFF_SECONDS, InstanceClient, Refused
from rlboost_jax.rollout.worker import Worker
from rlboost_jax.weights.pull import Puller

CANNOT_SERVE = 2  # exit code: something to change on the command line or at the manager
ANSWER_SECONDS = 10.0


class CannotServe(RuntimeError):
    """This server cannot work as it was started. One line: what is wrong, what to change."""


def main(argv: list[str]) -> int:
    """Serve until told to leave; returns the exit code."""
    args = _arguments(argv)
    try:
        manager = Endpoint(address=args.manager, credentials=read_credentials(args.join))
        config = asyncio.run(fetch_config(manager, args.patience_seconds))
        engine = prepared_engine(config)
        reason = asyncio.run(_serve(args, manager, config, engine))
    except (
        CannotServe,
        CredentialsUnusable,
        Refused,
        ConfigError,
        AttentionNotAvailable,
        NotEnoughMemory,
        RowsNotInvariant,
    ) as error:
        line = "; ".join(str(error).splitlines())
        print(f"rollout server at {args.manager}: {line}", file=sys.stderr, flush=True)
        return CANNOT_SERVE
    print(f"leaving: {reason}", flush=True)
    return 0


async def fetch_config(manager: Endpoint, patience_seconds: float) -> RunConfig:
    """The run's configuration, from the manager.

    Args:
        patience_seconds: how long to try a manager that does not answer, in case it is
            about to come up.

    Raises:
        CannotServe, ConfigError.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_seconds
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
                    break
            except aiohttp.InvalidURL:
                raise CannotServe("--manager must read HOST:PORT") from None
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                explanation = explain(error, manager.credentials)
                if loop.time() >= deadline:
                    raise CannotServe(
                        explanation
                        or f"no manager answers ({error}); is the run alive? "
                        "<workdir>/manager.json has its address"
                    ) from None
                await asyncio.sleep(FIRST_BACKOFF_SECONDS)
            except ValueError:
                raise CannotServe("/config is not JSON; is this a rlboost-jax manager?") from None
    if not isinstance(values, dict):
        raise CannotServe("/config is not a configuration; is this a rlboost-jax manager?")
    return run_config_from_dict(values)


def prepared_engine(config: RunConfig) -> Engine:
    """`engine_of` for whoever follows the server's log."""
    place = compile_cache.enable(config.compile_cache_dir)
    print(f"device {jax.devices()[0].device_kind}; compiled programs in {place}", flush=True)
    started = time.perf_counter()
    engine = engine_of(config, announce=lambda text: print(text, flush=True))
    print(f"programs ready in {time.perf_counter() - started:.1f} s", flush=True)
    return engine


async def _serve(
    args: argparse.Namespace, manager: Endpoint, config: RunConfig, engine: Engine
) -> str:
    hello = hello_of(
        engine, name=args.name, reserved=False, price_per_hour=args.price, zone=args.zone
    )
    puller = Puller(source=config.weights.source, manager=manager)
    try:
        decode_server(encode(hello))
    except msgspec.ValidationError as error:
        raise CannotServe(
            f"a manager would not take its introduction: {error}; --name has letters, digits, "
            "'.', '_' and '-' only and is short, and so is --zone"
        ) from None
    before = num_compiles()
    client = InstanceClient(
        lambda: manager,
        hello,
        Worker(engine),
        puller,
        orphan_seconds=config.fleet.orphan_seconds,
        compiled=lambda: num_compiles() - before,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, client.leave, signal.Signals(number).name)
    print(f"registering with {args.manager}", flush=True)
    return await client.run()


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m rlboost_jax.rollout", description="Serve rollouts to a run."
    )
    parser.add_argument("--manager", required=True, metavar="HOST:PORT")
    parser.add_argument(
        "--join",
        type=Path,
        metavar="FOLDER",
        help="the manager's <workdir>/join, or a copy of it; a token in the environment variable "
        f"{TOKEN_VARIABLE} goes before the one there",
    )
    parser.add_argument("--name", default="", help="unique in the fleet; left out: chosen for it")
    parser.add_argument("--price", type=float, default=0.0, help="dollars per hour")
    parser.add_argument("--zone", default="", help="where the machine is, for the report")
    parser.add_argument(
        "--patience_seconds",
        type=float,
        default=ANSWER_SECONDS,
        help="how long to try a manager that does not answer",
    )
    return parser.parse_args(argv)
