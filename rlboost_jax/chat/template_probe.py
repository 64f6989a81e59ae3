"""Probing of a chat template: what it accepts, and what it writes around turns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rlboost_jax.chat.conversation import Tools
from rlboost_jax.chat.rendering import Renderer
from rlboost_jax.chat.skeleton import Habits, parts_of, shared, stand_ins
from rlboost_jax.chat.thinking import Marks
from rlboost_jax.data.chat_rendering import ChatRefused, TemplateTooCostly
from rlboost_jax.environments.protocol import Message
from rlboost_jax.platform.mistakes import ConfigError

SAYS: Final = "Zq1says"
ASKS: Final = Message(role="user", content=SAYS)
TURN: Final = Message(role="assistant", content="Zq2")
CALL_ID: Final = "abcdefghi"  # 9 letters or digits, for Mistral's templates


@dataclass(frozen=True, kw_only=True)
class Template:
    """A template with everything that was found out about it.

    Attributes:
        closing: the same stop ends a turn for every next speaker. Elsewhere the next role's mark
            ends it (GLM).
        refused: what it does not take, and what it says to it: "system", "tool", "results"
            (several for one turn), "calls" (several in one turn).
    """

    renderer: Renderer
    stops: tuple[str, ...]
    habits: Habits
    closing: bool
    refused: dict[str, str]

    def parts(
        self,
        shown: Sequence[Message],
        words: Sequence[str],
        tools: Tools,
        *,
        generation: bool = True,
    ) -> tuple[str, ...]:
        """Parts outside the turns of messages with stand-ins, see `skeleton.parts_of`."""
        turns = [i for i, message in enumerate(shown) if message.get("role") == "assistant"]

        def prompt(turn: int) -> str:
            text = self.renderer.text(shown[: turns[turn]], tools)
            return text.removesuffix(self.habits.prefill)

        return parts_of(
            self.renderer.text(shown, tools, generation=generation),
            words,
            header=self.habits.header,
            stops=self.stops,
            prompt=prompt,
            ends=not generation,
        )


def examined(renderer: Renderer, stops: Sequence[str], tools: Tools, marks: Marks) -> Template:
    """Probe a template. Raises ChatRefused if it does not even take question, answer, question."""
    prompt = renderer.text([ASKS], tools)
    pasts = (
        renderer.text([ASKS, TURN, ASKS], tools),
        renderer.text([ASKS, TURN], tools, generation=False),
    )
    same = max(shared(prompt, past[: past.find(TURN["content"])]) for past in pasts)
    start = shared(prompt, renderer.text([ASKS], tools, generation=False))
    if start >= same:  # it writes the header whether asked to or not
        start = prompt.rfind(SAYS) + len(SAYS)
    start = _whole(prompt, start, renderer.control)
    thinks = prompt.find(marks.open, start, same)
    same = same if thinks < 0 else thinks
    header, prefill = prompt[start:same], prompt[same:]
    if prefill.strip() and marks.open not in prefill:
        prefill = ""  # what else it writes for the policy is shown to be unstable
    template = Template(
        renderer=renderer,
        stops=tuple(stops),
        habits=Habits(header, prefill, calls=True),
        closing=True,
        refused={},
    )
    template = _with_calls(template, tools)
    system = Message(role="system", content=SAYS)
    refused = {**template.refused, **_refusal(template, "system", [system, ASKS], tools)}
    if "tool" not in refused:
        refused |= _refusal(template, "results", _asked(2), tools)
        try:
            template.renderer.text(_asked(2, calls=2), tools)
        except ChatRefused as error:
            refused["calls"] = str(error)
    closing = "tool" in refused or _mark(template, [ASKS, TURN, ASKS], tools) == _mark(
        template, _asked(1), tools
    )
    return replace(template, refused=refused, closing=closing)


def _with_calls(template: Template, tools: Tools) -> Template:
    """Template with the form in which it takes calls, if it takes any."""
    refusals = {}
    for calls, text_arguments in ((True, False), (True, True), (False, False)):
        tried = replace(
            template,
            renderer=replace(template.renderer, text_arguments=text_arguments),
            habits=template.habits._replace(calls=calls),
        )
        refusals = _refusal(tried, "tool", _asked(1), tools)
        if not refusals:
            return tried
    return replace(template, refused=refusals, habits=template.habits._replace(calls=False))


def _whole(text: str, start: int, control: Sequence[str]) -> int:
    """Start of the control text that spans `start`, or `start`."""
    for mark in control:
        begin = text.find(mark, max(0, start - len(mark) + 1), start + len(mark))
        if 0 <= begin < start < begin + len(mark):
            return begin
    return start


def _asked(results: int, calls: int = 1) -> list[Message]:
    """A question, a turn with calls, and their results."""
    function = {"name": "tool", "arguments": {"x": "y"}}
    call = {"id": CALL_ID, "type": "function", "function": function}
    answer = Message(role="tool", name="tool", tool_call_id=CALL_ID, content=SAYS)
    return [ASKS, Message(role="assistant", content="", tool_calls=[call] * calls)] + [
        answer
    ] * results


def _refusal(
    template: Template, name: str, messages: Sequence[Message], tools: Tools
) -> dict[str, str]:
    """Name and reason if a template does not take messages, or leaves some out; else empty."""
    try:
        whole = template.renderer.text(messages, tools)
        between = "".join(_parts(template, messages, tools))
    except TemplateTooCostly as error:
        raise ConfigError(str(error)) from None
    except ChatRefused as error:
        return {name: str(error)}
    expected = sum(message.get("content") == SAYS for message in messages)
    if whole.count(SAYS) < expected:
        return {name: "it leaves them out without a word"}
    if between.count(SAYS) < expected:
        return {name: "it writes them before what ends a turn; see data.stop_ids"}
    return {}


def _parts(template: Template, messages: Sequence[Message], tools: Tools) -> tuple[str, ...]:
    shown, words = stand_ins(messages, word="Zq3", calls=template.habits.calls)
    return template.parts(shown, words, tools)


def _mark(template: Template, messages: Sequence[Message], tools: Tools) -> str:
    """Stop with which the template ends a turn."""
    last = _parts(template, messages, tools)[-1]
    return max((stop for stop in template.stops if last.startswith(stop)), key=len)
