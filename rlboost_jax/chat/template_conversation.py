"""Conversations by a Hugging Face tokenizer and its chat template.

What follows a turn is found by rendering the conversation with stand-ins for the policy's turns
(`chat/skeleton.py`): it is the template's text from the stop on that ends the turn. A stop is a
token by itself, so no token reaches from the turn into that text; the stop is left out where it
was sampled. The same rendering shows whether the template still writes all that came before as
it did when the turn was sampled.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

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
from rlboost_jax.chat.rendering import uncut
from rlboost_jax.chat.skeleton import LostTurn, difference, stand_ins, stop_after, unused_word
from rlboost_jax.chat.template_probe import Template
from rlboost_jax.chat.thinking import Marks, Thinking
from rlboost_jax.chat.turn_reader import TurnReader
from rlboost_jax.data.chat_rendering import ChatRefused
from rlboost_jax.environments.protocol import Message
from rlboost_jax.settings import environment_config

THOUGHT: Final = "Zq4thought"  # stands for thinking, to see whether a template leaves it out


class TemplateConversation:
    """`Conversation` by a chat template. `conversation_setup.conversation_of` makes and proves it.

    Args:
        stops: texts of what ends a turn, by their ids. Of a stop that is no mark but part of
            ordinary text there is none: the template's own follows it.
        marks: of thinking.
    """

    def __init__(
        self,
        template: Template,
        *,
        stops: Mapping[int, str],
        stop_ids: tuple[int, ...],
        stop_table: bytes,
        reader: TurnReader,
        marks: Marks,
        tools: Tools,
        tool_format: str,
        thinking: Thinking,
        unstable: environment_config.UnstableTemplate,
        notes: Sequence[str] = (),
    ) -> None:
        self.stop_ids, self.stops = stop_ids, stop_table
        self.vocab_size = template.renderer.tokenizer.vocab_size
        self.tool_format = tool_format
        self.notes = tuple(notes)
        self.takes_results = "tool" not in template.refused
        self.template = template
        self._stops = dict(stops)
        self._reader = reader
        self._tools = tools
        self._thinking, self._unstable = thinking, unstable
        thoughts = f"{re.escape(marks.open)}.*?{re.escape(marks.close)}"
        self._thoughts = re.compile(thoughts, re.DOTALL)

    def first(self, messages: Sequence[Message], tools: Tools | None = None) -> NDArray[np.int32]:
        self._check(messages)
        renderer = self.template.renderer
        return renderer.encode(renderer.text(messages, self._known(tools)))

    def parse(self, tokens: ArrayLike, tools: Tools | None = None) -> ParsedTurn:
        return self._reader.read(tokens, self._known(tools))

    def after(
        self,
        before: Sequence[Message],
        turn: ParsedTurn,
        new: Sequence[Message],
        tools: Tools | None = None,
    ) -> Continuation:
        self._check(new)
        known = self._known(tools)
        whole = [*before, turn.message, *new]
        following, changed = self.following(before, turn.message, new, known)
        if self._unstable == "new_sequence" and not changed:
            changed = self._changed_turn(before, turn.message, new, known)
        if changed and self._unstable == "refuse":
            raise unstable_template(changed)
        if changed:
            return self._anew(whole, known, changed)
        if self._thinking == "drop" and self._drops(before, turn, new, known):
            return self._anew(whole, known, "thinking of earlier turns is dropped")
        return Given(self.given(following, turn.stop))

    def following(
        self, before: Sequence[Message], turn: Message, new: Sequence[Message], tools: Tools
    ) -> tuple[str, str]:
        """The template's text from the end of a turn on, and what it changes in earlier text.

        The second is "" if nothing differs from before the turn.
        """
        was = in_the_past(self.parts(before, tools), prefill=self.template.habits.prefill)
        try:
            now = self.parts([*before, turn, *new], tools)
        except LostTurn as error:
            return "", str(error)
        for one, other in zip(was, now, strict=False):
            if one != other:
                return now[-1], difference(uncut(one), uncut(other))
        return now[-1], ""

    def given(self, following: str, stop: int | None) -> NDArray[np.int32]:
        """Tokens of what follows a turn, without those that were sampled.

        A stop other than the template's own takes its place if the template writes that one,
        too, and no matter who speaks next (Llama's `<|eom_id|>`). Otherwise both are there.
        """
        ids = self.template.renderer.encode(following)
        if stop is None or len(ids) == 0 or int(ids[0]) not in self._stops:
            return ids
        mark = self._stops.get(stop)
        written = mark is not None and mark in self.template.renderer.tokenizer.template
        return ids[1:] if int(ids[0]) == stop or (self.template.closing and written) else ids

    def parts(
        self, messages: Sequence[Message], tools: Tools, *, generation: bool = True
    ) -> tuple[str, ...]:
        """Parts of a conversation outside the turns, see `skeleton.parts_of`."""
        habits = self.template.habits
        shown, words = stand_ins(messages, word=unused_word(messages), calls=habits.calls)
        return self.template.parts(shown, words, tools, generation=generation)

    def turns(
        self, messages: Sequence[Message], tools: Tools, *, generation: bool = True
    ) -> list[str]:
        """The policy's turns as the template writes them.

        Raises:
            UnstableTemplate: what turns say changes what is between them.
        """
        *between, last = self.parts(messages, tools, generation=generation)
        text = self.template.renderer.text(messages, tools, generation=generation)
        found, at = [], 0
        for place, part in enumerate(between):
            if not text.startswith(part, at):
                raise unstable_template(difference(uncut(part), uncut(text[at:][: len(part) + 60])))
            start = at + len(part)
            may_end = not generation and place == len(between) - 1
            at = stop_after(text, start, self.template.stops, or_end=may_end)
            found.append(text[start:at])
        if text[at:] != last:
            raise unstable_template(difference(uncut(last), uncut(text[at:])))
        return found

    def without_thinking(self, turn: str) -> str:
        """Strip thinking from a turn as a template writes it, for comparison only."""
        return self._thoughts.sub("", turn).strip()

    def _changed_turn(
        self, before: Sequence[Message], turn: Message, new: Sequence[Message], tools: Tools
    ) -> str:
        """Change of the template in the policy's earlier turns, apart from thinking."""
        was = self.turns([*before, turn], tools, generation=False)
        now = self.turns([*before, turn, *new], tools)
        for one, other in zip(was, now, strict=True):
            one, other = self.without_thinking(one), self.without_thinking(other)
            if one != other:
                return difference(uncut(one), uncut(other))
        return ""

    def _anew(self, messages: Sequence[Message], tools: Tools, reason: str) -> NewSequence:
        renderer = self.template.renderer
        prompt = renderer.encode(renderer.text(messages, tools))
        try:
            turns = sum(len(renderer.encode(turn)) for turn in self.turns(messages, tools))
        except (UnstableTemplate, ChatRefused):
            turns = len(prompt)  # nobody knows which of them
        return NewSequence(prompt, turns, reason)

    def _drops(
        self, before: Sequence[Message], turn: ParsedTurn, new: Sequence[Message], tools: Tools
    ) -> bool:
        """Whether the template leaves out thinking that the sequence still contains."""
        held = self._written_thoughts(before, tools)
        if turn.thinking:
            held |= {len(before)}
        return not held <= self._written_thoughts([*before, turn.message, *new], tools)

    def _written_thoughts(self, messages: Sequence[Message], tools: Tools) -> set[int]:
        """Places of the messages whose thinking the template writes."""
        places = [i for i, message in enumerate(messages) if message.get("reasoning_content")]
        if not places:
            return set()
        shown = [message.copy() for message in messages]
        for place in places:
            shown[place]["reasoning_content"] = f"{THOUGHT}{place}x"
        text = self.template.renderer.text(shown, tools)
        return {place for place in places if f"{THOUGHT}{place}x" in text}

    def _known(self, tools: Tools | None) -> Tools:
        return self._tools if tools is None else tools

    def _check(self, messages: Sequence[Message]) -> None:
        for role in ("system", "tool"):
            why = self.template.refused.get(role)
            if why and any(message.get("role") == role for message in messages):
                raise ChatRefused(
                    f"the chat template takes no messages of the role {role!r}: {why}"
                )


def in_the_past(parts: Sequence[str], *, prefill: str) -> tuple[str, ...]:
    """Parts of a prompt once it is over, without the text that the policy's turn began with."""
    last = parts[-1]
    return (*parts[:-1], last.removesuffix(prefill) if prefill else last)


def unstable_template(changed: str) -> UnstableTemplate:
    return UnstableTemplate(
        f"the chat template is not prefix-stable: {changed} when more messages followed; set "
        'environment.unstable_template to "new_sequence", which begins another sequence of the '
        "episode there, or choose another data.chat_template"
    )
