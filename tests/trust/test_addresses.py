"""Where a manager is said to listen."""

import errno
import ipaddress
import socket

import pytest

from rlboost_jax.trust import addresses


@pytest.mark.parametrize(
    ("host", "joined"),
    [("10.1.2.3", "10.1.2.3:80"), ("fe80::1", "[fe80::1]:80"), ("a.b", "a.b:80")],
)
def test_one_interface_is_named_as_it_is(host, joined):
    assert addresses.for_this_host(host, 80) == addresses.for_other_hosts(host, 80) == joined


@pytest.mark.parametrize(("host", "loopback"), [("0.0.0.0", "127.0.0.1:80"), ("::", "[::1]:80")])
def test_all_interfaces_are_reached_through_loopback_from_here(host, loopback):
    assert addresses.for_this_host(host, 80) == loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_all_interfaces_are_named_by_one_that_exists(host):
    named, _, port = addresses.for_other_hosts(host, 80).rpartition(":")
    address = ipaddress.ip_address(named.strip("[]"))
    assert address.version == ipaddress.ip_address(host).version
    assert not address.is_unspecified and port == "80"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_host_without_a_way_out_names_loopback(host):
    """A datagram socket finds no way to where it has not asked to broadcast, or to no address."""
    unreachable = {socket.AF_INET: "255.255.255.255", socket.AF_INET6: "not an address"}
    assert addresses.for_other_hosts(host, 80, unreachable) == addresses.for_this_host(host, 80)


def test_a_port_in_use_names_its_setting():
    """At the first start; later it may be what a manager that was killed has left."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rf"port {port} of 127.0.0.1 is in use \(manager.port\); .* or to 0"
        with (
            pytest.raises(addresses.AddressUnusable, match=said),
            addresses.settings_of("127.0.0.1", port, "manager.port", first=True),
        ):
            socket.create_server(("127.0.0.1", port))
        with (
            pytest.raises(OSError) as met,
            addresses.settings_of("127.0.0.1", port, "manager.port", first=False),
        ):
            socket.create_server(("127.0.0.1", port))
        assert met.value.errno == errno.EADDRINUSE


def test_an_address_of_another_host_names_the_setting():
    with (
        pytest.raises(
            addresses.AddressUnusable, match=r"192\.0\.2\.1. is no address .*manager.host"
        ),
        addresses.settings_of("192.0.2.1", 0, "manager.port", first=True),
    ):
        socket.create_server(("192.0.2.1", 0))


@pytest.mark.parametrize(
    ("chosen", "given"),
    [
        ("", "10.0.0.1:77"),
        ("head.example.org", "head.example.org:77"),
        ("head.example.org:443", "head.example.org:443"),
        ("203.0.113.9", "203.0.113.9:77"),
        ("2001:db8::5", "[2001:db8::5]:77"),
        ("[2001:db8::5]:443", "[2001:db8::5]:443"),
    ],
)
def test_a_public_address_goes_before_what_is_found(chosen: str, given: str) -> None:
    assert addresses.public("10.0.0.1:77", chosen) == given
