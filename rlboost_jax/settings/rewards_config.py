"""Settings of rewards."""

from dataclasses import dataclass, field
from typing import Final, Literal

from rlboost_jax.settings.setting import setting

Sandbox = Literal["required", "best_effort"]
Per = Literal["response", "group"]

MOST_CONCURRENT: Final = 1024


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """One term of a response's reward; see docs/how-to/rewards.md."""

    name: str  # built in (rlboost_jax/rewards/builtin.py), or "package.module:function"
    label: str = ""  # what records call it, and no other of the run; "" is its name
    weight: float = 1.0
    options: dict[str, bool | int | float | str] = field(default_factory=dict)
    # Limit of a call; with per="group" the whole group fails as one. 0: rewards.time_limit_seconds.
    time_limit_seconds: float = 0.0
    per: Per = "response"  # what one call judges: a response, or all responses to a prompt
    max_concurrent: int = 0  # calls that wait side by side, `async def` or not; 0: in the workers

    @property
    def shown_as(self) -> str:
        return self.label or self.name


@dataclass(frozen=True, kw_only=True)
class RewardsConfig:
    """How responses are judged, with `task.name = "dataset"`; see docs/how-to/rewards.md."""

    functions: tuple[RewardConfig, ...] = setting(
        (),
        "their weighted sum is the reward; (): those of data.preset",
        note='Dictionaries: {"name": "math"}, or {"name": "my.module:function", "weight": 0.1, '
        '"options": {"limit": 3}, "time_limit_seconds": 2.0, "label": "short"}. Two of one name '
        'need a label each. "per": "group" calls it once for all responses to a prompt, '
        '"max_concurrent": 32 lets so many calls wait side by side (an `async def` needs it).',
    )
    workers: int = setting(
        2,
        "processes that reward functions run in",
        unit="processes",
        at_least=1,
        may_change="at once",
    )
    time_limit_seconds: float = setting(
        10.0,
        'limit of one call of a function: for one response, or with its per="group" for a group',
        above=0,
        may_change="from its step",
    )
    memory_mb: int = setting(
        1024, "memory that one call may allocate", at_least=1, may_change="from its step"
    )
    fallback: float = setting(0.0, "what a function that failed is taken to have returned")
    tolerated_failures: float = setting(
        0.5,
        "share of a step's responses; with more the run ends",
        at_least=0,
        at_most=1,
        may_change="from its step",
    )
    special_tokens: tuple[str, ...] = setting(
        (),
        "special tokens of the tokenizer that stay in the text that reward functions read",
        note='Such as ("<think>", "</think>") where these are special: all others are '
        "dropped from it, and so are these by default.",
    )
    sandbox: Sandbox = setting(
        "required",
        "whether the policy's programs need all isolation, or run with what the host has",
    )
