"""Start-up proof that the text after a turn is what the template writes there.

Random conversations are rendered whole, as a template is meant to be used, and turn by turn. Of
each conversation and each of its turns it is shown that

- what came before a turn is still written as it was when the turn was sampled;
- what turns say, call and think changes nothing between them;
- what the policy said is not rewritten later, but for thinking that is left out;
- the tokens of turn and what follows are those of both together: no token reaches across.

With thinking = "keep" turns stay as they were sampled, thinking included, even if the template
would leave it out of earlier turns. That is sound because of the second statement: what
lies between turns is the same with thinking in them and without.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlboost_jax.chat.conversation import Tools, UnstableTemplate
from rlboost_jax.chat.rendering import uncut
from rlboost_jax.chat.sample_conversations import SampleConversation, samples
from rlboost_jax.chat.skeleton import LostTurn, difference
from rlboost_jax.chat.template_conversation import TemplateConversation, unstable_template
from rlboost_jax.data.chat_rendering import ChatRefused, TemplateTooCostly
from rlboost_jax.environments.protocol import Message
from rlboost_jax.platform.mistakes import ConfigError

CONVERSATIONS: Final = 64
ENOUGH: Final = 16  # that a template must take


class Proof(NamedTuple):
    """Result of the proof for a template.

    Attributes:
        conversations: that it takes; those that it refuses show nothing.
        unstable: how it changes what came before; "": it does not.
        refusal: what it says to a conversation that it does not take; "": it takes all.
        leaves_out_thinking: of earlier turns.
    """

    conversations: int
    unstable: str
    refusal: str
    leaves_out_thinking: bool


def proved(
    conversation: TemplateConversation, tools: Tools, *, seed: int = 0, count: int = CONVERSATIONS
) -> Proof:
    """Prove a template. Raises ConfigError if it takes too few conversations to show anything."""
    template = conversation.template
    calls = 0 if not tools or "tool" in template.refused else 3
    taken, refusal, left_out = 0, "", False
    for sample in samples(
        count,
        seed=seed,
        marks=template.renderer.control,
        calls=min(calls, 1) if "calls" in template.refused else calls,
        system="system" not in template.refused,
        results=1 if "results" in template.refused else 3,
    ):
        try:
            left_out |= _shown(conversation, _as_taken(sample, template.habits.calls), tools)
            taken += 1
        except UnstableTemplate as error:
            return Proof(taken, str(error), refusal, left_out)
        except LostTurn as error:
            return Proof(taken, str(unstable_template(str(error))), refusal, left_out)
        except TemplateTooCostly as error:
            raise ConfigError(str(error)) from None
        except ChatRefused as error:
            refusal = str(error)
    if taken < min(ENOUGH, count):
        raise ConfigError(
            f"the chat template takes {taken} of {count} random conversations, too few to show "
            f"what it does; of another it says: {refusal}"
        )
    return Proof(taken, "", refusal, left_out)


def _shown(conversation: TemplateConversation, sample: SampleConversation, tools: Tools) -> bool:
    """Whether thinking is left out of earlier turns. Raises what `proved` catches."""
    messages, earlier, left_out = list[Message](sample.opening), list[str](), False
    for turn, new in sample.exchanges:
        following, changed = conversation.following(messages, turn, new, tools)
        if changed:
            raise unstable_template(changed)
        written = conversation.turns([*messages, turn], tools, generation=False)
        messages += [turn, *new]
        turns = conversation.turns(messages, tools)
        for was, now in zip(written, turns, strict=True):
            left_out |= len(now) < len(was)
            one, other = map(conversation.without_thinking, (was, now))
            if one != other:
                raise unstable_template(difference(uncut(one), uncut(other)))
        earlier = turns
        _check_tokens(conversation, earlier[-1], following)
    return left_out


def _check_tokens(conversation: TemplateConversation, turn: str, following: str) -> None:
    """Check that no token reaches from a turn into what follows it."""
    encode = conversation.template.renderer.encode
    apart, together = np.concatenate([encode(turn), encode(following)]), encode(turn + following)
    if not np.array_equal(apart, together):
        text = conversation.template.renderer.tokenizer.text
        at = next(
            (i for i, (a, b) in enumerate(zip(apart, together, strict=False)) if a != b),
            min(len(apart), len(together)),
        )
        around = slice(max(0, at - 4), at + 4)
        raise unstable_template(
            f"the tokens {_texts(text, apart[around])} became {_texts(text, together[around])}"
        )


def _texts(text: Callable[[ArrayLike], str], tokens: NDArray[np.int32]) -> list[str]:
    return [text([token]) for token in tokens.tolist()]


def _as_taken(sample: SampleConversation, calls: bool) -> SampleConversation:
    """Turn the sample's calls into text for templates that write no calls."""
    if calls:
        return sample
    exchanges = []
    for turn, new in sample.exchanges:
        said = turn.copy()
        for call in said.pop("tool_calls", ()):
            said["content"] += f"\n{call['function']}"
        exchanges.append(type(sample.exchanges[0])(said, new))
    return SampleConversation(sample.opening, exchanges)
