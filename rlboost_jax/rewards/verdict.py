"""Verdicts on responses and episodes."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, kw_only=True)
class CallMade:
    """A tool call of an episode, as its environment reports it."""

    turn: int  # 0, 1, 2, … in the episode
    name: str  # of the tool
    failed: bool = False  # it could not be carried out, or its tool raised


@dataclass(frozen=True, kw_only=True)
class Account:
    """An environment's report on an episode besides its reward: for records, not for training."""

    calls: tuple[CallMade, ...] = ()  # in order
    seconds: float = 0.0  # that steps, resets and tools took, not that they waited for a worker
    tokens_retokenised: int = 0  # sampled tokens in later prompts, encoded anew
    metrics: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


NO_ACCOUNT: Final = Account()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on a response, or on a whole episode, once it is over.

    Attributes:
        accuracy: what evaluation reports: the first component, or an environment's own value; None:
            this response has none.
        outcome: by the first reward function, or by the environment without any function; None:
            it says nothing, or `reward` is all there is.
        left_out: why the reward is unknown: the episode failed for reasons that are not the
            policy's, or no function has a value; "": it is known. A response left out is not
            trained on and compared with nothing. Its reward does not matter.
        turn_rewards: parts of `reward`, one for each turn of the episode, in order; what they do
            not add up to is of the last turn. (): all of it is.
    """

    reward: float  # weighted sum of the components
    accuracy: float | None = None
    outcome: float | None = None
    # What each function returned, before its weight; the fallback of one that failed. One that
    # returned None says nothing about this response and is absent.
    components: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    faults: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # name → why
    left_out: str = ""
    turn_rewards: tuple[float, ...] = ()
    account: Account = NO_ACCOUNT


UNJUDGED: Final = Verdict(reward=0.0)


def of_member(group: Verdict, alone: Verdict) -> Verdict:
    """Combine a group's verdict on a response with the facts of its own episode.

    Args:
        group: of functions that compare responses, and of the others.
        alone: what was said before.
    """
    return replace(
        group,
        left_out=group.left_out or alone.left_out,
        turn_rewards=group.turn_rewards or alone.turn_rewards,
        account=alone.account,
    )


def at_once(verdict: Verdict) -> Future[Verdict]:
    """Completed future of a reward that is known without waiting."""
    future: Future[Verdict] = Future()
    future.set_result(verdict)
    return future
