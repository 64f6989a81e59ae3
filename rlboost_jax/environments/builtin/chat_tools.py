"""chat_tools: a question of a data set, tools by name, and the last turn is the answer.

    config.task.name = "dataset"
    config.environment.name = "chat_tools"
    config.environment.options = {"tools": {"calculator": {}}, "check": "math"}

An episode is over with the first turn that calls no tool. Its reward is the check of that turn
against the row's answer, if there is one, besides what `rewards.functions` say.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from rlboost_jax.chat.conversation import answers
from rlboost_jax.environments.builtin.toolsets import toolset
from rlboost_jax.environments.protocol import Message, Observation, Step, Tool, Turn
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rewards.answer_extraction import FORMATS


class ChatTools:
    """Environment that answers with tools until a turn calls none, which is the answer.

    Args:
        tools: by name, each with its options; see `toolsets.py`.
        question: column of the row: a text, or messages.
        answer: column of the row that the check compares with.
        check: of the last turn: "exact", "math" (extra `math`), or "": none.
        extract: where the answer stands in the last turn: "" all of it, "boxed", "after_hashes",
            "answer_tag".
        system: first message; "": none.

    Raises:
        ConfigError: there is no such check or place.
        BadTool: see `toolset`.
    """

    def __init__(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        question: str = "question",
        answer: str = "answer",
        check: str = "",
        extract: str = "",
        system: str = "",
    ) -> None:
        for name, value, known in (("check", check, CHECKS), ("extract", extract, FORMATS)):
            if value not in known:
                choices = ", ".join(map(repr, known))
                raise ConfigError(f"environment.options: {name} is {value!r}; choose {choices}")
        self._sets = [toolset(name, options) for name, options in tools.items()]
        self.tools: dict[str, Tool] = {}
        for each in (one for some in self._sets for one in some.tools):
            if each.name in self.tools:
                raise ConfigError(f"environment.options: two tools have the name {each.name!r}")
            self.tools[each.name] = each
        self._question, self._answer, self._system = question, answer, system
        self._check, self._extract = CHECKS[check], FORMATS[extract]
        self._wanted = ""

    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        """Return the question. Raises KeyError if the row lacks a column."""
        self._wanted = str(example[self._answer]) if self._check is not None else ""
        asked = example[self._question]
        messages = [Message(role="user", content=asked)] if isinstance(asked, str) else list(asked)
        if self._system:
            messages.insert(0, Message(role="system", content=self._system))
        return messages

    def step(self, turn: Turn) -> Step:
        for each in self._sets:
            each.remember(turn)
        if turn.calls:
            return Step(observation=answers(turn.results))
        if self._check is None:
            return Step(done=True)
        found = self._extract(turn.text)
        reward = 0.0 if found is None else self._check(found, self._wanted)
        return Step(reward=reward, done=True, metrics={"solved": reward})


def _exact(found: str, wanted: str) -> float:
    return float(" ".join(found.split()) == " ".join(wanted.split()))


def _math(found: str, wanted: str) -> float:
    from rlboost_jax.rewards.math_answers import math

    return math([""], [found], answer=[wanted])[0] or 0.0


CHECKS: Final[Mapping[str, Callable[[str, str], float] | None]] = MappingProxyType(
    {"": None, "exact": _exact, "math": _math}
)
