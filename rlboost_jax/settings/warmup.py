"""Settings of the supervised warm-up."""

from dataclasses import dataclass

from rlboost_jax.settings.setting import setting


@dataclass(frozen=True, kw_only=True)
class WarmupConfig:
    """Supervised updates before reinforcement learning, so that a from-scratch model can start.

    A skill phase, with worked answers; then a habit phase, in which guesses prevail.
    """

    max_updates: int = setting(
        250, "updates of the skill phase; 0: no warm-up", unit="updates", at_least=0
    )
    target_loss: float = setting(
        0.13, "moving average that ends the skill phase", unit="nats/token", at_least=0
    )
    habit_updates: int = setting(32, "updates of the habit phase", unit="updates", at_least=0)
    worked_fraction: float = setting(
        0.75,
        "share of worked answers in the skill phase; the rest are guesses",
        at_least=0,
        at_most=1,
    )
    habit_worked_fraction: float = setting(
        0.12, "share of worked answers in the habit phase", at_least=0, at_most=1
    )
    learning_rate: float = setting(6e-3, "peak learning rate of the skill phase", above=0)
    habit_learning_rate: float = setting(3e-3, "peak learning rate of the habit phase", above=0)
