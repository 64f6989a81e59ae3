"""The page's certificate, and the files in which people find its address.

page/   token, page.key, page.pem, ca.pem (to import into a browser), url: the address with the
        token in its fragment, open.html: a file that leads a browser there

Its certificate does not have the manager's name: it opens no door but the page's.
"""

import datetime
import html
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rlboost_jax.platform import durable
from rlboost_jax.platform.bounded_files import read_text
from rlboost_jax.trust import authority
from rlboost_jax.trust.credentials import MOST_TOKEN_BYTES

CERTIFICATE, KEY, URL, OPEN = "page.pem", "page.key", "url", "open.html"
PRIVATE: Final = 0o600


def page_folder(workdir: Path) -> Path:
    return workdir / "page"


def prepare_page(workdir: Path, authorities: Path, names: Iterable[str]) -> None:
    """Create the page's certificate, unless one exists that is valid for these names.

    Args:
        names: host names and addresses that the page answers to.
    """
    authority.prepare_site(
        authority=authorities,
        folder=page_folder(workdir),
        files=(CERTIFICATE, KEY),
        names=names,
        now=datetime.datetime.now(datetime.UTC),
    )


def page_tls(folder: Path) -> ssl.SSLContext:
    """TLS context to listen with. A browser has no certificate of the run; it sends the token."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    return context


def write_url(workdir: Path, address: str, token: str) -> Path:
    """Write the address, whose token opens the page, to a private file; return its path."""
    folder, url = page_folder(workdir), f"https://{address}/#{token}"
    durable.write(folder / URL, f"{url}\n".encode(), mode=PRIVATE)
    away = f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(url)}">\n'
    durable.write(folder / OPEN, away.encode(), mode=PRIVATE)
    return folder / URL


def page_line(workdir: Path) -> str:
    """Line that says where the page's address is, without its token; "" if there is none."""
    if not (address := _address(workdir)):
        return ""
    return f"page: {address}/; {page_folder(workdir) / OPEN} opens it in a browser"


def former_port(workdir: Path) -> int:
    """Port the page had before; 0 if it had none."""
    try:
        return int(_address(workdir).rpartition(":")[2])
    except ValueError:
        return 0


def _address(workdir: Path) -> str:
    """The page's address without the token; "" if it cannot be read."""
    try:
        url = read_text(page_folder(workdir) / URL, MOST_TOKEN_BYTES, "an address")
    except (OSError, ValueError):
        return ""
    return url.partition("/#")[0]
