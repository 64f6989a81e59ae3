"""All records of the manager, and the outbox of its actions."""

from dataclasses import dataclass

from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.fleet_machines import Fleet
from rlboost_jax.manager.state.instance_pools import Pools, pool_terms
from rlboost_jax.manager.state.ledger import Ledger
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.manager.state.versions import Versions
from rlboost_jax.manager.state.weight_peers import WeightPeers


@dataclass(frozen=True)
class Owners:
    """The records of the manager. Other parts read them, and change them by their methods alone."""

    outbox: Outbox
    ledger: Ledger
    roster: Roster
    fleet: Fleet
    pools: Pools
    versions: Versions
    peers: WeightPeers

    @staticmethod
    def of(settings: Settings, now: float, life: str) -> "Owners":
        """Create the records of a new manager.

        Args:
            life: an id unique to this manager process.
        """
        outbox, roster, fleet = Outbox(), Roster(settings, now), settings.fleet
        ledger = Ledger(outbox)
        pools = Pools(pool_terms(fleet), now)
        return Owners(
            outbox=outbox,
            ledger=ledger,
            roster=roster,
            fleet=Fleet(fleet.most_instances, pools, capped=fleet.sizing != "fixed", life=life),
            pools=pools,
            versions=Versions(roster, ledger, outbox, lag=settings.lag),
            peers=WeightPeers(),
        )
