"""Special tokens in reward functions: those they read, and those they can never find.

Responses are decoded without special tokens, as libraries do it by default. A tag such as `<think>`
that a tokenizer has as a special token is then in no text that a reward sees.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from rlboost_jax.platform.mistakes import ConfigError, nearest
from rlboost_jax.settings.rewards_config import RewardConfig

_ANSWER = ("<answer>", "</answer>")


def kept_ids(names: Sequence[str], special: Mapping[str, int], tokenizer: str) -> frozenset[int]:
    """Ids of the tokens that stay in what rewards read.

    Args:
        names: `rewards.special_tokens`.
        special: every special token of the tokenizer.
        tokenizer: its name, for messages.

    Raises:
        ConfigError: it has no such special token.
    """
    for name in names:
        if name not in special:
            hint = nearest(name, special) or f"it has {', '.join(sorted(special)) or 'none'}"
            raise ConfigError(
                f"rewards.special_tokens has {name!r}, which is no special token of {tokenizer!r}; "
                f"{hint}; what is not special is in the text anyway"
            )
    return frozenset(special[name] for name in names)


def unseen_lines(
    functions: Sequence[RewardConfig], special: Mapping[str, int], kept: Collection[int]
) -> Iterator[str]:
    """Warn, in a line each, of built-in functions that look for special tokens no reward sees."""
    dropped = [name for name, token in special.items() if token not in kept]
    for function in functions:
        sought = _sought(function, dropped)
        if unseen := [name for name in dropped if name in sought]:
            yield (
                f"rewards.functions {function.shown_as!r} looks for {', '.join(unseen)}, special "
                "tokens of the tokenizer, which are dropped before rewards read a response: it "
                f"never finds them; set rewards.special_tokens to {(*unseen,)!r}"
            )


def _sought(function: RewardConfig, dropped: Collection[str]) -> Collection[str]:
    """Texts without which a built-in function gives no reward."""
    options = function.options
    match function.name:
        case "format":
            tags = str(options.get("tags", "think,answer")).split(",")
            return [f"<{end}{tag.strip()}>" for tag in tags for end in ("", "/")]
        case "exact" if options.get("extract") == "answer_tag":
            return _ANSWER
        case "countdown":
            return _ANSWER
        case "regex":
            pattern = str(options.get("pattern", ""))
            return [name for name in dropped if name in pattern or re.escape(name) in pattern]
        case _:
            return ()
