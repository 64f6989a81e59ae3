"""What pulls weights for a server: policies, and teachers where it scores for them."""

from collections.abc import Callable

from rlboost_jax.platform.object_store import BadStore, ObjectStore
from rlboost_jax.settings.weights_config import WeightsConfig
from rlboost_jax.trust.credentials import Endpoint
from rlboost_jax.weights.peers.exchange import PeerExchange
from rlboost_jax.weights.pull import Puller


def server_pullers(
    weights: WeightsConfig,
    manager: Endpoint,
    address: str,
    *,
    scores: bool,
    connections: int,
    say: Callable[[str], None],
    peers: PeerExchange | None = None,
) -> tuple[Puller, Puller]:
    """Return the pullers of policies and of teachers, which share the connections.

    Args:
        address: HOST:PORT of weights; "": as the manager says.
        scores: whether teachers are pulled at all.
        say: prints a line.
        peers: brings pieces of policies from other servers; None: nobody does.
    """
    of_teachers = connections // 4 if scores else 0  # both may pull at once
    policies = Puller(
        source=weights.source,
        manager=manager,
        weights=address,
        connections=max(1, connections - of_teachers),
        store=_opened_store(weights.store, say),
        deltas=bool(weights.deltas),
        peers=peers,
    )
    teachers = Puller(
        source="auto" if weights.source == "store" else weights.source,  # they are in no store
        manager=manager,
        weights=address,
        connections=max(1, of_teachers),
    )
    return policies, teachers


def _opened_store(url: str, say: Callable[[str], None]) -> ObjectStore | None:
    """Open the store of a run's versions; without it the trainer has them too."""
    try:
        return ObjectStore(url, setting="weights.store") if url else None
    except BadStore as error:
        say(str(error))
        return None
