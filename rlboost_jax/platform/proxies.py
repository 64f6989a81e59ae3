"""Addresses of the run are dialled directly, whatever proxies the environment names.

A proxy leads out of a network; manager, file server, trainer processes and the tools of an episode
are within it. aiohttp asks no proxy by itself. Webhooks, hubs, trackers and clouds keep theirs.
"""

import contextlib
import ipaddress
import os
import ssl
import urllib.request
from collections.abc import Iterator, Mapping, MutableMapping
from http.client import HTTPResponse
from typing import Final
from urllib.parse import urlsplit

VARIABLES: Final = tuple(
    name
    for lower in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
    for name in (lower, lower.upper())
)
SUFFIX: Final = "_proxy"  # of any spelling: urllib reads `Https_Proxy` and `ws_proxy`, too
EXCEPTIONS: Final = ("no_proxy", "NO_PROXY")
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def opened(
    request: urllib.request.Request | str, *, timeout: float, tls: ssl.SSLContext | None
) -> HTTPResponse:
    """Ask an address of the run, as `urllib.request.urlopen` does, through no proxy."""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
    )
    answer: HTTPResponse = opener.open(request, timeout=timeout)
    return answer


@contextlib.contextmanager
def hidden(environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Remove the proxies from the environment for a while.

    For gRPC, which `jax.distributed` dials with: it reads them as it makes a channel, and ends the
    process where they lead nowhere. No other thread may need the environment meanwhile.
    """
    kept = {name: environment.pop(name) for name in _named(environment)}
    try:
        yield
    finally:
        environment.update(kept)


def is_loopback(url: str) -> bool:
    """Whether an address is of this host, by its name or number."""
    host = (urlsplit(url).hostname or "").removesuffix(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a name; RFC 6761, section 6.3, gives `.localhost` to this host
        return host == "localhost" or host.endswith(".localhost")
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def direct_on_loopback(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that let a child's clients reach servers on this host without a proxy.

    {} where no proxy is named, or where nothing goes by one (`*`).
    """
    if not any(environment[name] for name in _named(environment)):
        return {}
    given = next((environment[name] for name in EXCEPTIONS if environment.get(name)), "")
    if given.strip() == "*":  # which counts only where it stands alone
        return dict.fromkeys(EXCEPTIONS, "*")
    listed = [part.strip() for part in given.split(",") if part.strip()]
    both = ",".join((*listed, *(host for host in LOOPBACK if host not in listed)))
    return dict.fromkeys(EXCEPTIONS, both)


def _named(environment: Mapping[str, str]) -> list[str]:
    """List the variables that name proxies."""
    return [
        name
        for name in environment
        if name.lower().endswith(SUFFIX) and name.lower() not in EXCEPTIONS
    ]
