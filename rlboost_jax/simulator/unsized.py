"""A manager that predicts no fleets of other sizes, where nothing depends on what they would bring.

After each step a run's manager predicts the next one for fleets of several sizes. Where sizes are
fixed, that only informs: it is recorded, and pools rank by the predicted step what weights cost
them. It takes more than half of a simulation with pools, and nobody reads a simulation's records.
"""

from functools import partial
from typing import Final

from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.reducer.parts import Choices
from rlboost_jax.manager.reducer.sizing import Sizing
from rlboost_jax.manager.reducer.step_plans import StepPlans
from rlboost_jax.manager.settings import Settings


class Unsized(Sizing):
    """Learns how fast pools are, as ever, and predicts nothing."""

    def predict(self, plans: StepPlans, known: int | None, now: float) -> None:
        self.learn_pools(plans, now)


_UNSIZED: Final = partial(Manager, choices=Choices(sizing=Unsized))


def manager_of(settings: Settings, now: float) -> Manager:
    """Decides exactly what a run's manager does."""
    fleet = settings.fleet
    informs = fleet.sizing == "fixed" and not (fleet.pools and fleet.egress_dollars_per_gb)
    return _UNSIZED(settings, now) if informs else Manager(settings, now)
