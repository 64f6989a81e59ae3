"""The components of a manager, each made with those that it needs."""

from collections.abc import Callable
from dataclasses import dataclass

from rlboost_jax.manager.policies.throughput import ThroughputProfile
from rlboost_jax.manager.reducer.announcements import Announcements
from rlboost_jax.manager.reducer.answers import Answers
from rlboost_jax.manager.reducer.batch_reports import BatchReports
from rlboost_jax.manager.reducer.control import WindowControl
from rlboost_jax.manager.reducer.dispatch import Dispatch
from rlboost_jax.manager.reducer.intake import Intake
from rlboost_jax.manager.reducer.placements import Placements
from rlboost_jax.manager.reducer.provisioning import Provisioning
from rlboost_jax.manager.reducer.purchases import Purchases
from rlboost_jax.manager.reducer.recovery import Recovery
from rlboost_jax.manager.reducer.replacements import Replacements
from rlboost_jax.manager.reducer.seeding import SeedingWindow
from rlboost_jax.manager.reducer.servers import Servers
from rlboost_jax.manager.reducer.sizing import Sizing
from rlboost_jax.manager.reducer.step_feedback import StepFeedback
from rlboost_jax.manager.reducer.step_plans import StepPlans
from rlboost_jax.manager.reducer.tail import Tail
from rlboost_jax.manager.reducer.trainer import Trainer
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.roster import Roster


@dataclass(frozen=True)
class Choices:
    """What makes the parts that choose; a baseline puts its own in their place."""

    placements: Callable[[Settings, Owners], Placements] = Placements
    dispatch: Callable[..., Dispatch] = Dispatch
    control: Callable[[Settings, Roster], WindowControl] = WindowControl


class Components:
    """In the order in which one is made of others."""

    def __init__(self, settings: Settings, owners: Owners, choices: Choices, now: float) -> None:
        self.plans = plans = StepPlans(settings) if settings.models else None
        model = None if plans is None else plans.model
        self.profile = ThroughputProfile()
        self.placements = choices.placements(settings, owners)
        self.seeding = SeedingWindow(settings, owners, self.placements, plans)
        self.announcements = Announcements(owners, self.seeding)
        self.dispatch = choices.dispatch(
            settings, owners, self.placements, self.seeding, self.profile, plans
        )
        self.intake = Intake(settings, owners, self.profile, model)
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
            Answers(settings, owners, self.dispatch, model),
            now,
        )
        self.tail = Tail(
            settings,
            owners,
            plans,
            self.dispatch,
            self.seeding,
            self.servers,
            self.sizing,
            self.control,
        )
        self.recovery = Recovery(owners, self.control, self.reports)
