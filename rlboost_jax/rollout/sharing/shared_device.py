"""A server's device that others use too, as its command line says: tenants, neighbours, or none."""

import argparse
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial

from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.shared import SharedEngine
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.rollout.sharing.neighbours import OPTION, Neighbours
from rlboost_jax.rollout.sharing.shared_server import SharedServer
from rlboost_jax.rollout.sharing.socket import check_place, tenants_heard


def shared_engine_of(args: argparse.Namespace) -> Callable[..., Engine]:
    """Make the maker of the engine. Neighbours take a device as a whole: one pool size will do.

    Raises:
        SocketUnusable: where others are to be heard is no safe place.
    """
    if args.neighbour_socket is not None:
        check_place(args.neighbour_socket, OPTION, own=False)
    if args.budget_socket is None:
        return partial(SharedEngine, num_pool_sizes=1)
    check_place(args.budget_socket)
    return partial(SharedEngine, num_pool_sizes=args.pool_sizes)


class SharedDevice:
    """What hears the others on the device.

    Args:
        args: of the command line.
        sharing: None: there are no others.
        say: takes a line for the server's log.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        sharing: SharedServer | None,
        say: Callable[[str], None],
    ) -> None:
        self._budget_socket, self._sharing = args.budget_socket, sharing
        self._neighbours: Neighbours | None = None
        if args.neighbour_socket is not None and sharing is not None:
            self._neighbours = Neighbours(args.neighbour_socket, sharing.lend, say)

    @property
    def has_neighbours(self) -> bool:
        return self._neighbours is not None

    def bid(self, price: float) -> None:
        """Bid for the device, if others could have it."""
        if self._neighbours is not None:
            self._neighbours.bid(price)

    @contextlib.asynccontextmanager
    async def shared(self, worker: EngineWorker) -> AsyncIterator[None]:
        """Context in which the others are heard."""
        async with contextlib.AsyncExitStack() as stack:
            if self._sharing is not None:
                self._sharing.serve(worker)
                if self._budget_socket is not None:
                    heard = tenants_heard(self._budget_socket, self._sharing)
                    await stack.enter_async_context(heard)
            if self._neighbours is not None:
                await stack.enter_async_context(self._neighbours.taking_part())
            yield
