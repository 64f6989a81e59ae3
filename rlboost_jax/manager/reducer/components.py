"""The components of a manager, each constructed with those that it needs."""

from collections.abc import Callable
from dataclasses import dataclass

from rlboost_jax.manager.policies.throughput import ThroughputProfile
from rlboost_jax.manager.reducer.announcements import Announcements
from rlboost_jax.manager.reducer.batch_reports import BatchReports
from rlboost_jax.manager.reducer.bidding import Bidding
from rlboost_jax.manager.reducer.peer_weights import PeerWeights
from rlboost_jax.manager.reducer.placements import Placements
from rlboost_jax.manager.reducer.provisioning import Provisioning
from rlboost_jax.manager.reducer.purchases import Purchases
from rlboost_jax.manager.reducer.recovery import Recovery
from rlboost_jax.manager.reducer.replacements import Replacements
from rlboost_jax.manager.reducer.rollout_dispatch import RolloutDispatch
from rlboost_jax.manager.reducer.seeding import SeedingWindow
from rlboost_jax.manager.reducer.servers import Servers
from rlboost_jax.manager.reducer.sizing import Sizing
from rlboost_jax.manager.reducer.step_feedback import StepFeedback
from rlboost_jax.manager.reducer.step_plans import StepPlans
from rlboost_jax.manager.reducer.tail_merging import TailMerging
from rlboost_jax.manager.reducer.token_intake import TokenIntake
from rlboost_jax.manager.reducer.trainer import Trainer
from rlboost_jax.manager.reducer.window_control import WindowControl
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.roster import Roster


@dataclass(frozen=True)
class Choices:
    """Factories of the components that choose; a baseline replaces them by its own."""

    placements: Callable[[Settings, Owners], Placements] = Placements
    dispatch: Callable[..., RolloutDispatch] = RolloutDispatch
    control: Callable[[Settings, Roster], WindowControl] = WindowControl


class Components:
    """Components in the order of construction: each needs only earlier ones."""

    def __init__(self, settings: Settings, owners: Owners, choices: Choices, now: float) -> None:
        self.plans = plans = StepPlans(settings)
        self.profile = ThroughputProfile()
        self.placements = choices.placements(settings, owners)
        self.seeding = SeedingWindow(settings, owners, self.placements, plans)
        self.peers = PeerWeights(settings, owners)
        self.announcements = Announcements(owners, self.seeding, self.peers)
        self.dispatch = choices.dispatch(
            settings, owners, self.placements, self.seeding, self.profile, plans
        )
        self.intake = TokenIntake(settings, owners, self.profile, plans.model)
        self.servers = Servers(
            settings, owners, self.placements, self.seeding, self.intake, self.announcements
        )
        self.purchases = Purchases(settings, owners)
        self.sizing = Sizing(settings, owners, self.purchases)
        self.feedback = StepFeedback(
            owners.roster, self.seeding, self.dispatch, self.profile, plans, self.sizing
        )
        self.control = choices.control(settings, owners.roster)
        self.provisioning = Provisioning(settings, owners, self.control, self.purchases)
        self.replacements = Replacements(
            settings, owners, self.purchases, self.servers, self.sizing, self.control
        )
        self.reports = BatchReports(owners, self.placements)
        self.trainer = Trainer(
            settings,
            owners,
            self.placements,
            self.seeding,
            self.announcements,
            self.servers,
            self.control,
            self.feedback,
            self.reports,
            self.dispatch,
            plans.model,
            now,
        )
        self.tail = TailMerging(
            settings,
            owners,
            plans,
            self.dispatch,
            self.seeding,
            self.servers,
            self.sizing,
            self.control,
        )
        self.bidding = Bidding(settings, owners)
        self.recovery = Recovery(owners, self.control, self.reports)
