"""Process 0's side of a trainer of several processes: orders out, results back.

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
from rlboost_jax.learner.processes import follower_orders
from rlboost_jax.learner.processes.digest import shared_digest
from rlboost_jax.learner.processes.handshake import Handshakes, new_key
from rlboost_jax.learner.processes.peer_watch import PeerEnded, Peers
from rlboost_jax.learner.processes.process_group import (
    ALONE,
    JOIN_SECONDS,
    ProcessGroup,
    Tell,
    tell_all,
)
from rlboost_jax.learner.processes.trainer_channel import PeerGone, TrainerChannel
from rlboost_jax.learner.stream.step_stream import DoubtedResponse
from rlboost_jax.messages import FileEntry
from rlboost_jax.models.params import Params, params_digest
from rlboost_jax.platform import exits
from rlboost_jax.weights.shares import Read, shares_of

BACKLOG: Final = 128  # connections that dial at once, strangers' included
PURPOSES: Final = ("orders", "shares", "watch")  # of a follower's connections

T = TypeVar("T")
Train = Callable[[int, tuple[Group, ...]], list[DoubtedResponse]]
Check = Callable[[tuple[Group, ...]], Sequence[DoubtedResponse]]


class FollowerLost(PeerEnded):
    """A follower ended. Its mistake is one here too; other ends a second start may mend."""

    def __init__(self, message: str, code: int = exits.BROKEN) -> None:
        super().__init__(message, exits.MISTAKE if code == exits.MISTAKE else exits.BROKEN)


class Followers(Peers):
    """The other processes of a trainer."""

    def __init__(
        self,
        world: ProcessGroup,
        channels: Mapping[str, Sequence[TrainerChannel]],
        *,
        read: Read = np.asarray,
    ) -> None:
        """Wrap the connections to the followers.

        Args:
            channels: to each follower, by purpose.
            read: copies from a device of this process to its memory.
        """
        self._world, self._read = world, read
        lost = [partial(_lost, f"process {i} of {world.count}") for i in range(1, world.count)]
        super().__init__(channels, lost)

    def begin(self, step: int, version: int) -> None:
        self._order(follower_orders.BEGIN, step, version)

    def leading(self, train: Train) -> Train:
        """Wrap `train` so that it runs on all processes."""
        return self._ordered(follower_orders.TRAIN, train)

    def checking(self, check: Check) -> Check:
        """Wrap `check` so that it runs on all processes."""
        return self._ordered(follower_orders.CHECK, check)

    def checking_heldout(self, check: Check) -> Check:
        """Wrap `check` of responses to held-out prompts so that it runs on all processes."""
        return self._ordered(follower_orders.HELDOUT, check)

    def finish(self) -> None:
        self._order(follower_orders.FINISH)

    def save(self, step: int, extra: dict[str, Any]) -> None:
        self._order(follower_orders.SAVE, step, extra)

    def again(self) -> None:
        """End this session on the followers, and announce another one."""
        self._order(follower_orders.AGAIN)

    def host_copy(self, params: Params) -> Params:
        """Copy what this process writes of parameters to host memory."""
        return shares_of(params, process=0, read=self._read)

    def whole(self, host_copy: Params) -> Params | None:
        """A host copy with all parameters in it; None where others have some of them."""
        return None

    def digest(self, params: Params, host_copy: Params, name: str, *, base: str = "") -> str:
        """Compute `params_digest` of parameters that have this name in orders."""
        self._order(follower_orders.DIGEST, name, base)
        return shared_digest(params, self._world, base=base, read=self._read)

    def keep(self, version: int, digest: str, older: Collection[int]) -> None:
        """Order the followers to keep the newest version and these older ones, and no other."""
        self._order(follower_orders.KEEP, version, digest, list(older))

    def write(self, name: str) -> None:
        """Order the followers to begin writing their shares."""
        self._order(follower_orders.WRITE, name)

    def written(self, name: str) -> list[FileEntry]:
        """Wait for the files that the followers have written. Called in the writer's thread.

        Files of earlier names that were never asked for are skipped.

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
        """Have `fail` called, from a thread, with the error of a follower that ends."""
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


class NoFollowers(Followers):
    """The others of a trainer of one process, which has everything itself."""

    def __init__(self) -> None:
        super().__init__(ALONE, dict.fromkeys(PURPOSES, ()))

    def host_copy(self, params: Params) -> Params:
        copy: Params = jax.device_get(params)
        return copy

    def whole(self, host_copy: Params) -> Params:
        return host_copy

    def digest(self, params: Params, host_copy: Params, name: str, *, base: str = "") -> str:
        return params_digest(host_copy, base=base)


def invite(world: ProcessGroup, workdir: Path, tell: Tell = tell_all) -> Followers:
    """Accept the other processes, which call `accept` at the same moment.

    Raises:
        FollowerLost: one did not come, or sees another folder than this process.
    """
    if world.count == 1:
        return NoFollowers()
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


def _accepted(handshakes: Handshakes, world: ProcessGroup) -> dict[str, list[TrainerChannel]]:
    """Accept a connection of each follower for each purpose.

    Raises:
        FollowerLost: one did not come.
    """
    deadline = time.monotonic() + JOIN_SECONDS
    expected = [(purpose, index) for purpose in PURPOSES for index in range(1, world.count)]
    found: dict[tuple[str, int], TrainerChannel] = {}
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
    """Address to listen on: all interfaces, unless the others are on this host too."""
    try:
        address = ipaddress.ip_address(socket.gethostbyname(host))
    except (OSError, ValueError):
        return ""
    return str(address) if address.is_loopback else ""
