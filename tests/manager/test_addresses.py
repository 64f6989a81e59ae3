"""Where a manager is said to listen."""

import ipaddress
import socket

import pytest

from rlboost_jax.manager.service import addresses


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
