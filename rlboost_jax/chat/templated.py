"""Conversations by a Hugging Face tokenizer and its chat template.

What follows a turn is found by rendering the conversation with stand-ins for the policy's turns
(`chat/skeleton.py`): it is the template's text from the stop on that ends the turn. A stop is a
token by itself, so no token reaches from the turn into that text; the stop is left out where it
was sampled. The same rendering shows whether the template still writes all that came before as
it did when the turn was sampled.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlboost_jax.chat.conversation import (
    Continuation,
    Given,
    NewSequence,
    ParsedTurn,
    Tools,
    UnstableTemplate,
)
from rlboost_jax.chat.habits import Template
from rlboost_jax.chat.reading import TurnReader
from rlboost_jax.chat.skeleton import difference, parts_of, stand_ins, unused_word
from rlboost_jax.chat.thinking import Thinking
from rlboost_jax.data.tokenizers import ChatRefused
from rlboost_jax.environments.protocol import Message

Unstable = Literal["refuse", "new_sequence"]
THOUGHT = "Zq4thought"  # stands for thinking, to see whether a template leaves it out


class TemplateConversation:
    """See `Conversation`. `opening.conversation_of` makes one and proves it.

    Args:
        stops: texts of what ends a turn, by their ids.
    """

    def __init__(
        self,
        template: Template,
        *,
        stops: Mapping[int, str],
        reader: TurnReader,
        tools: Tools,
        tool_format: str,
        thinking: Thinking,
        unstable: Unstable,
        notes: Sequence[str] = (),
    ) -> None:
        self.stop_ids = tuple(stops)
        self.vocab_size = template.renderer.tokenizer.vocab_size
        self.tool_format = tool_format
        self.notes = tuple(notes)
        self.template = template
        self._stops = dict(stops)
        self._reader = reader
        self._tools = tools
        self._thinking, self._unstable = thinking, unstable

    def first(self, messages: Sequence[Message], tools: Tools | None = None) -> NDArray[np.int32]:
        self._taken(messages)
        renderer = self.template.renderer
        return renderer.encode(renderer.text(messages, self._known(tools)))

    def parse(self, tokens: ArrayLike) -> ParsedTurn:
        return self._reader.read(tokens)

    def after(
        self,
        before: Sequence[Message],
        turn: ParsedTurn,
        new: Sequence[Message],
        tools: Tools | None = None,
    ) -> Continuation:
        self._taken(new)
        known = self._known(tools)
        was, now = self.parts(before, known), self.parts([*before, turn.message, *new], known)
        kept = now[: len(was)]
        if kept != was_kept(was, prefill=self.template.habits.prefill):
            changed = difference("".join(was), "".join(kept))
            if self._unstable == "refuse":
                raise UnstableTemplate(
                    f"the chat template is not prefix-stable: {changed} once more messages "
                    'followed; set environment.unstable_template to "new_sequence"'
                )
            return self._anew([*before, turn.message, *new], known, changed)
        if self._thinking == "drop" and self._drops(before, turn, new, known):
            return self._anew([*before, turn.message, *new], known, "thinking is dropped")
        return Given(self._given(now[-1], turn.stop))

    def parts(self, messages: Sequence[Message], tools: Tools) -> tuple[str, ...]:
        """What of a conversation is no turn's, see `skeleton.parts_of`."""
        habits = self.template.habits
        shown, words = stand_ins(messages, word=unused_word(messages), content=habits.content)
        text = self.template.renderer.text(shown, tools)
        return parts_of(text, words, header=habits.header, stops=self.template.stops)

    def _given(self, following: str, stop: int | None) -> NDArray[np.int32]:
        """Tokens of what follows a turn, without what was sampled of it.

        A stop other than the template's own takes its place where the template writes that
        one, too, and it is no matter who speaks next (Llama's `<|eom_id|>`).
        """
        ids = self.template.renderer.encode(following)
        if stop is None or len(ids) == 0:
            return ids
        own = self._stops.get(int(ids[0]), "")
        stands_for_it = (
            self.template.closing
            and self._stops.get(stop, "\0") in self.template.renderer.tokenizer.template
        )
        return ids[1:] if int(ids[0]) == stop or (own and stands_for_it) else ids

    def _anew(self, messages: Sequence[Message], tools: Tools, reason: str) -> NewSequence:
        renderer = self.template.renderer
        text = renderer.text(messages, tools)
        prompt = renderer.encode(text)
        others = sum(len(renderer.encode(part)) for part in self.parts(messages, tools))
        return NewSequence(prompt, max(0, len(prompt) - others), reason)

    def _drops(
        self, before: Sequence[Message], turn: ParsedTurn, new: Sequence[Message], tools: Tools
    ) -> bool:
        """Whether the template leaves out thinking that the sequence still has."""
        if not turn.thinking and not any(m.get("reasoning_content") for m in before):
            return False
        whole = [*before, turn.message]
        held = self._thoughts(before, tools)
        if turn.thinking:
            held |= {len(before)}
        return not held <= self._thoughts([*whole, *new], tools)

    def _thoughts(self, messages: Sequence[Message], tools: Tools) -> set[int]:
        """Places of the turns whose thinking the template writes."""
        shown = [
            Message(**{**m, "reasoning_content": f"{THOUGHT}{i}x"})  # type: ignore[typeddict-item]
            if m.get("reasoning_content")
            else m
            for i, m in enumerate(messages)
        ]
        text = self.template.renderer.text(shown, tools)
        return {i for i in range(len(messages)) if f"{THOUGHT}{i}x" in text}

    def _known(self, tools: Tools | None) -> Tools:
        return self._tools if tools is None else tools

    def _taken(self, messages: Sequence[Message]) -> None:
        for role in ("system", "tool"):
            why = self.template.refused.get(role)
            if why and any(message.get("role") == role for message in messages):
                raise ChatRefused(
                    f"the chat template takes no messages of the role {role!r}: {why}"
                )


def was_kept(was: Sequence[str], *, prefill: str) -> tuple[str, ...]:
    """The parts of a prompt as they are where it lies in the past: without what was written for
    the policy to begin with."""
    last = was[-1]
    return (*was[:-1], last.removesuffix(prefill) if prefill else last)
