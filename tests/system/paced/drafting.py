"""Other drafts than an engine's own, in every engine of a run under test, and as many as it takes.

`RLBOOST_TEST_DRAFTER` says which:

own       as they are
random    seven tokens of any kind
another   what the texts of other prompts have
short     what follows the next token: each draft is one place too early

Decode steps have drafts whenever speculation is on, whatever these gain.
"""

import os
from collections.abc import Iterator
from typing import Any

DRAFTER = os.environ.get("RLBOOST_TEST_DRAFTER", "own")
TOKENS = 100  # of every vocabulary here


def always(module: Any) -> None:
    def wants(self: Any, num_sequences: int) -> bool:
        return bool(self._enabled and num_sequences)

    module.DraftPolicy.wants = wants


def of_other_prompts(module: Any) -> None:
    def texts(self: Any, rollout: Any, most: int) -> Iterator[Any]:
        for key, group in self._groups.items():
            if key != rollout.prompt_key:
                yield from (
                    other.tokens(max(0, other.known - most), other.known) for other in group
                )

    module.DraftTexts._texts = texts


def any_tokens(module: Any) -> None:
    import jax.numpy as jnp

    width = module.MOST_DRAFTS

    def proposals(newest: Any, texts: Any) -> Any:
        mixed = 31 * newest[:, -1:] + 17 * newest[:, -2:-1]
        return ((mixed + 13 * jnp.arange(width)[None, :]) % TOKENS).astype(jnp.int32)

    module.proposals = proposals


def one_too_early(module: Any) -> None:
    import jax.numpy as jnp

    right, nothing = module.proposals, module.NO_TOKEN

    def proposals(newest: Any, texts: Any) -> Any:
        return jnp.pad(right(newest, texts)[:, 1:], ((0, 0), (0, 1)), constant_values=nothing)

    module.proposals = proposals


CHANGED = {"rlboost_jax.engine.draft_policy": always}
match DRAFTER:
    case "random":
        CHANGED["rlboost_jax.engine.verify_steps"] = any_tokens
    case "short":
        CHANGED["rlboost_jax.engine.verify_steps"] = one_too_early
    case "another":
        CHANGED["rlboost_jax.engine.drafts"] = of_other_prompts
    case _:
        assert DRAFTER == "own", DRAFTER
