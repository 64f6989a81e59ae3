"""The manager's side of the page: a socket, and a process once somebody connects.

Nothing of it may harm the run: a page that cannot be served is one line among the events.
"""

import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from rlboost_jax.manager.service.page.page_certificate import (
    former_port,
    page_folder,
    prepare_page,
    write_url,
)
from rlboost_jax.settings.page_config import PageConfig
from rlboost_jax.trust.addresses import for_other_hosts, is_elsewhere, names, settings_of
from rlboost_jax.trust.run_files import authority_folder, token_of
from rlboost_jax.weights.file_server.file_server_orders import PageSetup
from rlboost_jax.weights.file_server.file_server_process import FileServer, listening_socket

PROGRAM: Final = "rlboost_jax.manager.service.page"


@contextlib.asynccontextmanager
async def page_of(
    workdir: Path,
    settings: PageConfig,
    *,
    first: bool,
    report: Callable[[str], None],
    fail: Callable[[BaseException], None],
) -> AsyncIterator[None]:
    """Serve the page for as long as this lasts, if the settings say so.

    Args:
        first: no manager of the run was there before.
        report: called with a line on why there is none, or why its process ended.

    Raises:
        AddressUnusable: the settings name a port that cannot be had, or an address of another host.
    """
    server = _page_server(workdir, settings, first, report, fail) if settings.serve else None
    try:
        yield
    finally:
        if server is not None:
            await server.close()


def _page_server(
    workdir: Path,
    settings: PageConfig,
    first: bool,
    report: Callable[[str], None],
    fail: Callable[[BaseException], None],
) -> FileServer | None:
    with settings_of(settings.host, settings.port, "observe.page.port", first=first):
        try:
            listener = _listener(settings, former_port(workdir))
        except OSError as error:
            if first and (settings.port or is_elsewhere(error)):
                raise
            report(f"no page: {settings.host} cannot be listened on: {error.strerror}")
            return None
    try:
        hosts = (*names(settings.host), *settings.allowed_hosts)
        prepare_page(workdir, authority_folder(workdir), hosts)
        token = token_of(page_folder(workdir))
        address = for_other_hosts(settings.host, listener.getsockname()[1])
        write_url(workdir, address, token)
    except OSError as error:
        listener.close()
        report(f"no page: {error}")
        return None
    setup = PageSetup(
        workdir=str(workdir),
        token=token,
        certificates=str(page_folder(workdir)),
        hosts=hosts,
    )
    command = (sys.executable, "-m", PROGRAM)
    return FileServer(listener, setup, report, fail, command=command, what="the page's process")


def _listener(settings: PageConfig, former: int) -> socket.socket:
    """Listen on the configured port; if any will do, on the former one if it is free."""
    if settings.port == 0 and former:
        with contextlib.suppress(OSError):
            return listening_socket(settings.host, former)
    return listening_socket(settings.host, settings.port)
