"""A bad line under the kernel's own TCP: two TUN devices, and packets between them late or lost.

Needs the right to make network namespaces. This host is at one end of the line, the namespace at
the other; what passes is delayed, queued and lost by the same `Pipe` that the simulated TCP has.
"""

import asyncio
import contextlib
import fcntl
import os
import random
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.lines.tcp import Pipe, Way

HERE, THERE = "10.87.66.1", "10.87.66.2"  # ends of the line
NAMESPACE = "rlboost-line"
_SET_INTERFACE, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_LONGEST_PACKET = 2**16


@contextmanager
def cable(up: Way, down: Way, *, congestion: str, seed: int = 0) -> Iterator[list[str]]:
    """Yields what a command at the far end begins with; it reaches this host as `HERE`.

    Args:
        up, down: towards this host and back.
        congestion: of both ends, whatever their programs ask for.
    """
    with contextlib.ExitStack() as stack:
        ends = [_device(f"line{number}") for number in range(2)]
        for end in ends:
            stack.callback(os.close, end)
        _ip("netns", "add", NAMESPACE)
        stack.callback(_ip, "netns", "del", NAMESPACE)
        _ip("link", "set", "line1", "netns", NAMESPACE)
        far = ("ip", "netns", "exec", NAMESPACE)
        _ip("addr", "add", HERE, "peer", THERE, "dev", "line0")
        _ip("link", "set", "line0", "up")
        for words in (("addr", "add", THERE, "peer", HERE, "dev", "line1"),
                      ("link", "set", "line1", "up"), ("link", "set", "lo", "up")):  # fmt: skip
            subprocess.run([*far, "ip", *words], check=True)
        _ip("route", "change", THERE, "dev", "line0", "congctl", congestion, "src", HERE)
        there = ("ip", "route", "change", HERE, "dev", "line1", "congctl", congestion, "src", THERE)
        subprocess.run([*far, *there], check=True)
        loop, chance = asyncio.new_event_loop(), random.Random(seed)
        pipes = Pipe(down, chance), Pipe(up, chance)
        for source, target, pipe in ((*ends, pipes[0]), (*reversed(ends), pipes[1])):
            loop.add_reader(source, _carry, loop, source, target, pipe)
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield list(far)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def _carry(loop: asyncio.AbstractEventLoop, source: int, target: int, pipe: Pipe) -> None:
    """Read the packets that wait, and write each when it arrives."""
    with contextlib.suppress(BlockingIOError):
        while packet := os.read(source, _LONGEST_PACKET):
            at = pipe.arrival(len(packet), loop.time())
            if at is not None:
                loop.call_at(at, _arrive, target, packet)


def _arrive(target: int, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # a full device drops, as a full queue does
        os.write(target, packet)


def _device(name: str) -> int:
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _SET_INTERFACE, struct.pack("16sH", name.encode(), _TUN_WITHOUT_HEADER))
    return end


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
