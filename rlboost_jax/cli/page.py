"""Show a run in a browser, finished or not.

    rlboost page --workdir=RUN

While a manager of the run lives it serves the page itself, and this says where. Else this process
serves it until it is interrupted, to whoever has the address in `RUN/page/url`, or, with --socket,
at a Unix socket that nobody but its owner can open:

    ssh -L 8080:RUN/page/socket HOST        # then http://localhost:8080
"""

import asyncio
import datetime
import os
import socket
import sys
from pathlib import Path

from rlboost_jax.manager.service.page.__main__ import listen
from rlboost_jax.manager.service.page.page_certificate import (
    URL,
    page_folder,
    prepare_page,
    write_url,
)
from rlboost_jax.platform import command_parser, exits
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.platform.private_paths import own_folder
from rlboost_jax.settings.config_loading import read_run_config
from rlboost_jax.settings.page_config import PageConfig
from rlboost_jax.trust import authority
from rlboost_jax.trust.addresses import for_other_hosts, names
from rlboost_jax.trust.credentials import CredentialsUnusable
from rlboost_jax.trust.run_files import (
    authority_folder,
    join_folder,
    read_record,
    token_of,
    trainer_folder,
)
from rlboost_jax.weights.file_server.file_server_process import listening_socket


def main(arguments: list[str] | None = None) -> int:
    parser = command_parser.parser("page", __doc__)
    parser.add_argument("--workdir", type=Path, required=True, help="folder of a run")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="to listen on; 0: a free one")
    parser.add_argument("--socket", action="store_true", help="listen at RUN/page/socket only")
    given = parser.parse_args(arguments)
    workdir = given.workdir.absolute()
    try:
        config = read_run_config(workdir / "config.json")
        own_folder(workdir, "--workdir")
        if not given.socket and (url := _served(workdir)):
            print(f"the run's manager serves the page; open the address in {url}")
            return 0
        if given.socket:
            listener = _at_socket(workdir)
        else:
            listener = _at_port(given.host, given.port, workdir, config.observe.page)
    except (ConfigError, CredentialsUnusable, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return exits.MISTAKE
    try:
        hosts = (*names(given.host), *config.observe.page.allowed_hosts)
        asyncio.run(_serve(listener, workdir, hosts, at_socket=given.socket))
    except KeyboardInterrupt:
        return 0
    return 0


def _served(workdir: Path) -> Path | None:
    record, url = read_record(workdir), page_folder(workdir) / URL
    return url if record is not None and record.lives and url.exists() else None


def _at_port(host: str, port: int, workdir: Path, settings: PageConfig) -> socket.socket:
    listener = listening_socket(host, port)
    authority.prepare(
        authority=authority_folder(workdir),
        servers=join_folder(workdir),
        trainer=trainer_folder(workdir),
        names=names(host),
        now=datetime.datetime.now(datetime.UTC),
    )
    prepare_page(workdir, authority_folder(workdir), (*names(host), *settings.allowed_hosts))
    address = for_other_hosts(host, listener.getsockname()[1])
    url = write_url(workdir, address, token_of(page_folder(workdir)))
    print(f"open the address in {url}", flush=True)
    return listener


def _at_socket(workdir: Path) -> socket.socket:
    token_of(page_folder(workdir))  # makes the folder, for its owner alone
    path = page_folder(workdir) / "socket"
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise OSError(f"cannot listen at {path}: {error}; a shorter path may do") from None
    finally:
        os.umask(before)
    listener.listen()
    listener.setblocking(False)
    print(f"serving at {path}", flush=True)
    return listener


async def _serve(
    listener: socket.socket, workdir: Path, hosts: tuple[str, ...], *, at_socket: bool
) -> None:
    folder = None if at_socket else page_folder(workdir)
    token = None if at_socket else token_of(page_folder(workdir))
    await listen(listener, workdir, token=token, certificates=folder, hosts=hosts)
    await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
