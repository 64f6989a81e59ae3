"""The owners of all that a manager knows, and where it leaves what it wants done."""

from dataclasses import dataclass

from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.fleet import Fleet
from rlboost_jax.manager.state.ledger import Ledger
from rlboost_jax.manager.state.pools import Pools
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.manager.state.versions import Versions


@dataclass(frozen=True)
class Owners:
    """A holder of one reads its records, and changes them by its verbs alone."""

    outbox: Outbox
    ledger: Ledger
    roster: Roster
    fleet: Fleet
    pools: Pools
    versions: Versions

    @staticmethod
    def of(settings: Settings, now: float, life: str) -> "Owners":
        """Args: life: unlike that of any other manager of the run."""
        outbox, roster, fleet = Outbox(), Roster(settings, now), settings.fleet
        ledger = Ledger(outbox)
        pools = Pools(fleet.pools, most=fleet.most_instances, now=now)
        return Owners(
            outbox=outbox,
            ledger=ledger,
            roster=roster,
            fleet=Fleet(
                fleet.most_instances,
                capped=fleet.sizing != "fixed",
                prefix=fleet.provider,
                life=life,
                pools=pools,
            ),
            pools=pools,
            versions=Versions(roster, ledger, outbox, lag=settings.lag),
        )
