"""What environments say: messages are read whole, or refused by the part that cannot be read."""

import logging
from typing import Any

import numpy as np
import pytest

from rlboost_jax.environments.adapters.verifiers_answers import NotText, _message
from rlboost_jax.environments.observations import (
    BadObservation,
    checked_observation,
    checked_step,
)
from rlboost_jax.environments.protocol import Step

QUESTION = {"role": "user", "content": "and now?"}


def called(**function: Any) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "f", **function}}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, QUESTION]


@pytest.mark.parametrize("given", ["", " ", None, "null", {}, "{}"])
def test_a_call_without_arguments_has_an_empty_object(given: Any) -> None:
    for messages in (called(arguments=given), called()):
        said: Any = checked_observation(messages, first=True)
        assert said[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}
        assert said[0]["content"] == ""


@pytest.mark.parametrize("given", [{"x": [1]}, '{"x": [1]}'])
def test_arguments_are_said_as_they_are(given: Any) -> None:
    said: Any = checked_observation(called(arguments=given), first=True)
    assert said[0]["tool_calls"][0]["function"]["arguments"] == given


@pytest.mark.parametrize("given", ["x=1", '{"x": ', [1], "[1]", 5, "true", '{"a": NaN}'])
def test_arguments_that_are_no_object_are_refused_by_their_place(given: Any) -> None:
    with pytest.raises(BadObservation, match=r"^tool_calls\[0\]\.function\.arguments of a message"):
        checked_observation(called(arguments=given), first=True)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({**QUESTION, "odd": 1}, "'odd' is no part of a message of role 'user'"),
        ({**QUESTION, "tool_calls": []}, "'tool_calls' is no part of a message of role 'user'"),
        ({**QUESTION, "name": 5}, "'name' of a message is int, no text"),
        ({"role": "user", "content": [{"type": "image"}]}, "'content' of a message is list"),
        ({"role": "robot"}, "role 'robot' of a message"),
    ],
)
def test_what_no_template_reads_is_refused_by_name(message: dict[str, Any], why: str) -> None:
    with pytest.raises(BadObservation, match=why):
        checked_observation([message], first=True)
    assert checked_observation([{**QUESTION, "odd": None}], first=True) == (QUESTION,)


def test_messages_of_verifiers_lose_nothing(caplog: pytest.LogCaptureFixture) -> None:
    asked = called(arguments='{"x": 1}')[0]
    assert _message({**asked, "content": ""}, {})["tool_calls"] == asked["tool_calls"]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert _message({"role": "user", "content": parts}, {})["content"] == "a\nb"
    with pytest.raises(NotText, match="a part of type 'image_url'"):
        _message({"role": "user", "content": [*parts, {"type": "image_url"}]}, {})
    with caplog.at_level(logging.WARNING):
        _message({**QUESTION, "odd_of_verifiers": 1}, {})
    assert "messages of verifiers: passed over: odd_of_verifiers" in caplog.text


@pytest.mark.parametrize("given", [True, False, None, 1, 0, np.True_, np.array(False)])
def test_the_end_of_an_episode_is_a_truth_value(given: Any) -> None:
    assert checked_step(Step(observation="a", done=given)).done is bool(given)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("done", "False", "done is 'False'; it is True or False"),
        ("done", "no", "done is 'no'"),
        ("done", np.array([True, False]), r"done is array\(\[ True, False\]\)"),
        ("anew", b"0", "anew is b'0'"),
        ("done", [], r"done is \[\]"),
        ("reward", 10**400, "reward is an integer beyond all floats"),
        ("reward", [1], r"reward is \[1\]"),
        ("metrics", {"a": 10**5000}, "is an integer beyond all floats"),
    ],
)
def test_what_a_step_cannot_say_is_refused_by_name(field: str, value: Any, why: str) -> None:
    """A text that says no would end the episode."""
    with pytest.raises(BadObservation, match=why):
        checked_step(Step(**{"observation": "a", field: value}))
