"""Process 0's side of a trainer of several processes: orders out, what was written comes back.

Invariants:
- an order goes out before process 0 itself begins with what it says;
- a follower that ends, however it ends, ends this process too, with one line that says which.
"""

import contextlib
import ipaddress
import secrets
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import jax
import msgspec
import numpy as np

from rlboost_jax.learner.episodes.trajectory import Group
from rlboost_jax.learner.processes import orders
from rlboost_jax.learner.processes.channel import Channel, PeerGone
from rlboost_jax.learner.processes.digest import shared_digest
from rlboost_jax.learner.processes.handshake import Handshakes, new_key
from rlboost_jax.learner.processes.watch import PeerEnded, Peers
from rlboost_jax.learner.processes.world import ALONE, JOIN_SECONDS, Tell, World, tell_all
from rlboost_jax.learner.stream.step_stream import Doubt
from rlboost_jax.messages import FileEntry
from rlboost_jax.models.params import Params, params_digest
from rlboost_jax.supervision import exits
from rlboost_jax.weights.shares import Read, shares_of

BACKLOG: Final = 128  # connections that dial at once, strangers' included
PURPOSES: Final = ("orders", "shares", "watch")  # of a follower's connections

T = TypeVar("T")
Train = Callable[[int, tuple[Group, ...]], list[Doubt]]
Check = Callable[[tuple[Group, ...]], Sequence[Doubt]]


class FollowerLost(PeerEnded):
    """A follower ended. Its mistake is one here too; anything else a second start may mend."""

    def __init__(self, message: str, code: int = exits.BROKEN) -> None:
        super().__init__(message, exits.MISTAKE if code == exits.MISTAKE else exits.BROKEN)


class Followers(Peers):
    """The other processes; none of them in a trainer of one process."""

    def __init__(
        self,
        world: World = ALONE,
        channels: Mapping[str, Sequence[Channel]] | None = None,
        *,
        read: Read = np.asarray,
    ) -> None:
        """Args:
        channels: to each follower, by purpose.
        read: copies from a device of this process to its memory.
        """
        self._world, self._read = world, read
        lost = [partial(_lost, f"process {i} of {world.count}") for i in range(1, world.count)]
        super().__init__(channels or dict.fromkeys(PURPOSES, ()), lost)

    def __bool__(self) -> bool:
        return self._world.count > 1

    def begin(self, step: int, version: int) -> None:
        self._order(orders.BEGIN, step, version)

    def leading(self, train: Train) -> Train:
        """`train`, on all processes."""
        return self._ordered(orders.TRAIN, train)

    def checking(self, check: Check) -> Check:
        """`check`, on all processes."""
        return self._ordered(orders.CHECK, check)

    def checking_heldout(self, check: Check) -> Check:
        """`check` of responses to held-out prompts, on all processes."""
        return self._ordered(orders.HELDOUT, check)

    def finish(self) -> None:
        self._order(orders.FINISH)

    def save(self, step: int, extra: dict[str, Any]) -> None:
        self._order(orders.SAVE, step, extra)

    def again(self) -> None:
        """This session ends, and another one follows."""
        self._order(orders.AGAIN)

    def host_copy(self, params: Params) -> Params:
        """In host memory, what this process writes of parameters: all of them if it is alone."""
        if self:
            return shares_of(params, process=0, read=self._read)
        copy: Params = jax.device_get(params)
        return copy

    def digest(self, params: Params, host_copy: Params, name: str, *, base: str = "") -> str:
        """`params_digest` of parameters that go by that name in orders."""
        if not self:
            return params_digest(host_copy, base=base)
        self._order(orders.DIGEST, name, base)
        return shared_digest(params, self._world, base=base, read=self._read)

    def keep(self, version: int, digest: str, older: Collection[int]) -> None:
        """Have the others keep the newest version besides these, and no other."""
        self._order(orders.KEEP, version, digest, list(older))

    def write(self, name: str) -> None:
        """Have the others begin to write their shares."""
        self._order(orders.WRITE, name)

    def written(self, name: str) -> list[FileEntry]:
        """What they have written, once it is. In the thread that writes this process's share.

        What they wrote before under names that nobody asks for is passed over.

        Raises:
            OSError: one of them could not.
        """
        entries: list[FileEntry] = []
        for index, channel in enumerate(self.channels["shares"], start=1):
            said, files, fault = channel.receive()
            while said != name:
                said, files, fault = channel.receive()
            if fault:
                raise OSError(f"process {index}: {fault}")
            entries += msgspec.convert(files, list[FileEntry])
        return entries

    def fail_to(self, fail: Callable[[Exception], None]) -> None:
        """Have `fail` called, from a thread, with what becomes of a follower."""
        for watch in self.watches:
            watch.tell(fail)

    def _order(self, *order: Any) -> None:
        for channel in self.channels["orders"]:
            channel.send(order)

    def _ordered(self, name: str, function: Callable[..., T]) -> Callable[..., T]:
        def order_and_call(*args: Any) -> T:
            self._order(name, *args)
            return function(*args)

        return order_and_call


def invite(world: World, workdir: Path, tell: Tell = tell_all) -> Followers:
    """Have the other processes dial in; to be called at the moment when they call `accept`.

    Raises:
        FollowerLost: one did not come, or sees another folder than this process.
    """
    if world.count == 1:
        return Followers()
    host = world.coordinator.rpartition(":")[0].strip("[]") or socket.gethostname()
    key = new_key()
    proof = workdir / f".seen-{secrets.token_hex(4)}"  # by all processes, or it is not shared
    with contextlib.ExitStack() as stack:
        proof.touch()
        stack.callback(proof.unlink, missing_ok=True)
        listener = socket.create_server((_listens_on(host), 0), backlog=BACKLOG)
        port = listener.getsockname()[1]
        with Handshakes(listener, key) as handshakes:
            tell({"host": host, "port": port, "key": asdict(key), "proof": proof.name})
            channels = _accepted(handshakes, world)
        with contextlib.ExitStack() as failing:
            followers = failing.enter_context(Followers(world, channels))
            for channel in channels["orders"]:
                channel.receive()  # that it sees the folder
            failing.pop_all()
    return followers


def _accepted(handshakes: Handshakes, world: World) -> dict[str, list[Channel]]:
    """A connection of each follower for each purpose.

    Raises:
        FollowerLost: one did not come.
    """
    deadline = time.monotonic() + JOIN_SECONDS
    expected = [(purpose, index) for purpose in PURPOSES for index in range(1, world.count)]
    found: dict[tuple[str, int], Channel] = {}
    attempts: dict[tuple[str, int], int] = {}  # of these, the one that counts
    while len(found) < len(expected):
        try:
            said, channel = handshakes.arrived(deadline - time.monotonic())
        except TimeoutError:
            for late in found.values():
                late.close()
            raise FollowerLost(
                f"{len(found) // len(PURPOSES)} of {world.count - 1} followers came in "
                f"{JOIN_SECONDS} s"
            ) from None
        match said:
            case [str() as purpose, int() as index, int() as attempt] if (
                purpose,
                index,
            ) in expected and attempt > attempts.get((purpose, index), -1):
                pass
            case _:
                channel.close()
                continue
        attempts[purpose, index] = attempt
        if (former := found.pop((purpose, index), None)) is not None:
            former.close()  # which did not hear that it was taken in
        try:
            channel.send(True)
        except PeerGone:
            continue  # it comes again
        found[purpose, index] = channel
    return {
        purpose: [found[purpose, index] for index in range(1, world.count)] for purpose in PURPOSES
    }


def _lost(who: str, reason: str, code: int) -> FollowerLost:
    return FollowerLost(f"{who} {reason}; the same command on all hosts goes on", code)


def _listens_on(host: str) -> str:
    """All addresses, unless the others are on this host too."""
    try:
        address = ipaddress.ip_address(socket.gethostbyname(host))
    except (OSError, ValueError):
        return ""
    return str(address) if address.is_loopback else ""
