"""Part of a run's configuration that the manager's decisions depend on."""

from dataclasses import dataclass

from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.settings.manager_config import ManagerConfig
from rlboost_jax.settings.pool_fleets import mixed
from rlboost_jax.settings.routing import Routing, routing_of
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.trust.peer_limits import MAX_INSTANCES


@dataclass(frozen=True, kw_only=True)
class Settings:
    run_id: str
    manager: ManagerConfig
    fleet: FleetConfig
    deterministic: bool  # equal fingerprints are asked of all engines
    vocab_size: int  # tokens are in [0, vocab_size)
    slots: int  # of an engine of the run
    slot_tokens: int  # longest prompt plus response of the run
    routing: Routing | None = None  # of what comes with tokens
    max_servers: int = MAX_INSTANCES
    num_steps: int = 0  # of the run; 0: not known
    lag: int = 0  # versions between a batch and the one that samples it, at most
    micro_batch_prompts: int = 1  # groups that the learner trains together
    status_seconds: float = 1.0  # between two FleetStatus to the trainer
    informs: bool = True  # fleets of other sizes are predicted where nothing depends on them, too
    weights_port: int = 0  # of the file server, as announced to servers
    peers: bool = False  # servers fetch weights from each other
    drafts: bool = False  # engines may sample several tokens of a rollout in a step
    siblings_follow: bool = False  # one response of each prompt leads: others are drafted from it
    kept_tokens: int = 0  # of responses, for drafts when their prompts come again; 0: none are

    @property
    def models(self) -> bool:
        """Whether any policy needs a prediction of a step."""
        manager, fleet = self.manager, self.fleet
        by_lengths = manager.longest_first or self.routes_by_speed
        by_price = fleet.sizing == "marginal" or fleet.merge_tail or bool(fleet.pools)
        return by_lengths or by_price or manager.window == "model"

    @property
    def predicts_sizes(self) -> bool:
        """Whether fleets of several sizes are predicted.

        They are where that decides the size of the fleet, or how pools rank, since the cost of
        sending weights depends on the seconds of a step.
        """
        fleet = self.fleet
        ranks = bool(fleet.pools) and fleet.egress_dollars_per_gb > 0
        return self.informs or fleet.sizing == "marginal" or ranks

    @property
    def replaces_instances(self) -> bool:
        """Whether instances that cost more than they bring are let go for better ones."""
        return bool(self.fleet.pools) and self.fleet.sizing == "marginal"

    @property
    def routes_by_speed(self) -> bool:
        """Whether rollouts are placed where they would end first."""
        routing = self.manager.routing
        return routing == "speed" or (routing == "auto" and mixed(self.fleet))

    @staticmethod
    def of(run: RunConfig, run_id: str, *, weights_port: int = 0) -> "Settings":
        return Settings(
            run_id=run_id,
            manager=run.manager,
            fleet=run.fleet,
            deterministic=run.deterministic,
            vocab_size=run.model.vocab_size,
            slots=run.engine.slots,
            slot_tokens=run.slot_tokens,
            routing=routing_of(run.model, run.algorithm),
            num_steps=run.num_steps,
            lag=run.algorithm.lag,
            micro_batch_prompts=run.learner.micro_batch_prompts,
            weights_port=weights_port,
            peers=run.weights.peers,
            drafts=bool(run.speculation.used),
            siblings_follow="siblings" in run.speculation.used,
            kept_tokens=run.speculation.kept_tokens if "epochs" in run.speculation.used else 0,
        )
