"""Classification of a session's calls: another turn, the same turn once more, or refused.

A session is an episode. No socket, clock or random source in here: calls and turns go in, what is
to be done comes out. Always:

- At most one turn is under way. It is answered once to each call that asks for it.
- An answer is kept until a turn after it is made: a call that is repeated, because its connection
  broke or its client did, gets the same turn again and never another sample.
- Nothing changes by a turn that fails: the same call may come again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rlboost_jax.environments.protocol import Message
from rlboost_jax.gateway.api_errors import invalid, over
from rlboost_jax.gateway.chat_messages import grown
from rlboost_jax.gateway.client_calls import Call, ChatCall, TokenCall
from rlboost_jax.gateway.gateway_limits import GatewayLimits

Finish = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class Called:
    """A tool call of a turn, as clients get it."""

    id: str
    name: str
    arguments: str  # JSON, or what the policy wrote in its place


@dataclass(frozen=True, kw_only=True)
class SampledTurn:
    """A turn as a backend sampled it.

    Attributes:
        text: without special tokens, thinking and calls, and before a stop text.
        message: the same as the conversation goes on with it; None after a call with token ids.
        prompt: all tokens before it; None where the backend does not know them.
        logprobs: nats, one for each token; () where the backend does not know them.
        sequence: of the episode.
        version: that sampled it.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    text: str = ""
    thinking: str = ""
    calls: tuple[Called, ...] = ()
    message: Message | None = None
    prompt: tuple[int, ...] | None = None
    sequence: int = 0
    version: int = 0


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Request for a turn.

    Attributes:
        new: messages since the newest turn; all of them where the sequence begins.
        begins: a sequence begins: the first, or because the conversation was rewritten.
        given: token ids since the newest turn, or all, of a call with token ids.
    """

    turn: int
    call: Call
    begins: bool
    new: tuple[Message, ...] = ()
    given: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AnsweredTurn:
    """A completed turn: the answer to each call that asked for it."""

    turn: int
    call: Call
    sampled: SampledTurn


@dataclass(frozen=True, kw_only=True)
class UnderWay:
    """The call asks for the turn in progress: wait for that."""


@dataclass(frozen=True, kw_only=True)
class Busy:
    """Another call is in progress."""


Decision = Ask | AnsweredTurn | UnderWay | Busy


@dataclass(frozen=True, kw_only=True)
class KnownConversation:
    """A conversation up to the end of a turn; None: not known in that form."""

    messages: tuple[Message, ...] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    tokens: tuple[int, ...] | None = None
    cut: bool = False  # the turn was cut off, and could go on


class GatewaySession:
    """One episode. Its owner carries out what `receive` says, and calls `sampled` or `failed`."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._conversation: KnownConversation | None = None
        self._turns = 0
        self._asked: tuple[str, Ask] | None = None  # under way, by the call's key
        self._answered: tuple[str, AnsweredTurn] | None = None  # the newest
        self._over = ""

    @property
    def turns(self) -> int:
        """Number of turns made so far."""
        return self._turns

    @property
    def over(self) -> str:
        """Reason why the session is over; "" while it is open."""
        return self._over

    def receive(self, call: Call, key: str = "") -> Decision:
        """Classify a call.

        Args:
            key: that names it; "": what it says names it.

        Raises:
            ApiError: no such turn can be made.
        """
        if (known := self.known(call, key)) is not None:
            return known
        if self._asked is not None:
            return Busy()
        if self._over:
            raise over(self._over)
        if self._turns >= self._limits.max_turns:
            raise invalid(
                f"the session has made {self._turns} turns; max_turns is {self._limits.max_turns}",
                code="too_many_turns",
            )
        ask = self._ask(call)
        self._asked = _key(call, key), ask
        return ask

    def known(self, call: Call, key: str = "") -> AnsweredTurn | UnderWay | None:
        """Turn that a call asks for, if it is in progress or the newest."""
        key = _key(call, key)
        if self._asked is not None and self._asked[0] == key:
            return UnderWay()
        if self._asked is None and self._answered is not None and self._answered[0] == key:
            return self._answered[1]
        return None

    def sampled(self, sampled: SampledTurn) -> AnsweredTurn:
        """Complete the turn in progress."""
        assert self._asked is not None, "no turn is under way"
        (key, ask), self._asked = self._asked, None
        answered = AnsweredTurn(turn=ask.turn, call=ask.call, sampled=sampled)
        self._answered, self._turns = (key, answered), self._turns + 1
        self._conversation = _conversation(ask, sampled)
        return answered

    def failed(self) -> None:
        """Discard the turn in progress, which was not sampled."""
        assert self._asked is not None, "no turn is under way"
        self._asked = None

    def end(self, reason: str) -> None:
        """End the session. The newest answer is still available."""
        self._over = self._over or reason

    def _ask(self, call: Call) -> Ask:
        ask = Ask(turn=self._turns, call=call, begins=True)
        if isinstance(call, ChatCall):
            new = self._grown(call)
            if new is not None:
                return replace(ask, begins=False, new=new)
            return replace(ask, new=call.messages)
        given = self._extended(call)
        if given is not None:
            return replace(ask, begins=False, given=given)
        return replace(ask, given=call.tokens)

    def _grown(self, call: ChatCall) -> tuple[Message, ...] | None:
        said = self._conversation
        if said is None or said.messages is None or said.tools != call.tools:
            return None
        return grown(said.messages, call.messages)

    def _extended(self, call: TokenCall) -> tuple[int, ...] | None:
        said = self._conversation
        if said is None or said.tokens is None:
            return None
        length = len(said.tokens)
        if len(call.tokens) < length + (not said.cut) or call.tokens[:length] != said.tokens:
            return None
        return call.tokens[length:]


def _key(call: Call, key: str) -> str:
    return f"key {key}" if key else call.key


def _conversation(ask: Ask, sampled: SampledTurn) -> KnownConversation:
    tokens = None if sampled.prompt is None else (*sampled.prompt, *sampled.tokens)
    cut = sampled.finish == "length"
    call = ask.call
    if isinstance(call, TokenCall):
        return KnownConversation(tokens=(*call.tokens, *sampled.tokens), cut=cut)
    before: Sequence[Message] = call.messages
    if sampled.message is None:
        return KnownConversation(tokens=tokens, cut=cut)
    return KnownConversation(
        messages=(*before, sampled.message), tools=call.tools, tokens=tokens, cut=cut
    )
