"""State of Algorithm 1: the length of the next window and the number of instances worth having.

A run goes on with what its last step has shown, whichever of trainer and manager was restarted.
"""

from typing import Any

import msgspec

from rlboost_jax.manager.journal_entries import RunState
from rlboost_jax.manager.policies.window import Observation, initial, recall, update
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.rollouts import BatchRecord
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.messages import BatchTrained, WindowState


class WindowControl:
    """Controller of the seeding window.

    Attributes:
        window: of the next step.
        learnt: this manager has seen a whole step.
    """

    def __init__(self, settings: Settings, roster: Roster) -> None:
        self._settings = settings
        self._roster = roster
        self.window: WindowState = initial(settings.manager.window_initial_seconds)
        self.learnt = False

    @property
    def instance_cap(self) -> int:
        """Preemptible instances worth having: N_resv until a step has shown how many."""
        cap = self.window.instance_cap
        return cap if self.learnt else max(cap, self._roster.num_reserved)

    def offer(self, window: WindowState | None) -> None:
        """Take over the trainer's window state, unless this manager has learnt a newer one."""
        if window is not None and not self.learnt:
            self.window = window

    def begin_batch(self) -> None:
        """Start from the window remembered for a fleet of this size."""
        manager = self._settings.manager
        if manager.window_memory and manager.window == "paper":
            self.window = recall(self.window, self._roster.members)

    def observe(
        self,
        step: BatchRecord,
        message: BatchTrained,
        now: float,
        *,
        instances: float,
        seeding: float,
        wanted: int | None,
    ) -> None:
        """Update the window from a whole step.

        Args:
            instances: preemptible ones, averaged over the step.
            seeding: seconds that the window was open.
            wanted: preemptible instances, if a model says how many.
        """
        rollout = step.rollout_seconds
        seen = Observation(
            train_wait=message.train_wait_seconds,
            remote_wait=now - step.begun_at - rollout,
            train=message.train_seconds,
            rollout=rollout,
            instances=instances,
            instances_next=self._roster.members,
            churn=self._roster.changed,
            num_reserved=self._roster.num_reserved,
        )
        manager = self._settings.manager
        before = self.window
        self.window = update(before, seen, eta=manager.window_eta, memory=manager.window_memory)
        if manager.window == "model":  # to go on with after a restart, until it knows as much
            self.window = msgspec.structs.replace(
                self.window, seconds=seeding, memory=before.memory
            )
        if self._settings.fleet.sizing == "marginal" and wanted is not None:
            self.window = msgspec.structs.replace(self.window, instance_cap=wanted)
        self.learnt = True

    def mark(self) -> tuple[object, ...]:
        """A value that changes whenever `snapshot` does."""
        return self.window, self.learnt

    def snapshot(self) -> dict[str, Any]:
        """Fields of `RunState` that are kept here."""
        return {"window": self.window, "learnt": self.learnt}

    def restore(self, entry: RunState) -> None:
        self.window, self.learnt = entry.window, entry.learnt
