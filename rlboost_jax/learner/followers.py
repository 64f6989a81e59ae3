"""Process 0's side of a trainer of several processes: orders out, parameters in.

Invariants:
- an order goes out before process 0 itself begins with what it says;
- a follower that ends, however it ends, ends this process too, with one line that says which.
"""

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import jax
import numpy as np

from rlboost_jax import exits
from rlboost_jax.learner import orders
from rlboost_jax.learner.control import Channel, PeerGone
from rlboost_jax.learner.processes import JOIN_SECONDS, World, tell_all
from rlboost_jax.learner.stream.step_stream import Doubt
from rlboost_jax.learner.trajectory import Group
from rlboost_jax.learner.watch import PeerEnded, Watch, loss_behind
from rlboost_jax.models.params import Params, flatten_params, unflatten_params

Train = Callable[[int, tuple[Group, ...]], list[Doubt]]
Check = Callable[[tuple[Group, ...]], Sequence[Doubt]]


class FollowerLost(PeerEnded):
    """A follower ended. Its mistake is one here too; anything else a second start may mend."""

    def __init__(self, message: str, code: int = exits.BROKEN) -> None:
        super().__init__(message, exits.MISTAKE if code == exits.MISTAKE else exits.BROKEN)


class Followers:
    """The other processes; none of them in a trainer of one process.

    A context manager: its end, with or without an error, is theirs.
    """

    def __init__(self, channels: Sequence[Channel] = (), watches: Sequence[Watch] = ()) -> None:
        self._channels, self._watches = channels, watches

    def __bool__(self) -> bool:
        return bool(self._channels)

    def begin(self, step: int) -> None:
        self._order(orders.BEGIN, step)

    def leading(self, train: Train) -> Train:
        """`train`, on all processes."""

        def order_and_train(index: int, groups: tuple[Group, ...]) -> list[Doubt]:
            if self._channels:
                self._order(orders.TRAIN, index, orders.groups_to_wire(groups))
            return train(index, groups)

        return order_and_train

    def checking(self, check: Check) -> Check:
        """`check`, on all processes."""

        def order_and_check(groups: tuple[Group, ...]) -> Sequence[Doubt]:
            if self._channels:
                self._order(orders.CHECK, orders.groups_to_wire(groups))
            return check(groups)

        return order_and_check

    def finish(self) -> None:
        self._order(orders.FINISH)

    def save(self, step: int, extra: dict[str, Any]) -> None:
        self._order(orders.SAVE, step, extra)

    def gather(self, params: Params, which: str = orders.TRAINED) -> Params:
        """All parameters in this host's memory: a leaf at a time, each part from one process that
        holds it. Devices need no room for it.

        Args:
            which: of `orders.GATHER`.
        """
        if not self._channels:
            host_params: Params = jax.device_get(params)
            return host_params
        self._order(orders.GATHER, which)
        return unflatten_params(
            {name: self._whole(leaf) for name, leaf in flatten_params(params).items()}
        )

    def fail_to(self, fail: Callable[[Exception], None]) -> None:
        """Have `fail` called, from a thread, with what becomes of a follower."""
        for watch in self._watches:
            watch.tell(fail)

    def __enter__(self) -> "Followers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loss = loss_behind(error, self._watches)
        for watch in self._watches:
            watch.end(error)
        for channel in self._channels:
            channel.close()
        if loss is not None:
            raise loss from error

    def _order(self, *order: Any) -> None:
        for channel in self._channels:
            channel.send(order)

    def _whole(self, leaf: jax.Array) -> np.ndarray:
        whole = np.empty(leaf.shape, leaf.dtype)
        for shard in leaf.addressable_shards:
            whole[shard.index] = np.asarray(shard.data)
        for index, process in orders.shards_to_send(leaf.sharding, leaf.shape):
            part = whole[index]
            channel = self._channels[process - 1]
            whole[index] = channel.receive_array(part.shape, part.dtype)
        return whole


def invite(world: World, run_id: str) -> Followers:
    """Have the other processes dial in; to be called at the moment when they call `accept`.

    Raises:
        FollowerLost: one did not come.
    """
    if world.count == 1:
        return Followers()
    host = world.coordinator.rpartition(":")[0].strip("[]") or socket.gethostname()
    token = secrets.token_hex(16)
    with socket.create_server((_listens_on(host), 0), backlog=2 * world.count) as server:
        port = server.getsockname()[1]
        tell_all({"host": host, "port": port, "token": token, "run_id": run_id})
        server.settimeout(JOIN_SECONDS)
        found: dict[tuple[int, str], Channel] = {}
        while len(found) < 2 * (world.count - 1):
            try:
                connection, _ = server.accept()
            except TimeoutError:
                raise FollowerLost(
                    f"{len(found) // 2} of {world.count - 1} followers came in {JOIN_SECONDS} s"
                ) from None
            connection.settimeout(JOIN_SECONDS)
            channel = Channel(connection)
            try:
                said, index, purpose = channel.receive()
            except (PeerGone, ValueError, TypeError):  # somebody else who knocks at a port
                channel.close()
                continue
            if not hmac.compare_digest(str(said).encode(), token.encode()):
                channel.close()
                continue
            connection.settimeout(None)
            found[index, purpose] = channel
    indices = range(1, world.count)
    watches = [
        Watch(
            found[index, "watch"],
            partial(_lost, f"process {index} of {world.count}"),
        )
        for index in indices
    ]
    return Followers([found[index, "orders"] for index in indices], watches)


def _lost(who: str, reason: str, code: int) -> FollowerLost:
    return FollowerLost(f"{who} {reason}; the same command on all hosts goes on", code)


def _listens_on(host: str) -> str:
    """All addresses, unless the others are on this host too."""
    try:
        address = ipaddress.ip_address(socket.gethostbyname(host))
    except (OSError, ValueError):
        return ""
    return str(address) if address.is_loopback else ""
