"""Addresses at which a listening socket can be reached."""

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Iterator, Mapping

from rlboost_jax.platform.mistakes import Mistake

# Of the documentation ranges: nobody is there, and nothing is sent to them.
SOMEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


class AddressUnusable(Mistake, RuntimeError):
    """The configured address cannot be listened on."""


@contextlib.contextmanager
def settings_of(host: str, port: int, setting: str, *, first: bool) -> Iterator[None]:
    """Name the settings if an address cannot be listened on.

    Args:
        setting: that the port is from.
        first: no manager of the run was there before. What one has left may hold its port for a
            moment; then the system's error travels on, and a later start may find it free.
    """
    try:
        yield
    except OSError as error:
        where = f"port {port} of {host}"
        if is_elsewhere(error):
            raise AddressUnusable(
                f"{host!r} is no address of this host ({setting.rpartition('.')[0]}.host); "
                "0.0.0.0 is all there are"
            ) from None
        if error.errno == errno.EACCES:
            raise AddressUnusable(
                f"{where} is for the system's own services ({setting}); choose one above 1023"
            ) from None
        if error.errno == errno.EADDRINUSE and port and first:
            raise AddressUnusable(
                f"{where} is in use ({setting}); end what listens there, or set {setting} to "
                "another port, or to 0, which takes a free one"
            ) from None
        raise


def is_elsewhere(error: OSError) -> bool:
    """Whether listening failed because the address is not one of this host."""
    return isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL


def for_this_host(host: str, port: int) -> str:
    """HOST:PORT at which processes of this host reach a listener on `host`."""
    family = _wildcard(host)
    if family is None:
        return _joined(host, port)
    return _joined("::1" if family == socket.AF_INET6 else "127.0.0.1", port)


def for_other_hosts(
    host: str, port: int, somewhere: Mapping[socket.AddressFamily, str] = SOMEWHERE
) -> str:
    """HOST:PORT at which other hosts reach a listener on `host`.

    For a listener on all interfaces it names the interface that leads out of this host, or the
    loopback interface if none does, for then there are no other hosts.

    Args:
        somewhere: addresses outside, to which a way is looked for.
    """
    family = _wildcard(host)
    if family is None:
        return _joined(host, port)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((somewhere[family], 9))
        except OSError:
            return for_this_host(host, port)
        return _joined(probe.getsockname()[0], port)


def public(address: str, chosen: str) -> str:
    """HOST:PORT that servers on other hosts are given.

    Args:
        address: at which they would find the manager by itself.
        chosen: `fleet.public_address`, HOST or HOST:PORT; "" for that address.
    """
    if not chosen:
        return address
    host, colon, port = chosen.rpartition(":")
    if colon and port.isdecimal() and (":" not in host or host.startswith("[")):
        return chosen
    return _joined(chosen.strip("[]"), int(address.rpartition(":")[2]))


def names(host: str) -> tuple[str, ...]:
    """Names and addresses at which a listener on `host` may be reached, without ports."""
    given = (for_this_host(host, 0), for_other_hosts(host, 0), f"{socket.gethostname()}:0")
    known = {_host(address) for address in given} | {"localhost", "127.0.0.1", "::1"}
    return tuple(sorted(name for name in known if name.isascii()))


def _host(address: str) -> str:
    """Host of HOST:PORT, without brackets."""
    return address.rpartition(":")[0].strip("[]")


def _wildcard(host: str) -> socket.AddressFamily | None:
    """Address family of a wildcard address, which means all interfaces; None for any other."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if not address.is_unspecified:
        return None
    return socket.AF_INET6 if address.version == 6 else socket.AF_INET


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
