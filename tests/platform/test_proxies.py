"""Proxies that lead nowhere, under every name: the run's own addresses are reached all the same."""

import asyncio
import re
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import aiohttp
import pytest

from rlboost_jax.platform import proxies
from rlboost_jax.platform.proxies import direct_on_loopback, hidden, is_loopback, opened

DEAD = "http://127.0.0.1:9"
NAMES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
PRODUCT = Path(proxies.__file__).parents[1]


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"here")

    def log_message(self, *words: object) -> None:
        """Nothing is said."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


async def by_aiohttp(address: str) -> bytes:
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        return await answer.read()


@pytest.mark.parametrize("exceptions", [None, "example.com"])
@pytest.mark.parametrize("name", NAMES)
def test_what_the_run_dials_asks_no_proxy(
    address: str, name: str, exceptions: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in (*proxies.VARIABLES, *proxies.EXCEPTIONS):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, DEAD)
    if exceptions is not None:
        monkeypatch.setenv("no_proxy", exceptions)
    with opened(urllib.request.Request(address), timeout=10, tls=None) as answer:
        assert answer.read() == b"here"
    assert asyncio.run(by_aiohttp(address)) == b"here"
    if name.lower() == "http_proxy":  # as urllib would by itself
        with pytest.raises(OSError):
            # An opener of its own: that of `urlopen` would keep these proxies for later tests.
            urllib.request.build_opener().open(address, timeout=10)


def test_only_a_webhook_goes_by_the_environments_proxies() -> None:
    """Whoever opens an address in another way decides here whether it is one of the run's."""
    asks = re.compile(r"\burlopen\(|trust_env=True|\bProxyHandler\(\)|import (requests|httpx)\b")
    found = {
        str(path.relative_to(PRODUCT))
        for path in PRODUCT.rglob("*.py")
        if path.name != "proxies.py" and asks.search(path.read_text())
    }
    assert found == {"observe/alert_process.py"}


def test_they_are_hidden_for_a_while_only() -> None:
    named = dict.fromkeys((*proxies.VARIABLES, "Https_Proxy", "ws_proxy"), DEAD)
    given = {**named, "no_proxy": "a", "PATH": "/bin"}
    environment = dict(given)
    with pytest.raises(ValueError, match="within"), hidden(environment):
        assert environment == {"no_proxy": "a", "PATH": "/bin"}
        raise ValueError("within")
    assert environment == given


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("https://127.0.0.1:6443", True),
        ("http://localhost:8001/k8s", True),
        ("https://[::1]:6443", True),
        ("https://127.9.9.9", True),
        ("https://10.0.0.1:6443", False),
        ("https://localhost.example.com", False),
        ("https://LOCALHOST.:6443", True),
        ("https://cluster.localhost:6443", True),
        ("https://[::ffff:127.0.0.1]:6443", True),
        ("https://127.0.0.1.example.com", False),
        ("https://127.example.com", False),
        ("", False),
    ],
)
def test_an_address_of_this_host_is_told_from_others(url: str, here: bool) -> None:
    assert is_loopback(url) is here


@pytest.mark.parametrize(
    ("given", "listed"),
    [
        ({}, None),
        ({"no_proxy": "a"}, None),
        ({"https_proxy": ""}, None),
        ({"No_Proxy": "a", "PATH": "/bin"}, None),
        *(
            ({name: "socks5h://127.0.0.1:9"}, "localhost,127.0.0.1,::1")
            for name in ("Https_Proxy", "socks_proxy", "ws_proxy", "WSS_PROXY", "ftp_proxy")
        ),
        # Alone it means every address; in a list urllib and curl take it for a name.
        ({"https_proxy": DEAD, "no_proxy": "*"}, "*"),
        ({"https_proxy": DEAD, "NO_PROXY": " * "}, "*"),
        ({"https_proxy": DEAD, "no_proxy": "*.corp,.lan"}, "*.corp,.lan,localhost,127.0.0.1,::1"),
        ({"https_proxy": DEAD}, "localhost,127.0.0.1,::1"),
        ({"ALL_PROXY": DEAD, "NO_PROXY": "a, 127.0.0.1"}, "a,127.0.0.1,localhost,::1"),
        # Clients look at the small letters first.
        ({"http_proxy": DEAD, "NO_PROXY": "a", "no_proxy": "b"}, "b,localhost,127.0.0.1,::1"),
    ],
)
def test_an_episodes_own_servers_are_reached_directly(
    given: dict[str, str], listed: str | None
) -> None:
    added = direct_on_loopback(given)
    assert added == ({} if listed is None else {"no_proxy": listed, "NO_PROXY": listed})
