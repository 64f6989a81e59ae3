"""What the page shows a browser, and where a person finds its address.

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

from rlboost_jax.credentials import MOST_TOKEN_BYTES
from rlboost_jax.manager.service import authority
from rlboost_jax.storage import durable
from rlboost_jax.storage.bounded_files import read_text

CERTIFICATE, KEY, URL, OPEN = "page.pem", "page.key", "url", "open.html"
PRIVATE: Final = 0o600


def page_folder(workdir: Path) -> Path:
    return workdir / "page"


def prepare_page(workdir: Path, authorities: Path, names: Iterable[str]) -> None:
    """Make the certificate where there is none that is good for these names."""
    authority.prepare_site(
        authority=authorities,
        folder=page_folder(workdir),
        files=(CERTIFICATE, KEY),
        names=names,
        now=datetime.datetime.now(datetime.UTC),
    )


def page_tls(folder: Path) -> ssl.SSLContext:
    """For the listening side. A browser has no certificate of the run; it shows the token."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    return context


def write_url(workdir: Path, address: str, token: str) -> Path:
    """The address for a person, in a file of theirs alone: it opens the page. Returns its path."""
    folder, url = page_folder(workdir), f"https://{address}/#{token}"
    durable.write(folder / URL, f"{url}\n".encode(), mode=PRIVATE)
    away = f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(url)}">\n'
    durable.write(folder / OPEN, away.encode(), mode=PRIVATE)
    return folder / URL


def former_port(workdir: Path) -> int:
    """Where the page was before; 0 where there was none."""
    try:
        url = read_text(page_folder(workdir) / URL, MOST_TOKEN_BYTES, "an address")
        return int(url.partition("/#")[0].rpartition(":")[2])
    except (OSError, ValueError):
        return 0
