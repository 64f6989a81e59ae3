"""Settings of rewards and of the supervised warm-up."""

from dataclasses import dataclass, field
from typing import Literal

from rlboost_jax.settings.setting import setting

Sandbox = Literal["required", "best_effort"]


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """One term of a response's reward; see docs/rewards.md."""

    name: str  # built in (rlboost_jax/rewards/builtin.py), or "package.module:function"
    label: str = ""  # what records call it, and no other of the run; "" is its name
    weight: float = 1.0
    options: dict[str, bool | int | float | str] = field(default_factory=dict)
    time_limit_seconds: float = 0.0  # 0: rewards.time_limit_seconds

    @property
    def shown_as(self) -> str:
        return self.label or self.name


@dataclass(frozen=True, kw_only=True)
class RewardsConfig:
    """How responses are judged, with `task.name = "dataset"`; see docs/rewards.md."""

    functions: tuple[RewardConfig, ...] = setting(
        (),
        "their weighted sum is the reward; (): those of data.preset",
        note='Dictionaries: {"name": "math"}, or {"name": "my.module:function", "weight": 0.1, '
        '"options": {"limit": 3}, "time_limit_seconds": 2.0, "label": "short"}. Two of one name '
        "need a label each.",
    )
    workers: int = setting(2, "that reward functions run in", unit="processes", at_least=1)
    time_limit_seconds: float = setting(10.0, "of one function for one response", above=0)
    memory_mb: int = setting(1024, "that one call may allocate", at_least=1)
    fallback: float = setting(0.0, "what a function that failed is taken to have returned")
    tolerated_failures: float = setting(
        0.5, "share of a step's responses; with more the run ends", at_least=0, at_most=1
    )
    sandbox: Sandbox = setting(
        "required", "code runs contained or not at all; or as contained as this host can"
    )


@dataclass(frozen=True, kw_only=True)
class WarmupConfig:
    """Supervised updates before reinforcement learning, so that a from-scratch model can start.

    A skill phase, with worked answers; then a habit phase, in which guesses prevail.
    """

    max_updates: int = setting(250, "of the skill phase; 0: no warm-up", unit="updates", at_least=0)
    target_loss: float = setting(
        0.13, "moving average that ends the skill phase", unit="nats/token", at_least=0
    )
    habit_updates: int = setting(32, "of the habit phase", unit="updates", at_least=0)
    worked_fraction: float = setting(
        0.75,
        "share of worked answers in the skill phase; the rest are guesses",
        at_least=0,
        at_most=1,
    )
    habit_worked_fraction: float = setting(0.12, "same, habit phase", at_least=0, at_most=1)
    learning_rate: float = setting(6e-3, "highest, skill phase", above=0)
    habit_learning_rate: float = setting(3e-3, "highest, habit phase", above=0)
