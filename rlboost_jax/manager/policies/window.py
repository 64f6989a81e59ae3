"""Length of the seeding window of the reserved engines, and number of instances worth having.

Source: RLBoost (NSDI '26), Algorithm 1. Times are float seconds.
"""

import math
from dataclasses import dataclass

from rlboost_jax.messages import WindowState


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Measurements of a finished step."""

    train_wait: float  # w_train: seconds the learner lacked finished groups
    remote_wait: float  # w_remote: seconds from the last token to the end of the step
    train: float  # c_train: seconds of learner work
    rollout: float  # c_remote: seconds from the first request to the last token
    instances: float  # n: preemptible instances, averaged over the step
    instances_next: int  # n̂: right before the next step
    churn: bool  # an instance came or went during the step
    num_reserved: int  # N_resv


def initial(seconds: float, num_reserved: int = 1) -> WindowState:
    return WindowState(seconds=seconds, memory={}, instance_cap=num_reserved)


def update(state: WindowState, seen: Observation, *, eta: float, memory: bool) -> WindowState:
    """The state for the next step.

    Three bounds are ours. A step without any preemptible instance says nothing about
    offloading and changes nothing. The window is never negative. And it is never longer
    than the rollouts of the step took: the surplus could not be used, and would have to be
    unlearnt once the fleet is back.
    """
    if seen.instances <= 0 or not math.isfinite(seen.train_wait - seen.remote_wait):
        return state
    seconds = state.seconds + (seen.train_wait - seen.remote_wait) / eta
    seconds = max(0.0, min(seconds, max(seen.rollout, state.seconds)))
    cap = state.instance_cap
    if seen.train > 0:
        work = seen.rollout * seen.instances + state.seconds * seen.num_reserved
        cap = max(1, math.ceil(work / seen.train))
    known = dict(state.memory)
    if memory and not seen.churn:
        known[seen.instances_next] = seconds
    state = WindowState(seconds=seconds, memory=known, instance_cap=cap)
    return recall(state, seen.instances_next) if memory else state


def recall(state: WindowState, instances: int) -> WindowState:
    """The window remembered for this number of instances; the state as it is if there is none."""
    seconds = state.memory.get(instances, state.seconds)
    return WindowState(seconds=seconds, memory=state.memory, instance_cap=state.instance_cap)


class Seeding:
    """Whether the reserved engines are eligible for work at this moment of a step."""

    def __init__(self) -> None:
        self.open = False
        self.until = 0.0  # earliest regular end, as it is known now
        self.limit = 0.0  # that end where nothing better is known
        self._opened_at = 0.0
        self._before = 0.0  # seconds open in earlier intervals of the step

    def begin(self, now: float, seconds: float) -> None:
        self.open, self._opened_at, self._before = True, now, 0.0
        self.until = self.limit = now + seconds

    def ask_at(self, moment: float) -> None:
        """Schedule the next check of whether to end the window."""
        self.until = moment

    def reopen(self, now: float) -> None:
        self.open, self._opened_at = True, now

    @property
    def reopened(self) -> bool:
        """Whether the learner has had the devices in this step."""
        return self._before > 0.0

    def close(self, now: float) -> None:
        self._before = self.total(now)
        self.open = False

    def total(self, now: float) -> float:
        """Seconds open since the step began."""
        return self._before + (max(0.0, now - self._opened_at) if self.open else 0.0)
