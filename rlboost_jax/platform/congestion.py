"""TCP that sends at the rate a line has shown, where the kernel can: BBR in place of CUBIC.

CUBIC takes each lost packet for a sign to send less: a connection over a line of 300 ms that loses
a tenth carries some 10 kB/s, whatever the line could take. BBR carries nearly all of it.
"""

import socket
from typing import Any, Final

_BBR: Final = b"bbr"


def send_by_rate(connection: Any) -> bool:
    """Switch a socket, or those that it accepts, to BBR; return whether that worked.

    A kernel without it, and one whose administrator keeps it from users, leaves the socket as it is
    (`net.ipv4.tcp_allowed_congestion_control`).
    """
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _BBR)
    except (OSError, AttributeError):  # the second: not Linux
        return False
    return True


def dialling_socket(address: Any) -> socket.socket:
    """Make a socket for `aiohttp.TCPConnector`, which passes an entry of `getaddrinfo`."""
    family, kind, protocol = address[:3]
    connection = socket.socket(family, kind, protocol)
    send_by_rate(connection)
    return connection
