"""Settings of speculation: drafts of tokens, verified in rows of decode steps that are free."""

from dataclasses import dataclass
from typing import Literal

from rlboost_jax.settings.setting import setting

Drafter = Literal["siblings", "prompt", "recent", "epochs"]


@dataclass(frozen=True, kw_only=True)
class SpeculationConfig:
    """Draft tokens of rollout engines. A draft is accepted where it is what sampling chooses."""

    enabled: bool = setting(
        False,
        "whether engines draft tokens and verify them in rows that are free",
        note="It changes no token and no log-probability: docs/how-to/speculation.md.",
        may_change="at once",
    )
    drafters: tuple[Drafter, ...] = setting(
        ("siblings", "prompt", "recent", "epochs"),
        'texts that drafts come from: "siblings", the responses to the same prompt at the same '
        'engine; "prompt", the sequence\'s own prompt and response; "recent", the newest '
        'responses to any prompt at the same engine; and "epochs", the responses to the same '
        "prompt when it was last sampled, anywhere in the fleet",
        may_change="at once",
    )
    kept_tokens: int = setting(
        2**24,
        'with "epochs", most tokens that the manager keeps for when their prompts come again: two '
        "responses to each prompt, and the prompt; 4 bytes a token, and what was kept longest ago "
        "goes first",
        unit="tokens",
        at_least=0,
        may_change="at once",
    )

    @property
    def used(self) -> tuple[Drafter, ...]:
        """Drafters that engines use: none if speculation is off."""
        return self.drafters if self.enabled else ()
