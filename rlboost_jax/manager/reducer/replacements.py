"""Release of instances that cost more than they bring, once better ones have joined.

Where the settings name no pools, no instance is let go for that: a size then limits what is started
(`TailMerging` lets go for want of work). Looked at once for each step that was predicted.
"""

from rlboost_jax.manager.reducer.purchases import Purchases
from rlboost_jax.manager.reducer.servers import Servers
from rlboost_jax.manager.reducer.sizing import Sizing
from rlboost_jax.manager.reducer.window_control import WindowControl
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners


class Replacements:
    def __init__(
        self,
        settings: Settings,
        owners: Owners,
        purchases: Purchases,
        servers: Servers,
        sizing: Sizing,
        control: WindowControl,
    ) -> None:
        self._acts = settings.replaces_instances
        self._fleet = owners.fleet
        self._pools = owners.pools
        self._roster = owners.roster
        self._purchases = purchases
        self._servers = servers
        self._sizing = sizing
        self._control = control
        self._predicted = 0

    def settle(self, now: float) -> None:
        if not self._acts or self._predicted == self._sizing.predicted:
            return
        self._predicted = self._sizing.predicted
        by_pool: dict[str, list[Instance]] = {}
        for instance in self._roster:
            server = self._fleet.server_of(instance.hello)
            if server is not None and instance.member and not server.doomed:
                by_pool.setdefault(server.pool, []).append(instance)
        members = {name: len(instances) for name, instances in by_pool.items()}
        kept = max(self._control.instance_cap, self._sizing.kept)
        for name, count in self._purchases.surplus(kept, members, now).items():
            for instance in by_pool[name][-count:]:
                self._servers.dismiss(instance, now)
