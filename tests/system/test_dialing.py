"""A server that cannot dial in: the run says in one line why, whether or not it started the server.

Real server processes, started by commands as on another host; what they dial is a name that nobody
knows, an address where nobody answers, and a port where another run's manager listens.
"""

import asyncio
import contextlib
import datetime
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rlboost_jax.providers.base import ANY_POOL, Exited, Refused, Rendezvous
from rlboost_jax.providers.command import CommandLauncher
from rlboost_jax.providers.polled import PolledProvider
from rlboost_jax.settings.launchers_config import CommandConfig
from rlboost_jax.trust import authority
from rlboost_jax.trust.run_files import token_of
from rlboost_jax.trust.seal import prepare_seal
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.system

SCRIPT = """\
#!/bin/sh -eu
cd "{folder}"
case "$1" in
start)
    {python} -m rlboost_jax.rollout --manager="$2" --name="$RLBOOST_NAME" --notices=none \\
        --patience_seconds=0.1 </dev/null >"$RLBOOST_NAME.out" 2>&1 &
    echo "$RLBOOST_RUN $RLBOOST_NAME $RLBOOST_NONCE $!" >"$RLBOOST_NAME.job" ;;
stop) read -r run name nonce pid <"$2.job"; kill -KILL "$pid" ;;
list)
    for job in *.job; do
        test -e "$job" || continue
        read -r run name nonce pid <"$job"
        state=$(cut -d" " -f3 "/proc/$pid/stat" 2>/dev/null || true)
        case "$state" in ""|Z|X) rm -f "$job" ;; *) echo "$run $name $nonce" ;; esac
    done ;;
log) tail -n 20 "$2.out" ;;
esac
"""


def credentials(folder: Path) -> Path:
    """Make the credentials of another run."""
    join, trainer = folder / "join", folder / "trainer"
    token_of(join)
    authority.prepare(
        authority=folder / "authority",
        servers=join,
        trainer=trainer,
        names=("localhost",),
        now=datetime.datetime.now(datetime.UTC),
    )
    prepare_seal(trainer, [join])
    return join


async def end_of(folder: Path, address: str) -> Exited | Refused:
    """The provider's last word on a server that is to dial this address."""
    folder.mkdir()
    script = folder / "host.sh"
    script.write_text(SCRIPT.format(folder=folder, python=sys.executable))
    script.chmod(0o700)
    place = Rendezvous(
        run_id="run",
        workdir=folder,
        address=address,
        local_address=address,
        join=credentials(folder / "run"),
    )
    commands = CommandConfig(
        start=f"{script} start {{manager}}",
        stop=f"{script} stop {{name}}",
        list=f"{script} list",
        log=f"{script} log {{name}}",
    )
    launcher = CommandLauncher(commands, place, price_per_hour=1.0)
    provider = PolledProvider(launcher, "run", poll_seconds=0.2, settle_seconds=0.0)
    await provider.request("far-1", "nonce", ANY_POOL)
    async for event in provider.events():
        if isinstance(event, Exited | Refused):
            break
    await provider.close()
    return event


@contextlib.asynccontextmanager
async def managers(tmp_path: Path) -> AsyncIterator[dict[str, tuple[str, str]]]:
    """What is dialled, and what is to be said of it."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        quiet = f"127.0.0.1:{silent.getsockname()[1]}"
        credentials(tmp_path / "another run")
        other = TestServer(web.Application(), scheme="https")
        await other.start_server(ssl=authority.server_tls(tmp_path / "another run/authority"))
        yield {
            "name": ("nobody.invalid:4", "this host's DNS does not know 'nobody.invalid'"),
            "firewall": (quiet, f"no answer from {quiet}: a firewall drops it"),
            "tls": (f"127.0.0.1:{other.port}", "certificate is not of this run"),
        }
        await other.close()


def test_the_runs_last_word_on_a_server_says_why_it_never_came(tmp_path: Path) -> None:
    async def story() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), managers(tmp_path) as dialled:
            found = await asyncio.gather(
                *(end_of(tmp_path / what, address) for what, (address, _) in dialled.items())
            )
            for event, (_, why) in zip(found, dialled.values(), strict=True):
                assert isinstance(event, Exited), event
                assert why in event.reason and "\n" not in event.reason
                assert why in event.log[-1]
            assert "fleet.public_address" in found[0].reason
            assert "fleet.public_address" in found[1].reason  # type: ignore[union-attr]

    asyncio.run(story())
