"""Host for a run's environments: its workers dial the trainer, as servers dial the manager.

    rlboost environments --trainer=HOST:PORT --join=FOLDER [--workers=N]

HOST:PORT is where `environment.listen` is reached, FOLDER a copy of the run's
<workdir>/environment_hosts/join. Each worker is a process with a connection of its own. All may be
killed at any moment, and as many hosts as there are may come and go: what was in them is made again
from the trainer's journal. Ends with code 2 where it is refused, or no trainer answers any more.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rlboost_jax.environments.environment_kind import FOLDER_OF_HOSTS, ROUTE, kind_of_setup
from rlboost_jax.platform import command_parser, exits
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.trust.credentials import (
    CredentialsUnusable,
    Endpoint,
    read_environment_credentials,
)
from rlboost_jax.workers.worker_host import WorkerHost


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_parser.parser("environments", __doc__)
    parser.add_argument("--trainer", required=True, help="HOST:PORT, see environment.listen")
    parser.add_argument("--join", type=Path, required=True, help="folder of credentials")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes; one for each core"
    )
    parser.add_argument(
        "--patience", type=float, default=600.0, help="seconds without a trainer; default 600"
    )
    given = parser.parse_args(argv)
    if given.workers < 1:
        parser.error(f"--workers={given.workers}; at least 1")
    try:
        credentials = read_environment_credentials(given.join)
        host = WorkerHost(
            Endpoint(address=given.trainer, credentials=credentials),
            route=ROUTE,
            folder=FOLDER_OF_HOSTS,
            kind_of=kind_of_setup,
            workers=given.workers,
            patience_seconds=given.patience,
            say=lambda line: print(line, flush=True),
        )
        asyncio.run(_until_asked(host))
    except* (Mistake, CredentialsUnusable) as errors:
        exits.leave(f"error: {_first(errors)}", exits.MISTAKE)
    return 0


async def _until_asked(host: WorkerHost) -> None:
    running = asyncio.create_task(host.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        print("leaving: asked to", flush=True)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main())
